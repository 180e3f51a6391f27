"""The highest rate that keeps an SLO, by bracketing and bisection, repeated over seeds until chance is small enough.

A seed is one draw of traffic. Runs of one seed at different rates have the same requests in the same order with the
gaps between them stretched, so nothing changes but the rate. The search has two stages.

1. One seed alone: rates are doubled or halved until the run keeps the target attainment at one and not at the next, and
   then bisected to within a tenth. Such a run says yes or no and stops as soon as that is certain (:mod:`sim.verdict`).
2. From there the mean attainment A over seeds is bracketed and bisected to within the tolerance. At each rate seeds are
   added, two or more, until Student's t interval of A lies on one side of the target, or there are as many as there may
   be; seeds of so few requests that all could meet the SLO by chance say nothing. The capacity is where the line
   between the last two rates meets the target, as the knee of a sweep is.

An overloaded run is stopped once so many have missed that its attainment is at most a floor below the target, and
counts as the floor. That is sound: the mean of max(A, floor) is no less than that of A, so if it is below the target
then A is. Where it is not, seeds differ by so much that it matters how bad the bad ones are: those that were stopped
are run again to their end. Looking S - 1 times, each interval is at a
confidence of 1 - (1 - c) / (S - 1) on either side, so that all together err no more often than one at c would.

A run is judged by the requests that arrive between a warm-up, in which queues and batches fill, and a drain, in which
the last requests have the device to themselves. Both are shares of the span of arrivals, so that the same requests are
judged at every rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from sim.config import RunConfig
from sim.intervals import interval
from sim.metrics import TARGET_ATTAINMENT, has_limits
from sim.outlook import Outlook, halvings
from sim.verdict import Cut, Verdict, judge
from traces.progress import Progress, untold

LOWEST_PER_GPU, HIGHEST_PER_GPU = 1e-3, 1e5
"""Requests/s between which a capacity is looked for."""
FIRST_PER_GPU = 4.0
COARSE = 1.1
REFINEMENTS = 2
FINEST = 1e-4
LEAST_SEEDS, MOST_SEEDS = 2, 1000

Tell = Callable[[str], None]
Decision = Literal["kept", "missed", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be kept, and how sure the answer has to be.

    target: share of judged requests that meet the SLO. tolerance: of the rate, as a share of it. confidence: of each
    "kept" and "missed". seeds: the most runs a rate. warmup, drain: shares of the span of arrivals whose requests are
    served and not judged.
    """

    target: float = TARGET_ATTAINMENT
    tolerance: float = 0.02
    confidence: float = 0.95
    seeds: int = 5
    warmup: float = 0.1
    drain: float = 0.1

    def __post_init__(self) -> None:
        for name in ("target", "confidence", "tolerance"):
            value = getattr(self, name)
            if not 0 < value < 1 and not (name == "target" and value == 1):
                raise ValueError(f"{name} is {value:g}; give a share above 0 and below 1, such as 0.9")
        if self.tolerance < FINEST:
            raise ValueError(f"tolerance is {self.tolerance:g}; rates are told apart down to {FINEST:g} of them")
        if not 2 <= self.seeds <= MOST_SEEDS:
            raise ValueError(f"seeds is {self.seeds}; an interval needs 2 or more, and {MOST_SEEDS} are the most")
        if not (self.warmup >= 0 and self.drain >= 0 and self.warmup + self.drain < 1):
            raise ValueError(
                f"warm-up {self.warmup:g} and drain {self.drain:g} leave nothing to judge; give shares of 0 or more,"
                " below 1 in all"
            )

    @property
    def floor(self) -> float:
        """The attainment below which it makes no difference how bad a run is."""
        return self.target - max(1 - self.target, 0.01)

    @property
    def look_confidence(self) -> float:
        """Of a two-sided interval whose either side is as sure as one of all looks must be."""
        return 1 - 2 * (1 - self.confidence) / (self.seeds - 1)

    @property
    def fewest_judged(self) -> int:
        """Judged requests of all seeds with which the least chance, that all meet the SLO or none, says enough.

        Requests that meet it with a probability of the target all do so with target^n, which has to be improbable. A
        target of 1 is taken for 0.99: no number of requests shows that every one will.
        """
        share = min(max(self.target, 1 - self.target), 0.99)
        return math.ceil(math.log((1 - self.look_confidence) / 2) / math.log(share))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Runs of several seeds under one setting: their attainments, those of stopped ones the floor, and what follows."""

    rate: float
    attainments: tuple[float, ...]
    decision: Decision

    @property
    def mean(self) -> float:
        return fmean(self.attainments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Requests/s over all GPUs.

    rate: the estimate; 0 where no rate keeps the SLO, infinite where all do. kept, missed: the highest rate that is
    kept and the lowest that is missed with the confidence asked for, of those tried; None where none is. points: what
    was tried with several seeds, by rate.
    """

    rate: float
    kept: float | None
    missed: float | None
    points: tuple[Point, ...]


