"""The seam between the serving loop and whatever runs its steps: a simulated clock or a device."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from policies.api import RequestProgress, Step
from profiler.latency import Estimate, LatencyModel
from profiler.work import Work

NEVER = float("inf")
"""The time of what does not come."""


class Launch(NamedTuple):
    """A step on its way to an instance. ``predicted`` is ``predictor``'s estimate beside the co-runner it starts with.

    ``source`` is the instance that a KV transfer reads from, None for anything else. ``waiting`` and ``free_blocks``
    are the instance's as the step leaves. ``decoding`` are those that take a decode step in it, for a
    :class:`KVHolder`; others are not told. ``delay_s`` passes before it runs, in a virtual time that has to be told.
    """

    launch_id: int
    instance: int
    step: Step
    work: Work
    start_s: float
    beside: Work | None
    beside_sms: int
    predicted: Estimate
    predictor: LatencyModel
    waiting: int
    free_blocks: int
    source: int | None = None
    decoding: tuple[RequestProgress, ...] = ()
    delay_s: float = 0.0

    @property
    def predicted_s(self) -> float:
        """Predicted seconds from launch to end."""
        return self.predicted.seconds + self.delay_s


class Completion(NamedTuple):
    """A launch that has ended, and when."""

    launch_id: int
    end_s: float


class Executor(Protocol):
    """Owns time and the device. Recording its answers and giving them again replays a run exactly."""

    def now(self) -> float:
        """Seconds since the run's start."""
        ...

    def start(self, launch: Launch) -> None:
        """Begins a launch; returns without waiting for it.

        In virtual time it may have begun earlier, where nothing else runs on its SMs.
        """
        ...

    def next(self, until_s: float | None) -> Completion | None:
        """Waits for the first completion at or before ``until_s`` (None: for as long as it takes).

        A completion at ``until_s`` itself comes before it. None means that ``until_s`` was reached, or that nothing
        is running and no ``until_s`` was given.
        """
        ...


@runtime_checkable
class KVHolder(Protocol):
    """An executor that computes: it keeps real KV, and is told when that of a request has served."""

    def release(self, request: int, instance: int) -> None:
        """The request's KV on the instance is not needed any more: it has finished, moved or given way."""
        ...


@runtime_checkable
class Coaster(Protocol):
    """An executor with a virtual clock, which can jump over a step of an instance that runs nothing else.

    It can where instances are ``independent``: where what one runs slows no other.
    """

    @property
    def independent(self) -> bool:
        """Whether it is so in this run."""
        ...

    @property
    def truth(self) -> LatencyModel:
        """What steps run by."""
        ...

    def first_end_s(self) -> float:
        """No launch in flight ends before it; infinity with none in flight."""
        ...

    def jump(self, to_s: float) -> None:
        """Sets the clock forward, to before the first end."""
        ...
