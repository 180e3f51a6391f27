"""The seam between whoever predicts a duration and whoever asks for one.

Declared below its callers because two rooms call it: policies plan with it, the simulator runs on it. The two
need not hold the same model: a policy with a wrong estimator on a right device is a what-if of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from profiler.specs import DeviceSpec, ModelSpec
from profiler.work import Work

Source = Literal["measured", "interpolated", "extrapolated", "roofline"]


class Estimate(NamedTuple):
    """A predicted duration in seconds, and what it rests on."""

    seconds: float
    source: Source


class LatencyModel(Protocol):
    """Predicts launches of one model on one instance (a device, or a tensor-parallel group of them)."""

    @property
    def model(self) -> ModelSpec: ...

    @property
    def device(self) -> DeviceSpec: ...

    @property
    def tensor_parallel(self) -> int:
        """Devices in the instance."""
        ...

    def estimate(self, work: Work, sms: int, beside: Work | None = None, beside_sms: int = 0) -> Estimate:
        """Duration of ``work`` on ``sms`` SMs, host overhead included, while ``beside`` runs on others.

        ``sms`` and ``beside_sms`` are counts per device, 1 to ``device.sms``. Raises ValueError outside that.
        KV transfers (``work.kv_transfer_tokens``) use the link and ignore ``sms``.
        """
        ...

    def cost(self, work: Work) -> tuple[float, float]:
        """(FLOPs, bytes of DRAM traffic) of ``work``, per device."""
        ...

    def ceilings(self, sms: int) -> tuple[float, float]:
        """(C_p, D_p): attainable FLOP/s and bytes/s of ``sms`` SMs of one device (paper, section 3.2)."""
        ...

    def kv_capacity_tokens(self, memory_fraction: float) -> int:
        """KV tokens that fit an instance when weights and KV may take this share of its memory.

        Raises ValueError, naming model and device, where the weights alone do not fit.
        """
        ...


Pace = Callable[[range], tuple[list[float], list[Source]]]
"""Durations of whole decode steps at these contexts, ascending and the new tokens included, and what each rests on."""


@runtime_checkable
class Paced(Protocol):
    """A latency model that answers for one decode step after another without a Work for each."""

    def decode_pace(self, requests: int, sms: int) -> Pace:
        """``estimate`` of so many requests' steps alone on ``sms`` SMs; asked with no context below ``requests``."""
        ...