@dataclass(slots=True)
class Tested:
    """What it took: runs, those stopped early among them, and how many judged requests were served."""

    simulations: int = 0
    stopped: int = 0
    requests: int = 0


@dataclass(slots=True)
class Search:
    """Asks runs whether they keep the SLO, and counts what that takes; ``tell`` hears of each.

    progress: hears the share of the run under way that is over. outlook: how many runs there will be yet.

    Raises ValueError for settings that cannot run, and where there is no SLO.
    """

    question: Question
    tell: Tell = lambda text: None
    progress: Progress = untold
    tested: Tested = field(default_factory=Tested)
    outlook: Outlook = field(default_factory=Outlook)

    def keeps(self, config: RunConfig) -> bool:
        """Whether this one run keeps the target."""
        return self._judged(config, self.question.target, to_the_end=False).kept

    def decide(self, config: RunConfig) -> Point:
        """Whether the SLO is kept by the mean over seeds, from that of ``config`` on."""
        question = self.question
        found: list[float] = []
        stopped: list[int] = []
        judged = 0
        decision: Decision = "undecided"
        while decision == "undecided" and len(found) < question.seeds:
            verdict = self._judged(_seeded(config, len(found)), question.floor, to_the_end=True)
            if not verdict.kept:
                stopped.append(len(found))
            judged += verdict.judged
            found.append(verdict.met / verdict.judged if verdict.kept else question.floor)
            decision = self._decided(found, judged, whole=not stopped)
        if decision == "undecided" and stopped and fmean(found) >= question.target:
            for place in stopped:
                verdict = self._judged(_seeded(config, place), 0.0, to_the_end=True)
                found[place] = verdict.met / verdict.judged
            decision = self._decided(found, judged, whole=True)
        return Point(rate=config.rate or math.nan, attainments=tuple(found), decision=decision)

    def _decided(self, attainments: list[float], judged: int, *, whole: bool) -> Decision:
        """What they say. Runs that were stopped, so that not all are ``whole``, never say that a rate is kept."""
        question = self.question
        if len(attainments) > 1 and judged >= question.fewest_judged:
            mean = interval(attainments, question.look_confidence)
            if mean.low >= question.target and whole:
                return "kept"
            if mean.high < question.target:
                return "missed"
        return "undecided"

    def capacity(self, config: RunConfig, first: float | None = None) -> Capacity:
        """The capacity of what ``config`` describes, searched from the rate ``first`` and from its seed on."""
        with self.outlook.followed_by(self.least_points):
            kept, missed = self.bracket(config, first or config.rate or FIRST_PER_GPU * config.gpus)
        if kept == 0.0 or math.isinf(missed):
            self.outlook.foresee(0, least=False)
            return Capacity(rate=kept if kept == 0.0 else math.inf, kept=None, missed=None, points=())
        points = _Points(self, config)
        self.outlook.foresee(self.least_points, least=True)
        low, high = points.around(math.sqrt(kept * missed))
        while high.rate / low.rate > 1 + self.question.tolerance:
            self._foresee(points.all, high.rate / low.rate)
            middle = points.at(math.sqrt(low.rate * high.rate))
            low, high = (middle, high) if middle.mean >= self.question.target else (low, middle)
        self._foresee(points.all, high.rate / low.rate)
        points.refine()
        self.outlook.foresee(0, least=False)
        share = (low.mean - self.question.target) / (low.mean - high.mean)
        return Capacity(
            rate=low.rate + share * (high.rate - low.rate),
            kept=max((point.rate for point in points.all if point.decision == "kept"), default=None),
            missed=min((point.rate for point in points.all if point.decision == "missed"), default=None),
            points=tuple(points.all),
        )

    def _foresee(self, points: list[Point], width: float) -> None:
        """What it takes to halve ``width``, and to refine, with as many seeds a rate as so far."""
        rates = halvings(width, 1 + self.question.tolerance) + REFINEMENTS
        self.outlook.foresee(round(rates * fmean(len(point.attainments) for point in points)), least=False)

    @property
    def least_points(self) -> int:
        """The fewest runs of a search for a rate once it is bracketed: two around it, and those between them."""
        return LEAST_SEEDS * (2 + halvings(math.sqrt(COARSE), 1 + self.question.tolerance))

    @property
    def least_runs(self) -> int:
        """The fewest of a whole one."""
        return 2 + halvings(2, COARSE) + self.least_points

    def bracket(self, config: RunConfig, first: float, width: float = COARSE) -> tuple[float, float]:
        """A rate at which the one seed of ``config`` keeps the target, and one up to ``width`` times it where not.

        (0, rate) where it keeps it at none, (rate, infinity) where at all. ValueError for a rate beyond any looked for.
        """
        kept, missed, rate = 0.0, math.inf, typed(first)
        lowest, highest = LOWEST_PER_GPU * config.gpus, HIGHEST_PER_GPU * config.gpus
        if not lowest <= rate <= highest:
            raise ValueError(f"rate is {rate:g}; begin the search at one from {lowest:g} to {highest:g} requests/s")
        while lowest <= rate <= highest and not (kept > 0 and missed / kept <= width):
            unknown = (kept == 0.0) + math.isinf(missed)
            self.outlook.foresee(unknown + halvings(2.0 if unknown else missed / kept, width), least=True)
            if self.keeps(config.model_copy(update={"rate": rate})):
                kept = rate
            else:
                missed = rate
            rate = typed(kept * 2 if math.isinf(missed) else missed / 2 if kept == 0.0 else math.sqrt(kept * missed))
        return kept, missed

    def _judged(self, config: RunConfig, target: float, *, to_the_end: bool) -> Verdict:
        if not has_limits(config.slo.value()):
            raise ValueError("there is no SLO to keep; give a limit, such as --slo-tpot 0.1")
        cut = Cut(warmup=self.question.warmup, drain=self.question.drain)
        asked = config.model_copy(update={"trace_sha256": None})
        found = judge(asked, target, cut, to_the_end=to_the_end, progress=self.progress)
        self.tested.simulations += 1
        self.outlook.ran()
        self.tested.stopped += found.stopped_s is not None
        self.tested.requests += found.met + found.missed
        self._check_evidence(found.judged)
        late = f"{found.missed} of {found.judged} late"
        early = "" if found.stopped_s is None else f", stopped at {found.stopped_s:.0f} s"
        self.tell(f"{config.rate:g} requests/s, seed {config.seed}: {late}{early}")
        return found

    def _check_evidence(self, judged: int) -> None:
        """Raises ValueError where runs of so many judged requests could never decide anything."""
        question = self.question
        if judged * question.seeds < question.fewest_judged:
            raise ValueError(
                f"{question.seeds} seeds of {judged} judged requests cannot show an attainment of {question.target:g}"
                f" at a confidence of {question.confidence:g}, which takes {question.fewest_judged} in all; serve more"
                " (--requests), or allow more --seeds"
            )


