"""A latency model with measured kernels: the same sum over the same formula, times what measurements add to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from profiler.commoncores import Shared, shared
from profiler.devicecalibration import DeviceCalibration, built_in, built_in_names, load_calibration
from profiler.kernels import Kernel, Shard
from profiler.kernelsum import KernelSumModel
from profiler.layertable import Prepared
from profiler.presets import model as model_preset
from profiler.shardcalibration import ShardCalibration
from profiler.specs import DType, ModelSpec
from profiler.steptable import StepTable, line_knots
from profiler.work import Work


@dataclass(frozen=True, kw_only=True)
class FittedModel(KernelSumModel):
    """A LatencyModel of any model on a calibrated device."""

    calibration: DeviceCalibration

    def _make_table(self, shard: Shard) -> StepTable:
        calibration = tabulated(self.calibration)
        # The trees answer for all sizes of a kernel at once: now, not while requests wait.
        for kernel in shard.kernels(Work(((1, 0),), 1, 1)):
            calibration.alphas(kernel)
        return StepTable(shard, calibration.clock, calibration, beforehand(self.calibration, shard))

    def _contention(self, decodes: bool) -> tuple[float, float]:
        found = self.calibration.contention
        return (found.decode_any, found.decode) if decodes else (found.prefill_any, found.prefill)

    def _shared_cores(self) -> tuple[Shared, ...]:
        found = self.calibration
        return shared(found.contention.table, found.device.sms) if found.device.in_step else ()


@lru_cache(maxsize=8)
def tabulated(calibration: DeviceCalibration) -> ShardCalibration:
    """One for all models on a device: its grids depend on kernels' dimensions alone, so that the cells of a sweep ask
    the trees once, not once a cell."""
    return ShardCalibration(calibration)


@lru_cache(maxsize=8)
def beforehand(measured: DeviceCalibration, shard: Shard) -> Prepared:
    """One for all of a model's instances."""
    calibration = tabulated(measured)

    def calibrated(kernels: list[Kernel]) -> list[Kernel]:
        return [calibration.calibrated(kernel) for kernel in kernels]

    return Prepared(shard, calibration.clock, calibrated, line_knots(shard, calibration), calibration.outside_layers)


def fitted(
    model: str | Path | ModelSpec,
    calibration: str | Path | DeviceCalibration,
    tensor_parallel: int = 1,
    *,
    dtype: DType | None = None,
) -> FittedModel:
    """A fitted model from names: of a model (or its spec), and of a calibrated device (or the file ``fit`` wrote).

    Raises ValueError for unknown names, a file that is no latency model, and where model and device do not go
    together.
    """
    spec = model if isinstance(model, ModelSpec) else model_preset(model)
    if dtype is not None:
        spec = replace(spec, dtype=dtype)
    measured = calibration if isinstance(calibration, DeviceCalibration) else _calibration(calibration)
    measured.device.peak_flops(spec.dtype)
    return FittedModel(
        model=spec,
        device=measured.device,
        tensor_parallel=tensor_parallel,
        pass_overhead_s=measured.host.pass_s,
        launch_overhead_s=measured.host.launch_s,
        layer_costs=measured.composition.costs,
        calibration=measured,
    )


def _calibration(name: str | Path) -> DeviceCalibration:
    """A built-in one by its device's name, in any case; else a file."""
    known = {device.lower(): device for device in built_in_names()}
    found = built_in(known[name.lower()]) if isinstance(name, str) and name.lower() in known else None
    return found if found is not None else load_calibration(Path(name))
