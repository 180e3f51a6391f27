"""Groups of layers of prompts that are prefilled together: seconds, the host's included, and their DRAM traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from profiler.decodebeside import Costs, DecodeBeside, DecodeLosses
from profiler.kernels import Chunks
from profiler.latency import Estimate, Source
from profiler.prefillbatch import PrefillBatch
from profiler.series import PrefillGroups
from profiler.specs import DeviceSpec
from profiler.steptable import StepTable
from profiler.work import Work, bad_layers, bad_sms

if TYPE_CHECKING:
    from profiler.kernelsum import KernelSumModel

new: Final = tuple.__new__


class LayerGroups(PrefillGroups):
    """Of one batch, alone on its SMs or beside decode steps, which lose by ``losses``.

    host_s: what the host adds to a group; end_host_s: to one that ends the pass.
    """

    __slots__ = (
        "_batch",
        "_chunks",
        "_costs",
        "_device",
        "_device_sms",
        "_end_host_s",
        "_host_s",
        "_losses",
        "_model",
        "_table",
    )

    def __init__(
        self,
        model: KernelSumModel,
        table: StepTable,
        device: DeviceSpec,
        chunks: Chunks,
        costs: Costs | None,
        host_s: float,
        end_host_s: float,
        losses: DecodeLosses,
    ) -> None:
        self._model = model
        self._table = table
        self._device = device
        self._device_sms: int = device.sms
        self._chunks = chunks
        self._batch: PrefillBatch = table.batch(chunks)
        self._costs = costs
        self._host_s = host_s
        self._end_host_s = end_host_s
        self._losses = losses

    def seconds(self, layers: int, ends: bool, sms: int) -> float:
        """Of so many layers; with the embedding and the head where the group ``ends`` the pass."""
        return self._timed(layers, ends, sms)[0]

    def estimate(self, layers: int, ends: bool, sms: int) -> Estimate:
        """See ``LatencyModel.estimate``, also for errors."""
        return new(Estimate, self._timed(layers, ends, sms))

    def _timed(self, layers: int, ends: bool, sms: int) -> tuple[float, Source]:
        if not 0 < sms <= self._device_sms:
            raise bad_sms("sms", sms, self._device)
        if not 0 < layers <= self._table.model_layers:
            raise bad_layers(self.work(layers, ends), self._table.model_layers)
        seconds, _, source = self._batch.launch(layers, ends, sms)
        if self._costs is not None:
            layer_s, factor, _ = self._costs[sms]
            seconds = factor * seconds + layer_s * layers
        return seconds + (self._end_host_s if ends else self._host_s), source

    def beside(self, layers: int, ends: bool, requests: int, context: int) -> DecodeBeside:
        return DecodeBeside(self._model, self._table, self._losses, requests, context, self, layers, ends)

    def timed(self, sms: int) -> bool:
        """Whether it is known how long layers take on so many SMs."""
        return self._batch.timed(sms)

    def drawn(self, layers: int, ends: bool, sms: int) -> float:
        """Share of the whole device's DRAM peak that a group draws on so many SMs; 0 to 1."""
        moved = self._batch.cost(layers, ends)[1]
        return min(1.0, moved / self.seconds(layers, ends, sms) / self._table.dram_bytes_per_s)

    def work(self, layers: int, ends: bool) -> Work:
        """A group as a launch."""
        return new(Work, (self._chunks, 0, 0, layers, ends, 0, None))
