"""The SM-scaling roofline with waves (paper, section 3.2): the latency model that needs no measurement.

Kernel k with q blocks issuing f_b FLOPs each, and m bytes of DRAM traffic, takes on N_p of N SMs

    T = max(q f_b / C_p, m / D_p)                            the paper's flop / min(flop / mem * D_p, C_p)
    C_p = C_peak * efficiency * (N_p / N) * (1 - idle(q, N_p))
    D_p = D_peak * efficiency * min(1, N_p / N_d)

and kernels add up. To this come the host's overhead and, while something else runs, contention for DRAM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from profiler.kernels import Kernel, Shard
from profiler.latency import Estimate
from profiler.presets import device as device_preset
from profiler.presets import model as model_preset
from profiler.specs import DeviceSpec, DType, ModelSpec
from profiler.steptable import TABLE_ENTRIES, KernelTime, Peaks, StepTable
from profiler.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True)
class RooflineModel:
    """A LatencyModel computed from specifications alone; hashable, equal by settings, picklable.

    pass_overhead_s: host time of one pass over the model: scheduling, hand-over of sequences, sampled tokens back.
    launch_overhead_s: host time of one launch, a whole pass or a layer group: prediction, re-partition, enqueueing.
    reserve_tokens: the largest launch for whose activations memory is kept free.
    Both overheads are assumed; docs/latency.md says from what.
    """

    model: ModelSpec
    device: DeviceSpec
    tensor_parallel: int = 1
    efficiencies: Efficiencies = Efficiencies()
    pass_overhead_s: float = 0.25e-3
    launch_overhead_s: float = 0.05e-3
    reserve_tokens: int = 8192
    _shard: Shard = field(init=False, repr=False, compare=False)
    _table: StepTable = field(init=False, repr=False, compare=False)
    _beside_shares: dict[tuple[Work, int], float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("pass_overhead_s", "launch_overhead_s", "reserve_tokens"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        shard = Shard(self.model, self.device, self.tensor_parallel)
        efficiencies = self.efficiencies
        peak: dict[tuple[str, str], float] = {
            ("gemm", "bf16"): self.device.bf16_flops * efficiencies.gemm,
            ("attention", "bf16"): self.device.bf16_flops * efficiencies.attention,
            ("gemm", self.model.dtype): self.device.peak_flops(self.model.dtype) * efficiencies.gemm,
        }
        peaks = Peaks(peak, self.device.dram_bytes_per_s * efficiencies.bandwidth)
        object.__setattr__(self, "_shard", shard)
        object.__setattr__(self, "_table", StepTable(shard, peaks))
        object.__setattr__(self, "_beside_shares", {})

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        settings = tuple(getattr(self, part.name) for part in fields(self) if part.init)
        return type(self), settings

    def estimate(self, work: Work, sms: int, beside: Work | None = None, beside_sms: int = 0) -> Estimate:
        """Duration of ``work`` on ``sms`` SMs of each device, host overhead included. See LatencyModel.

        Beside other work, a launch that decodes has its DRAM-bound kernels slowed by 1 + ceiling * s, where s is
        the share of the DRAM's peak that ``beside`` draws when alone: min(1, bytes / seconds / D_peak). Launches
        that only prefill are not slowed (paper, section 3.2), nor are transfers, which slow nobody either.
        Where ``sms`` and ``beside_sms`` exceed the device together, the two take turns on the SMs they share, as if
        each had floor(its SMs * N / sum) of its own, at least one.
        """
        if work.kv_transfer_tokens:
            return Estimate(self._transfer_s(work), "roofline")
        if not 0 < sms <= self.device.sms:
            raise self._bad_sms("sms", sms)
        if beside is None or beside.kv_transfer_tokens:
            seconds, _ = self._table.launch(work, sms)
        else:
            seconds = self._contended_s(work, sms, beside, beside_sms)
        seconds += self.launch_overhead_s
        if work.head or work.layers is None:
            seconds += self.pass_overhead_s
        return Estimate(seconds, "roofline")

    def cost(self, work: Work) -> tuple[float, float]:
        """(useful FLOPs, bytes of DRAM traffic) of ``work``, per device; a transfer has neither."""
        if work.kv_transfer_tokens:
            return 0.0, 0.0
        return self._table.cost(work)

    def ceilings(self, sms: int) -> tuple[float, float]:
        """(C_p, D_p) of the paper: C_peak * N_p / N in FLOP/s, D_peak * min(1, N_p / N_d) in bytes/s."""
        device = self.device
        if not 0 < sms <= device.sms:
            raise self._bad_sms("sms", sms)
        compute = device.peak_flops(self.model.dtype) * sms / device.sms
        return compute, device.dram_bytes_per_s * min(1.0, sms / device.bandwidth_knee_sms)

    def kv_capacity_tokens(self, memory_fraction: float) -> int:
        """KV tokens that fit: memory * fraction, less weights and activations, over KV bytes of a token.

        Raises ValueError where nothing is left, saying what was needed.
        """
        if not 0 < memory_fraction <= 1:
            raise ValueError(f"memory_fraction is {memory_fraction}; it must be above 0 and at most 1")
        available = self.device.memory_bytes * memory_fraction
        weights = self.model.weight_bytes / self.tensor_parallel
        reserve = self.reserve_tokens * self._shard.activation_bytes_per_token
        tokens = int((available - weights - reserve) // self._shard.kv_bytes_per_token)
        if tokens < 1:
            raise ValueError(
                f"{self.model.name} does not fit {self.device.name} with tensor_parallel {self.tensor_parallel}: "
                f"weights {weights / 1e9:.1f} GB and activations {reserve / 1e9:.1f} GB of "
                f"{available / 1e9:.1f} GB a device (memory_fraction {memory_fraction}); take a larger device, more "
                f"tensor parallelism, an fp8 model or a larger memory_fraction"
            )
        return tokens

    def kernels_of(self, work: Work) -> list[Kernel]:
        """The kernels of a launch on one device; empty for a transfer."""
        return [] if work.kv_transfer_tokens else self._shard.kernels(work)

    def breakdown(self, work: Work, sms: int) -> list[KernelTime]:
        """Each kernel of a launch alone on ``sms`` SMs with its seconds: the sum behind ``estimate``."""
        if not 0 < sms <= self.device.sms:
            raise self._bad_sms("sms", sms)
        return [self._table.kernel_time(kernel, sms) for kernel in self.kernels_of(work)]

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
        if "efficiencies" in values:
            values["efficiencies"] = _spec(Efficiencies, "efficiencies", values["efficiencies"])
        return cls(**values)

    def _contended_s(self, work: Work, sms: int, beside: Work, beside_sms: int) -> float:
        total = self.device.sms
        if not 0 < beside_sms <= total:
            raise self._bad_sms("beside_sms", beside_sms)
        both = sms + beside_sms
        if both > total:
            sms = sms * total // both or 1
            beside_sms = beside_sms * total // both or 1
        seconds, dram_seconds = self._table.launch(work, sms)
        if not work.decode_requests:
            return seconds
        share = self._beside_shares.get((beside, beside_sms))
        if share is None:
            share = self._dram_share(beside, beside_sms)
        return seconds + self.device.contention_ceiling * share * dram_seconds

    def _dram_share(self, beside: Work, sms: int) -> float:
        """Share of the DRAM's peak that ``beside`` draws alone on ``sms`` SMs, 0 to 1."""
        seconds = self.estimate(beside, sms).seconds
        share = min(1.0, self.cost(beside)[1] / seconds / self.device.dram_bytes_per_s)
        if len(self._beside_shares) >= TABLE_ENTRIES:
            self._beside_shares.clear()
        self._beside_shares[beside, sms] = share
        return share

    def _transfer_s(self, work: Work) -> float:
        if work.kv_transfer_tokens < 0 or work.prefill or work.decode_requests:
            raise ValueError(f"a KV transfer moves 1 or more tokens and has nothing else in it; got {work}")
        moved = work.kv_transfer_tokens * self._shard.kv_bytes_per_token
        return self.device.link_latency_s + moved / self.device.link_bytes_per_s

    def _bad_sms(self, name: str, value: int) -> ValueError:
        return ValueError(f"{name} is {value}; {self.device.name} has SMs 1 to {self.device.sms}")


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
    return RooflineModel(spec, hardware, tensor_parallel, efficiencies or Efficiencies())


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
