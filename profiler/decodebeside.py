"""A decode step beside a group of layers that prefill, on one split of the SMs after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from profiler.layergroups import Costs, GroupDraw
from profiler.steptable import StepTable


class DecodeLosses(NamedTuple):
    """Of a launch that decodes on an instance with ``sms`` SMs.

    It loses ``anyway`` beside any other, ``ceiling`` of its DRAM-bound time beside one that draws all of the DRAM.
    Layers take ``costs`` beyond their kernels, the host ``host_s``.
    """

    sms: int
    anyway: float
    ceiling: float
    costs: Costs | None
    host_s: float


class DecodeBeside:
    """``requests`` decode at ``context`` tokens beside a group of which ``draw`` says how much of the DRAM it takes.

    alone_s: seconds where no SM is left for the group.
    """

    __slots__ = (
        "_alone_s",
        "_ceiling",
        "_context",
        "_costs",
        "_draw",
        "_host_s",
        "_requests",
        "_slowed",
        "_sms",
        "_table",
    )

    def __init__(
        self,
        table: StepTable,
        losses: DecodeLosses,
        requests: int,
        context: int,
        draw: GroupDraw,
        alone_s: Callable[[int], float],
    ) -> None:
        whole, anyway, ceiling, costs, host_s = losses
        self._sms = whole
        self._table = table
        self._slowed = 1 + anyway
        self._ceiling = ceiling
        self._costs = costs
        self._host_s = host_s
        self._requests = requests
        self._context = context
        self._draw = draw
        self._alone_s = alone_s

    def seconds(self, sms: int) -> float:
        """On so many SMs, with the group on all others: operation for operation what ``estimate`` says."""
        rest, layers = self._sms - sms, self._table.model_layers
        if rest < 1:
            return self._alone_s(sms)
        found, dram_seconds, _ = self._table.decode_pass(self._requests, sms).at(self._context, layers)
        found *= self._slowed
        if self._ceiling:
            share = self._draw.shares.get(rest)
            if share is None:
                share = self._draw.share(rest)
            found += self._ceiling * share * dram_seconds
        if self._costs is not None:
            layer_s, _, factor = self._costs[sms]
            found = factor * found + layer_s * layers
        return found + self._host_s
