"""A latency model put right by what was measured: its estimates times factors, plus the host's time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from profiler.latency import Estimate, LatencyModel
from profiler.specs import DeviceSpec, ModelSpec
from profiler.work import Work
from real.stepwise import kind_of

Key = tuple[str, int | None]
"""A kind of launch and the SMs it ran on; None: whatever they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrections:
    """What was measured, against a latency model.

    host_s: seconds of a launch of a kind outside the device, the model's own share of them not counted. kernels,
    contention: measured over predicted, of launches alone and of what a co-runner adds to that.
    outside_s: seconds that the model has in a launch of a kind for what is outside the device; not scaled.
    """

    host_s: Mapping[str, float] = field(default_factory=dict)
    kernels: Mapping[Key, float] = field(default_factory=dict)
    contention: Mapping[Key, float] = field(default_factory=dict)
    outside_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedModel:
    """A LatencyModel: another one's estimates put right."""

    inner: LatencyModel
    corrections: Corrections

    @property
    def model(self) -> ModelSpec:
        return self.inner.model

    @property
    def device(self) -> DeviceSpec:
        return self.inner.device

    @property
    def tensor_parallel(self) -> int:
        return self.inner.tensor_parallel

    def estimate(self, work: Work, sms: int, beside: Work | None = None, beside_sms: int = 0) -> Estimate:
        """The inner estimate, its device part times the factors of its kind and share, and the host's seconds."""
        seconds, source = self.inner.estimate(work, sms, beside, beside_sms)
        kind, known = kind_of(work), self.corrections
        outside_s = known.outside_s.get(kind, 0.0)
        share = 0 if kind == "transfer" else sms
        on_device = (seconds - outside_s) * factor(known.kernels, kind, share)
        if beside is not None:
            on_device *= factor(known.contention, kind, share)
        return Estimate(on_device + outside_s + known.host_s.get(kind, 0.0), source)

    def cost(self, work: Work) -> tuple[float, float]:
        """(FLOPs, bytes of DRAM traffic) of ``work``, per device."""
        return self.inner.cost(work)

    def ceilings(self, sms: int) -> tuple[float, float]:
        """Attainable (FLOP/s, bytes/s) of ``sms`` SMs."""
        return self.inner.ceilings(sms)

    def kv_capacity_tokens(self, memory_fraction: float) -> int:
        """KV tokens that fit; see LatencyModel."""
        return self.inner.kv_capacity_tokens(memory_fraction)


def factor(factors: Mapping[Key, float], kind: str, sms: int) -> float:
    """That of the kind on these SMs, else that of the kind, else 1."""
    found = factors.get((kind, sms))
    return factors.get((kind, None), 1.0) if found is None else found
