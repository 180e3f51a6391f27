"""Routers: which instance a request goes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policies.api import Load, RequestProgress


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """By turns, in order of arrival."""

    def route(self, request: RequestProgress, loads: Sequence[Load]) -> int:
        return loads[request.index % len(loads)].instance


@dataclass(frozen=True, slots=True)
class LeastLoaded:
    """The fewest tokens still to be prefilled, then the fewest requests resident, then the lowest number."""

    def route(self, request: RequestProgress, loads: Sequence[Load]) -> int:
        return min(loads, key=lambda load: (load.pending_tokens, load.resident_requests, load.instance)).instance


ROUTERS = {"round-robin": RoundRobin, "least-loaded": LeastLoaded}
