"""The SM-scaling roofline with waves (paper, section 3.2): the latency model that needs no measurement.

Kernel k with q blocks issuing f_b FLOPs each, and m bytes of DRAM traffic, takes on N_p of N SMs

    T = max(q f_b / C_p, m / D_p)                            the paper's flop / min(flop / mem * D_p, C_p)
    C_p = C_peak * efficiency * (N_p / N) * (1 - idle(q, N_p))
    D_p = D_peak * efficiency * min(1, N_p / N_d)

and kernels add up. To this come the host's overhead and, while something else runs, contention for DRAM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from profiler.composition import LayerCosts
from profiler.kernels import Shard
from profiler.kernelsum import KernelSumModel
from profiler.kerneltime import KernelClock, sharp_bandwidth
from profiler.presets import device as device_preset
from profiler.presets import model as model_preset
from profiler.specs import DeviceSpec, DType, ModelSpec
from profiler.steptable import StepTable


@dataclass(frozen=True, kw_only=True)
class Efficiencies:
    """Shares of the peaks that kernels reach, waves apart. docs/latency.md derives the defaults.

    gemm, attention: of the tensor cores' peak. bandwidth: of the DRAM's peak.
    """

    gemm: float = 0.86
    attention: float = 0.62
    bandwidth: float = 0.80

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            if not 0 < value <= 1:
                raise ValueError(f"efficiency {part.name} is {value}; it must be above 0 and at most 1")


@dataclass(frozen=True, kw_only=True)
class RooflineModel(KernelSumModel):
    """A LatencyModel computed from specifications alone; hashable, equal by settings, picklable.

    Its overheads are assumed; docs/latency.md says from what.
    """

    efficiencies: Efficiencies = Efficiencies()

    def _make_table(self, shard: Shard) -> StepTable:
        device, shares = shard.device, self.efficiencies
        flops = {
            ("gemm", "bf16"): device.bf16_flops * shares.gemm,
            ("attention", "bf16"): device.bf16_flops * shares.attention,
            ("gemm", self.model.dtype): device.peak_flops(self.model.dtype) * shares.gemm,
        }
        return StepTable(shard, KernelClock(device, flops, sharp_bandwidth(device, shares.bandwidth)))

    def _contention(self, decodes: bool) -> tuple[float, float]:
        return 0.0, self.device.contention_ceiling if decodes else 0.0

    def settings(self) -> dict[str, Any]:
        """Everything that makes this model, as JSON types; ``from_settings`` makes it again."""
        return {part.name: _plain(getattr(self, part.name)) for part in fields(self) if part.init}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """The model that ``settings`` described. Raises ValueError naming an unknown or missing field."""
        known = {part.name for part in fields(cls) if part.init}
        values = dict(settings)
        _check_fields("latency model", values, known, {"model", "device"})
        values["model"] = _spec(ModelSpec, "model", values["model"])
        values["device"] = _spec(DeviceSpec, "device", values["device"])
        if values.get("whole") is not None:
            values["whole"] = _spec(DeviceSpec, "whole", values["whole"])
        if "efficiencies" in values:
            values["efficiencies"] = _spec(Efficiencies, "efficiencies", values["efficiencies"])
        if "layer_costs" in values:
            values["layer_costs"] = LayerCosts.of(*values["layer_costs"])
        return cls(**values)


def roofline(
    model: str | Path | ModelSpec,
    device: str | DeviceSpec,
    tensor_parallel: int = 1,
    *,
    dtype: DType | None = None,
    efficiencies: Efficiencies | None = None,
) -> RooflineModel:
    """A roofline model from names (or specs); ``dtype`` overrides that of the model's linear layers.

    Raises ValueError for unknown names, and where model and device do not go together.
    """
    spec = model if isinstance(model, ModelSpec) else model_preset(model)
    if dtype is not None:
        spec = replace(spec, dtype=dtype)
    hardware = device if isinstance(device, DeviceSpec) else device_preset(device)
    return RooflineModel(
        model=spec, device=hardware, tensor_parallel=tensor_parallel, efficiencies=efficiencies or Efficiencies()
    )


def _plain(value: Any) -> Any:
    if not isinstance(value, ModelSpec | DeviceSpec | Efficiencies):
        return value
    return {key: dict(item) if key == "sources" else item for key, item in asdict(value).items()}


def _spec(cls: type[Any], name: str, data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise ValueError(f"latency model {name} is {data!r}; it must be a mapping of its fields")
    required = {part.name for part in fields(cls) if part.default is part.default_factory}
    _check_fields(f"latency model {name}", data, {part.name for part in fields(cls)}, required)
    values = dict(data)
    if "sources" in values:
        values["sources"] = tuple(values["sources"].items())
    return cls(**values)


def _check_fields(what: str, data: Mapping[str, Any], known: set[str], required: set[str]) -> None:
    for name in data:
        if name not in known:
            raise ValueError(f"{what} has an unknown field {name!r}; known: {', '.join(sorted(known))}")
    for name in sorted(required - data.keys()):
        raise ValueError(f"{what} lacks the field {name!r}")
