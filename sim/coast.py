"""Decode steps of an instance while nothing can happen between them, without a launch for each.

It needs the policy's ``again``. A step then does what asking and launching anew would do: its duration follows from the
context, its KV from the counters of the cohort.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import sub
from typing import Final

from policies.api import Step
from profiler.latency import LatencyModel, Source
from profiler.pacer import Pacer
from profiler.work import Overlap
from sim.instance import Instance
from sim.launch import NEVER
from sim.observed import CoastedSteps
from sim.state import NOBODY, DecodeCohort, RequestState
from sim.tally import Tally

UNKNOWN: Final = -NEVER

MOST_STEPS: Final = 256
"""Steps that are planned at once."""

new: Final = tuple.__new__


def only_decodes(step: Step) -> bool:
    """Whether a step that the policy would give again is a decode step and nothing else."""
    overlap = step.overlap
    sound = overlap is None or isinstance(overlap, Overlap)
    alone = step.decode and not step.prefill and step.layers is None and step.transfer is None
    return sound and alone and step.again and not (step.preempt or step.suspend or step.stream)


class Coasting:
    """A decode step that an instance repeats: ``taken`` times so far, the last time until ``now_s``.

    The next one ends at ``end_s``, once that is known, and is launch ``number`` if it becomes one. ``stopped``: a
    request has ended, or KV is short for the next.
    """

    __slots__ = ("end_s", "instance", "now_s", "number", "step", "stopped", "taken")

    def __init__(self, instance: Instance, step: Step, now_s: float, number: int = -1) -> None:
        self.instance = instance
        self.step = step
        self.now_s = now_s
        self.number = number
        self.end_s = UNKNOWN
        self.taken = 0
        self.stopped = False


Planned = tuple[range, list[float], list[Source], list[float], list[int]]
"""Steps that may come: their contexts, predicted seconds and sources; when the first begins and when each ends; and KV
blocks free before the first and after each, below 0 where they are short."""


class Coast:
    """``truth`` is what steps run by, ``latency`` what is predicted.

    ``check`` is called after each step, where there is one.
    """

    def __init__(
        self, *, truth: LatencyModel, tally: Tally, latency: LatencyModel, check: Callable[[], None] | None
    ) -> None:
        self._tally = tally
        self._predictor = Pacer(latency)
        self._truth = None if truth is latency else Pacer(truth)
        self._check = check
        self._pace_s = 0.01

    def run(
        self, coasting: Coasting, *, begin_s: float = NEVER, end_s: float = NEVER, before_s: float = NEVER
    ) -> Sequence[RequestState]:
        """Steps that begin before ``begin_s``, end by ``end_s`` and before ``before_s``.

        The requests that got their last token in the last one. It stops there, and where KV runs short.
        """
        check, bound_s = self._check, min(begin_s, end_s, before_s)
        more, ended = True, NOBODY
        while more:
            planned = self._plan(coasting, bound_s)
            contexts, _, _, times_s, free_blocks = planned
            count = len(contexts)
            steps = count
            if times_s[-1] >= bound_s:
                in_time = min(bisect_right(times_s, end_s), bisect_left(times_s, before_s)) - 1
                steps = min(count, max(0, in_time), bisect_left(times_s, begin_s))
            if free_blocks[-1] < 0:
                short = next(place for place, free in enumerate(free_blocks) if free < 0)
                coasting.stopped = short <= steps + 1
                steps = min(steps, short - 1)
            if steps < count:
                coasting.end_s = times_s[steps + 1]
            if steps:
                ended = self._take(coasting, planned, steps)
                if check is not None and not ended:
                    check()
            more = steps == count and not coasting.stopped
        return ended

    def _plan(self, coasting: Coasting, bound_s: float) -> Planned:
        """The next steps if nothing stops them: until somebody ends, and some more than come before ``bound_s``."""
        step, instance, now = coasting.step, coasting.instance, coasting.now_s
        cohort, size = instance.cohort, instance.ledger.block_tokens
        decodes = len(cohort.members)
        count = self._steps_ahead(cohort, bound_s - now)
        first = cohort.context_tokens + decodes
        contexts = range(first, first + count * decodes, decodes)
        predicted_s, sources = self._predictor.decode_pace(decodes, step.sms, step.overlap)(contexts)
        durations_s = predicted_s
        if self._truth is not None:
            durations_s, _ = self._truth.decode_pace(decodes, step.sms, step.overlap)(contexts)
        self._pace_s = durations_s[-1]
        phase = (cohort.started + 1) % size
        demands = cohort.growing[phase : phase + count]
        if len(demands) < count:
            demands = (demands + cohort.growing * (count // size + 1))[:count]
        times_s = list(accumulate(durations_s, initial=now))
        free_blocks = list(accumulate(demands, sub, initial=instance.ledger.free))
        return contexts, predicted_s, sources, times_s, free_blocks

    def _steps_ahead(self, cohort: DecodeCohort, room_s: float) -> int:
        """How many to plan: until somebody ends, and some more than there is room for."""
        ending, started, most = cohort.ending, cohort.started, 1 if self._check is not None else MOST_STEPS
        if room_s < NEVER:
            most = min(most, 2 + int(room_s / self._pace_s)) if room_s > 0 else 1
        if most > len(ending):
            return min(most, min(ending) - started)
        return next((ahead for ahead in range(1, most) if started + ahead in ending), most)

    def _take(self, coasting: Coasting, planned: Planned, steps: int) -> Sequence[RequestState]:
        """Does to the instance, its cohort and the tally what so many of the steps do; those who end with the last."""
        instance, step, tally = coasting.instance, coasting.step, self._tally
        contexts, predicted_s, sources, times_s, free_blocks = planned
        cohort, lane, sms, decodes = instance.cohort, step.lane, step.sms, contexts.step
        ends_s, rows, waiting = times_s[1 : steps + 1], tally.rows, len(instance.waiting)
        if steps < len(contexts):
            contexts, predicted_s, sources = contexts[:steps], predicted_s[:steps], sources[:steps]
        shape = (0, 0, decodes, contexts[0], instance.model_layers)
        rows.runs.append((steps, times_s[0], instance.index, tally.lane(lane), sms, *shape, waiting))
        rows.ends_s += ends_s
        rows.predicted_s += predicted_s
        rows.free_blocks += free_blocks[1 : steps + 1]
        rows.sources += sources
        rows.settle()
        seen = (lane, sms, decodes, step.overlap, contexts, predicted_s, times_s)
        instance.observed.add(new(CoastedSteps, seen))
        instance.ledger.take(free_blocks[0] - free_blocks[steps])
        instance.lanes[lane].ended(times_s[steps - 1], times_s[steps], predicted_s[-1], sms)
        coasting.now_s, coasting.taken = ends_s[-1], coasting.taken + steps
        coasting.stopped |= cohort.started + steps in cohort.ending
        return cohort.coasted(ends_s, contexts[-1])
