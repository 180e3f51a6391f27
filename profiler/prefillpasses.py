"""Whole passes that prefill, of a sum over kernels, and how many tokens one must have for it to attain a rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiler.kernels import Chunks
from profiler.series import PrefillPasses
from profiler.tables import put
from profiler.work import Work

if TYPE_CHECKING:
    from profiler.kernelsum import KernelSumModel
    from profiler.steptable import StepTable

MOST_SEQUENCES = 64
"""Of a pass that ``fewest_tokens`` can say something about."""

MARGIN = 1 + 1e-9
"""Rounding makes far less of a rate."""

RECENT_RATES = 64
"""For which ``fewest_tokens`` is kept: one for each setting of a policy."""


class KernelSumPasses(PrefillPasses):
    """Passes on one share of the SMs.

    cost: what a layer takes beyond its kernels' seconds, and times those; None for nothing.
    """

    __slots__ = ("_cost", "_factor", "_fewest", "_fixed_s", "_known", "_model", "_sms", "_table")

    def __init__(self, model: KernelSumModel, table: StepTable, sms: int, cost: tuple[float, float] | None) -> None:
        layer_s, factor = cost or (0.0, 1.0)
        self._model = model
        self._table = table
        self._sms = sms
        self._cost = cost
        self._factor = factor * table.model_layers
        self._fixed_s = layer_s * table.model_layers + model.host_seconds(Work(((1, 0),)))
        self._known: dict[Chunks, tuple[float, float]] = {}
        self._fewest: dict[float, int] = {}

    def of(self, chunks: Chunks) -> tuple[float, float]:
        """See :class:`profiler.series.PrefillPasses`."""
        return self._known.get(chunks) or put(self._known, chunks, self._of(chunks))

    def _of(self, chunks: Chunks) -> tuple[float, float]:
        """As ``estimate`` of the whole pass, operation for operation."""
        table, layers = self._table, self._table.model_layers
        batch = table.batch(chunks)
        seconds, _, _ = batch.launch(layers, True, self._sms)
        if self._cost is not None:
            layer_s, factor = self._cost
            seconds = factor * seconds + layer_s * layers
        return seconds + self._model.prefill_host_s(len(chunks), True), batch.cost(layers, True)[0]

    def fewest_tokens(self, flops_per_s: float, sequences: int) -> int:
        """See :class:`profiler.series.PrefillPasses`."""
        if sequences > MOST_SEQUENCES:
            return 0
        found = self._fewest.get(flops_per_s)
        return put(self._fewest, flops_per_s, self._first(flops_per_s), RECENT_RATES) if found is None else found

    def _first(self, flops_per_s: float) -> int:
        """One more than the last knot up to which all passes are too slow, by all that they do and part of the time.

        Between knots FLOPs lie below the line from one to the next, and the seconds without attention on it.
        """
        sms, fewest = self._sms, 0
        for tokens, flops, layer_s in self._table.pass_bounds(MOST_SEQUENCES):
            if flops * MARGIN >= flops_per_s * (self._factor * layer_s[sms] + self._fixed_s):
                break
            fewest = tokens + 1
        return fewest