class _Points:
    """The rates tried with several seeds."""

    def __init__(self, search: Search, config: RunConfig) -> None:
        self._search, self._config = search, config
        self._found: dict[float, Point] = {}

    @property
    def all(self) -> list[Point]:
        """By rate."""
        return [self._found[rate] for rate in sorted(self._found)]

    def at(self, rate: float) -> Point:
        rate = typed(rate)
        if rate not in self._found:
            self._found[rate] = self._search.decide(self._config.model_copy(update={"rate": rate}))
        return self._found[rate]

    def around(self, rate: float) -> tuple[Point, Point]:
        """Neighbours, a step apart, at the lower of which the mean is the target or more, and at the higher less."""
        step, target = math.sqrt(COARSE), self._search.question.target
        gpus = self._config.gpus
        point = self.at(rate)
        while LOWEST_PER_GPU * gpus < point.rate < HIGHEST_PER_GPU * gpus:
            up = point.mean >= target
            further = self.at(point.rate * step if up else point.rate / step)
            if (further.mean >= target) is not up:
                return (point, further) if up else (further, point)
            point, step = further, min(step**2, 2.0)
        raise ValueError(
            f"one seed is near its limit at {rate:g} requests/s and the mean of all at no rate: seeds differ too much;"
            " serve more requests"
        )

    def refine(self) -> None:
        """Looks for a rate that is certainly missed, and for a higher one that is certainly kept.

        The latter between the highest so far and the next that was tried.
        """
        if all(point.decision != "missed" for point in self.all):
            self.at(self.all[-1].rate * COARSE)
        for _ in range(REFINEMENTS):
            kept = max((point.rate for point in self.all if point.decision == "kept"), default=None)
            if kept is None:
                self.at(self.all[0].rate / COARSE)
                continue
            following = min((point.rate for point in self.all if point.rate > kept), default=kept)
            if following / kept <= 1 + self._search.question.tolerance:
                return
            self.at(math.sqrt(kept * following))


def _seeded(config: RunConfig, place: int) -> RunConfig:
    return config.model_copy(update={"seed": config.seed + place})


def typed(rate: float) -> float:
    """The rate to 6 digits: one that can be typed and repeated."""
    return float(f"{rate:.6g}")
