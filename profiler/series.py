"""Estimates of work that is much alike, one after another: what they have in common is looked up once.

What a scheduler plans by. Any latency model is asked for one estimate after another; a :class:`Serial` one has more to
go by than a Work for each. That is for the models of this package. They are classes, not protocols: compiled, a method
that a class is known to have is called without being looked up, and no class from outside can inherit from these.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from profiler.work import Work

if TYPE_CHECKING:
    from profiler.kernels import Chunks
    from profiler.latency import LatencyModel


class DecodeSplits:
    """The next decode step of some requests on one split of the SMs after another, with other work on the rest."""

    __slots__ = ()

    @abstractmethod
    def seconds(self, sms: int) -> float:
        """As ``estimate`` has it, on so many SMs with the other work on all others, or on one where none is left."""
        ...

    @abstractmethod
    def bounds(self, sms: int) -> tuple[float, float]:
        """What ``seconds`` are no less and no more than, for less work where that is known."""
        ...


class PrefillGroups:
    """Groups of layers of one batch of prompts, one after another, alone on some SMs or beside decode steps."""

    __slots__ = ()

    @abstractmethod
    def seconds(self, layers: int, ends: bool, sms: int) -> float:
        """``estimate`` of so many layers alone; ``ends`` for a group with the LM head."""
        ...

    @abstractmethod
    def beside(self, layers: int, ends: bool, requests: int, context: int) -> DecodeSplits:
        """So many requests' next step beside such a group; ``context`` is no less than ``requests``."""
        ...


class PrefillPasses:
    """Whole passes that prefill alone on some SMs, one after another."""

    __slots__ = ()

    @abstractmethod
    def of(self, chunks: Chunks) -> tuple[float, float]:
        """Seconds and FLOPs of a pass over these chunks, (new, cached) tokens each: as ``estimate`` and ``cost``."""
        ...

    @abstractmethod
    def fewest_tokens(self, flops_per_s: float, sequences: int) -> int:
        """A pass of up to so many sequences without cached tokens that has fewer tokens does not reach this rate.

        0 where nobody can say without asking for each.
        """
        ...


class Serial:
    """A latency model of this package that answers in series by what it has tabulated."""

    @abstractmethod
    def prefill_groups(self, chunks: Chunks) -> PrefillGroups:
        """See :func:`prefill_groups`."""
        ...

    @abstractmethod
    def prefill_passes(self, sms: int) -> PrefillPasses:
        """See :func:`prefill_passes`."""
        ...

    @abstractmethod
    def decode_beside(self, requests: int, context: int, beside: Work) -> DecodeSplits:
        """See :func:`decode_beside`."""
        ...


class EstimatedSplits(DecodeSplits):
    """Of any latency model."""

    __slots__ = ("_beside", "_latency", "_work")

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


class EstimatedGroups(PrefillGroups):
    """Of any latency model."""

    __slots__ = ("_chunks", "_latency")

    def __init__(self, latency: LatencyModel, chunks: Chunks) -> None:
        self._latency = latency
        self._chunks = chunks

    def seconds(self, layers: int, ends: bool, sms: int) -> float:
        return self._latency.estimate(Work(self._chunks, layers=layers, head=ends), sms).seconds

    def beside(self, layers: int, ends: bool, requests: int, context: int) -> DecodeSplits:
        return EstimatedSplits(self._latency, requests, context, Work(self._chunks, layers=layers, head=ends))


class EstimatedPasses(PrefillPasses):
    """Of any latency model."""

    __slots__ = ("_latency", "_sms")

    def __init__(self, latency: LatencyModel, sms: int) -> None:
        self._latency = latency
        self._sms = sms

    def of(self, chunks: Chunks) -> tuple[float, float]:
        work = Work(prefill=chunks)
        return self._latency.estimate(work, self._sms).seconds, self._latency.cost(work)[0]

    def fewest_tokens(self, flops_per_s: float, sequences: int) -> int:
        return 0


def prefill_groups(latency: LatencyModel, chunks: Chunks) -> PrefillGroups:
    """Of a batch of prompts, (new, cached) tokens each."""
    model: object = latency
    return model.prefill_groups(chunks) if isinstance(model, Serial) else EstimatedGroups(latency, chunks)


def prefill_passes(latency: LatencyModel, sms: int) -> PrefillPasses:
    """On so many SMs."""
    model: object = latency
    return model.prefill_passes(sms) if isinstance(model, Serial) else EstimatedPasses(latency, sms)


def decode_beside(latency: LatencyModel, requests: int, context: int, beside: Work) -> DecodeSplits:
    """So many requests' next step beside ``beside``; ``context`` is no less than ``requests``."""
    model: object = latency
    if isinstance(model, Serial):
        return model.decode_beside(requests, context, beside)
    return EstimatedSplits(latency, requests, context, beside)
