"""A decode step beside a group of layers that prefill, on one split of the SMs after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from profiler.series import DecodeSplits
from profiler.steptable import StepTable
from profiler.work import Work

if TYPE_CHECKING:
    from profiler.kernelsum import KernelSumModel
    from profiler.layergroups import LayerGroups

Costs = list[tuple[float, float, float]]
"""What layers take beyond their kernels by SMs, as ``LayerCosts.by_sms`` has it."""


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


class DecodeBeside(DecodeSplits):
    """``requests`` decode at ``context`` tokens beside so many layers of ``groups``."""

    __slots__ = (
        "_ceiling",
        "_context",
        "_costs",
        "_ends",
        "_groups",
        "_host_s",
        "_layers",
        "_model",
        "_requests",
        "_slowed",
        "_sms",
        "_table",
    )

    def __init__(
        self,
        model: KernelSumModel,
        table: StepTable,
        losses: DecodeLosses,
        requests: int,
        context: int,
        groups: LayerGroups,
        layers: int,
        ends: bool,
    ) -> None:
        whole, anyway, ceiling, costs, host_s = losses
        self._model = model
        self._table = table
        self._sms = whole
        self._slowed = 1 + anyway
        self._ceiling = ceiling
        self._costs = costs
        self._host_s = host_s
        self._requests = requests
        self._context = context
        self._groups = groups
        self._layers = layers
        self._ends = ends

    def seconds(self, sms: int) -> float:
        """Operation for operation what ``estimate`` says."""
        rest = self._sms - sms
        if rest < 1:
            return self._without_rest(sms)
        share = self._groups.drawn(self._layers, self._ends, rest) if self._ceiling else 0.0
        return self._with(sms, share)[0]

    def bounds(self, sms: int) -> tuple[float, float]:
        """The same where it is known how long the group takes; else beside one that draws nothing of the DRAM, and one
        that draws everything.

        No operation of these is rounded to less where its operand is more.
        """
        rest = self._sms - sms
        if rest < 1:
            seconds = self._without_rest(sms)
            return seconds, seconds
        if not self._ceiling:
            return self._with(sms, 0.0)
        known = self._groups.timed(rest)
        return self._with(sms, self._groups.drawn(self._layers, self._ends, rest) if known else None)

    def _without_rest(self, sms: int) -> float:
        beside = self._groups.work(self._layers, self._ends)
        return self._model.estimate(Work((), self._requests, self._context), sms, beside, 1)[0]

    def _with(self, sms: int, share: float | None) -> tuple[float, float]:
        """(least, most) seconds beside a group that draws ``share`` of the DRAM; None where that is not known."""
        ceiling, costs, host_s = self._ceiling, self._costs, self._host_s
        layers = self._table.model_layers
        alone_s, dram_s, _ = self._table.decode_pass(self._requests, sms).at(self._context, layers)
        least = most = alone_s * self._slowed
        if ceiling:
            if share is None:
                most += ceiling * dram_s
            else:
                least += ceiling * share * dram_s
                most = least
        if costs is not None:
            layer_s, _, factor = costs[sms]
            least, most = factor * least + layer_s * layers, factor * most + layer_s * layers
        return least + host_s, most + host_s
