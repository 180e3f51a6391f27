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


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixAffine:
    """The instance that has the longest cached prefix of the request, unless the load is out of balance.

    The rule of SGLang's cache-aware router, with its numbers (gateway 0.3); load is requests waiting and resident.
    Where the most loaded has over ``balance_requests`` more than the least loaded, and over ``balance_ratio`` times as
    many, or where the longest prefix is at most ``least_share`` of what is to be prefilled, the request goes where
    :class:`LeastLoaded` sends it. That router guesses what instances have from what it has sent them; this one is told
    what they have computed.
    """

    least_share: float = 0.3
    balance_requests: int = 64
    balance_ratio: float = 1.5

    def route(self, request: RequestProgress, loads: Sequence[Load]) -> int:
        requests = [load.waiting_requests + load.resident_requests for load in loads]
        most, least = max(requests), min(requests)
        unbalanced = most - least > self.balance_requests and most > self.balance_ratio * least
        longest = max(load.cached_tokens for load in loads)
        if unbalanced or longest <= self.least_share * request.prefill_tokens:
            return LeastLoaded().route(request, loads)
        return LeastLoaded().route(request, [load for load in loads if load.cached_tokens == longest])


ROUTERS: dict[str, type[RoundRobin | LeastLoaded | PrefixAffine]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix-affine": PrefixAffine,
}
