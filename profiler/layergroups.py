"""Groups of layers of prompts that are prefilled together: seconds, the host's included, and their DRAM traffic."""

from __future__ import annotations

from typing import Final

from profiler.kernels import Chunks
from profiler.latency import Estimate
from profiler.prefillbatch import PrefillBatch
from profiler.specs import DeviceSpec
from profiler.steptable import StepTable
from profiler.work import Work, bad_layers, bad_sms

new: Final = tuple.__new__

Costs = list[tuple[float, float, float]]
"""What layers take beyond their kernels by SMs, as ``LayerCosts.by_sms`` has it."""


class LayerGroups:
    """Of one batch, alone on its SMs: each estimate is worked out once.

    host_s: what the host adds to a group; end_host_s: to one that ends the pass.
    """

    __slots__ = (
        "_batch",
        "_chunks",
        "_costs",
        "_device",
        "_draws",
        "_end_host_s",
        "_host_s",
        "_known",
        "_moved",
        "_table",
    )

    def __init__(
        self,
        chunks: Chunks,
        table: StepTable,
        device: DeviceSpec,
        costs: Costs | None,
        host_s: float,
        end_host_s: float,
    ) -> None:
        self._chunks = chunks
        self._batch: PrefillBatch = table.batch(chunks)
        self._table = table
        self._device = device
        self._costs = costs
        self._host_s = host_s
        self._end_host_s = end_host_s
        self._known: dict[tuple[int, int, bool], Estimate] = {}
        self._draws: dict[tuple[int, bool], GroupDraw] = {}
        self._moved: dict[tuple[int, bool], float] = {}

    def seconds(self, layers: int, ends: bool, sms: int) -> float:
        """Of so many layers; with the embedding and the head where the group ``ends`` the pass."""
        return (self._known.get((sms, layers, ends)) or self.estimate(layers, ends, sms))[0]

    def estimate(self, layers: int, ends: bool, sms: int) -> Estimate:
        """See ``LatencyModel.estimate``, also for errors."""
        key = (sms, layers, ends)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._estimate(layers, ends, sms)
        return found

    def draw(self, layers: int, ends: bool) -> GroupDraw:
        """What a group draws of the DRAM."""
        key = (layers, ends)
        found = self._draws.get(key)
        if found is None:
            found = self._draws[key] = GroupDraw(self, layers, ends)
        return found

    def _estimate(self, layers: int, ends: bool, sms: int) -> Estimate:
        if not 0 < sms <= self._device.sms:
            raise bad_sms("sms", sms, self._device)
        if not 0 < layers <= self._table.model_layers:
            raise bad_layers(self._work(layers, ends), self._table.model_layers)
        seconds, _, source = self._batch.launch(layers, ends, sms)
        if self._costs is not None:
            layer_s, factor, _ = self._costs[sms]
            seconds = factor * seconds + layer_s * layers
        return new(Estimate, (seconds + (self._end_host_s if ends else self._host_s), source))

    def drawn(self, layers: int, ends: bool, sms: int) -> float:
        """Share of the whole device's DRAM peak that a group draws on so many SMs; 0 to 1."""
        table = self._table
        moved = self._moved.get((layers, ends))
        if moved is None:
            moved = self._moved[layers, ends] = table.cost(self._work(layers, ends))[1]
        return min(1.0, moved / self.seconds(layers, ends, sms) / table.dram_bytes_per_s)

    def _work(self, layers: int, ends: bool) -> Work:
        return new(Work, (self._chunks, 0, 0, layers, ends, 0, None))


class GroupDraw:
    """Shares of the DRAM's peak that one group draws: ``shares`` holds, by SMs, what has been asked."""

    __slots__ = ("_ends", "_groups", "_layers", "shares")

    def __init__(self, groups: LayerGroups, layers: int, ends: bool) -> None:
        self._groups = groups
        self._layers = layers
        self._ends = ends
        self.shares: dict[int, float] = {}

    def share(self, sms: int) -> float:
        """On so many SMs; 0 to 1."""
        share = self.shares.get(sms)
        if share is None:
            share = self.shares[sms] = self._groups.drawn(self._layers, self._ends, sms)
        return share
