"""Whether one run keeps an SLO, found out with no more simulation than the answer takes.

Let J requests be judged (those that arrive in the window) and K be the fewest that must meet the SLO for an attainment
of the target: the smallest K with K / J >= target. A run keeps the SLO if K or more meet both limits. So it is decided
once K have met them, and once more than J - K have not: whatever comes after changes nothing, and the run stops there.
Rejected requests miss, and so do those that are unfinished when a run is cut off at ``until_s``.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

from policies.slo import SLO
from sim.config import RunConfig
from sim.loop import ServingLoop
from sim.metrics import Window
from sim.simulate import prepare
from traces import OpenArrivals, Request
from traces.progress import Progress, untold
from traces.request import FloatColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Shares of the span of arrivals, at its start and at its end, whose requests are served and not judged."""

    warmup: float
    drain: float

    def window(self, arrival_s: FloatColumn) -> Window:
        """The same in seconds, for arrivals of shape (n,) in order."""
        span_s = float(arrival_s[-1] - arrival_s[0]) if len(arrival_s) else 0.0
        return Window(warmup_s=self.warmup * span_s, drain_s=self.drain * span_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``kept``: whether the run keeps the SLO; ``met`` and ``missed`` of the ``judged`` requests when that was certain.

    window: what was judged. stopped_s: the simulated second at which the run was stopped; None where it went on to its
    end.
    """

    kept: bool
    judged: int
    met: int
    missed: int
    window: Window
    stopped_s: float | None


class _Certain(Exception):
    """Ends a run whose outcome is known."""


class _Watched:
    """The arrivals of a trace; hears of every request that leaves, counts, and raises _Certain when it can."""

    def __init__(self, arrivals: OpenArrivals, judged: list[bool], slo: SLO, *, enough: float, spare: int) -> None:
        self._arrivals, self._judged, self._slo = arrivals, judged, slo
        self._enough, self._spare = enough, spare
        self.met = self.missed = 0
        self.stopped_s: float | None = None
        self.loop: ServingLoop | None = None

    def peek_s(self) -> float | None:
        return self._arrivals.peek_s()

    def pop(self) -> Request:
        return self._arrivals.pop()

    def finished(self, index: int, now_s: float) -> None:
        if not self._judged[index]:
            return
        if self._meets(index):
            self.met += 1
        else:
            self.missed += 1
        if self.met >= self._enough or self.missed > self._spare:
            self.stopped_s = now_s
            raise _Certain

    def _meets(self, index: int) -> bool:
        assert self.loop is not None
        request = self.loop.requests[index]
        first_s, last_s, gaps = request.first_token_s, request.emitted_s, request.emitted - 1
        if first_s is None or last_s is None:  # rejected
            return False
        tpot_s = (last_s - first_s) / gaps if gaps else 0.0
        limit_s = self._slo.ttft_limit_s(request.prompt_tokens)
        return first_s - request.arrival_s <= limit_s and tpot_s <= self._slo.tpot_limit_s


def judge(
    config: RunConfig,
    target: float,
    cut: Cut | None = None,
    *,
    to_the_end: bool = False,
    progress: Progress = untold,
) -> Verdict:
    """Whether a run of ``config`` has an attainment of ``target`` or more in its window, or in what ``cut`` leaves.

    ``to_the_end``: a run that keeps the target goes on to its end, so that all of its judged requests are counted.
    ``progress`` hears the share of its requests that have finished.

    Raises ValueError as :func:`sim.simulate.prepare` does, and where no request is judged.
    """
    prepared = prepare(config)
    applied = prepared.arrivals.apply(prepared.trace, config.seed)
    arrivals = applied.arrival_s
    assert arrivals is not None
    coming = arrivals if config.until_s is None else arrivals[arrivals < config.until_s]
    window = config.window.value() if cut is None else cut.window(coming)
    judged = [*window.inside(coming).tolist(), *[False] * (len(arrivals) - len(coming))]
    count = sum(judged)
    if not count:
        raise ValueError(f"of {len(judged)} requests none is judged; serve more, or cut less at both ends")
    needed = needed_of(count, target)
    enough = math.inf if to_the_end else needed
    watched = _Watched(OpenArrivals(applied), judged, config.slo.value(), enough=enough, spare=count - needed)
    watched.loop = prepared.loop(source=watched, progress=lambda finished, now_s: progress(finished / len(arrivals)))
    with suppress(_Certain):
        watched.loop.run()
    return Verdict(
        kept=watched.met >= needed,
        judged=count,
        met=watched.met,
        missed=watched.missed,
        window=window,
        stopped_s=watched.stopped_s,
    )


def needed_of(count: int, target: float) -> int:
    """The fewest of ``count`` requests whose share is ``target`` or more, in the arithmetic of attainment itself."""
    needed = math.ceil(target * count)
    while needed > 0 and (needed - 1) / count >= target:
        needed -= 1
    while needed / count < target:
        needed += 1
    return needed
