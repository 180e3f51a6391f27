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


class DecodeSplits(Protocol):
    """The next decode step of some requests on one split of the SMs after another, with other work on the rest."""

    def seconds(self, sms: int) -> float:
        """As ``estimate`` has it, on so many SMs with the other work on all others, or on one where none is left."""
        ...

    def bounds(self, sms: int) -> tuple[float, float]:
        """What ``seconds`` are no less and no more than, for less work where that is known."""
        ...


class EstimatedSplits:
    """The same of any latency model."""

    def __init__(self, latency: LatencyModel, requests: int, context: int, beside: Work) -> None:
        self._latency = latency
        self._work = Work((), requests, context)
        self._beside = beside

    def seconds(self, sms: int) -> float:
        rest = max(1, self._latency.device.sms - sms)
        return self._latency.estimate(self._work, sms, self._beside, rest).seconds

    def bounds(self, sms: int) -> tuple[float, float]:
        seconds = self.seconds(sms)
        return seconds, seconds


def decode_beside(latency: LatencyModel, requests: int, context: int, beside: Work) -> DecodeSplits:
    """So many requests' next step beside ``beside``; ``context`` is no less than ``requests``.

    A latency model with a method of this name answers for one split after another without a Work for each.
    """
    own: Callable[[int, int, Work], DecodeSplits] | None = getattr(latency, "decode_beside", None)
    return EstimatedSplits(latency, requests, context, beside) if own is None else own(requests, context, beside)


class PrefillPasses(Protocol):
    """Whole passes that prefill alone on some SMs, one after another."""

    def of(self, chunks: tuple[tuple[int, int], ...]) -> tuple[float, float]:
        """Seconds and FLOPs of a pass over these chunks, (new, cached) tokens each: as ``estimate`` and ``cost``."""
        ...

    def fewest_tokens(self, flops_per_s: float, sequences: int) -> int:
        """A pass of up to so many sequences without cached tokens that has fewer tokens does not reach this rate.

        0 where nobody can say without asking for each.
        """
        ...


class EstimatedPasses:
    """The same of any latency model."""

    def __init__(self, latency: LatencyModel, sms: int) -> None:
        self._latency = latency
        self._sms = sms

    def of(self, chunks: tuple[tuple[int, int], ...]) -> tuple[float, float]:
        work = Work(prefill=chunks)
        return self._latency.estimate(work, self._sms).seconds, self._latency.cost(work)[0]

    def fewest_tokens(self, flops_per_s: float, sequences: int) -> int:
        return 0


def prefill_passes(latency: LatencyModel, sms: int) -> PrefillPasses:
    """Those of a latency model that has a method of this name, which may know more; else what it estimates."""
    own: Callable[[int], PrefillPasses] | None = getattr(latency, "prefill_passes", None)
    return EstimatedPasses(latency, sms) if own is None else own(sms)


class PrefillGroups(Protocol):
    """Groups of layers of one batch of prompts, one after another, alone on some SMs."""

    def seconds(self, layers: int, ends: bool, sms: int) -> float:
        """``estimate`` of so many layers; ``ends`` for a group with the LM head."""
        ...


class EstimatedGroups:
    """The same of any latency model."""

    def __init__(self, latency: LatencyModel, chunks: tuple[tuple[int, int], ...]) -> None:
        self._latency = latency
        self._chunks = chunks

    def seconds(self, layers: int, ends: bool, sms: int) -> float:
        return self._latency.estimate(Work(self._chunks, layers=layers, head=ends), sms).seconds


def prefill_groups(latency: LatencyModel, chunks: tuple[tuple[int, int], ...]) -> PrefillGroups:
    """Those of a latency model that has a method of this name, which needs no Work for each; else what it estimates."""
    own: Callable[[tuple[tuple[int, int], ...]], PrefillGroups] | None = getattr(latency, "prefill_groups", None)
    return EstimatedGroups(latency, chunks) if own is None else own(chunks)
