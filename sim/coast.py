"""Decode steps of an instance while nothing can happen between them, without a launch for each.

It needs the policy's ``again``. A step then does what asking and launching anew would do: its duration follows from the
context, its KV from the counters of the cohort.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from policies.api import Step
from profiler.latency import LatencyModel, Pacer
from sim.instance import Instance
from sim.state import NOBODY, RequestState
from sim.tally import Tally

NEVER = float("inf")
UNKNOWN = -NEVER


class Coasting:
    """A decode step that an instance repeats: ``taken`` times so far, the last time until ``now_s``.

    The next one ends at ``end_s``, once that is known. ``stopped``: a request has ended, or KV is short for the next.
    """

    __slots__ = ("end_s", "instance", "now_s", "step", "stopped", "taken")

    def __init__(self, instance: Instance, step: Step, now_s: float) -> None:
        self.instance = instance
        self.step = step
        self.now_s = now_s
        self.end_s = UNKNOWN
        self.taken = 0
        self.stopped = False


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

    def run(
        self, coasting: Coasting, *, begin_s: float = NEVER, end_s: float = NEVER, before_s: float = NEVER
    ) -> Sequence[RequestState]:
        """Steps that begin before ``begin_s``, end by ``end_s`` and before ``before_s``.

        The requests that got their last token in the last one. It stops there, and where KV runs short.
        """
        if self._check is None:
            return self._steps(coasting, begin_s, end_s, before_s, None)
        taken, ended = -1, NOBODY
        while taken != coasting.taken and not ended:
            taken = coasting.taken
            ended = self._steps(coasting, begin_s, end_s, before_s, 1)
            if taken != coasting.taken and not ended:
                self._check()
        return ended

    def _steps(
        self, coasting: Coasting, begin_s: float, end_s: float, before_s: float, most: int | None
    ) -> Sequence[RequestState]:
        """The loop over steps: everything that it touches is at hand, since most steps of most runs are taken here."""
        instance, step, tally = coasting.instance, coasting.step, self._tally
        cohort, ledger, size = instance.cohort, instance.ledger, instance.ledger.block_tokens
        growing, ending = cohort.growing, cohort.ending
        lane, sms, overlap, decodes = step.lane, step.sms, step.overlap, len(cohort.members)
        number, waiting, index, layers = tally.lane(lane), len(instance.waiting), instance.index, instance.model_layers
        add_row, observe = tally.rows.append, instance.observed.append
        add_end, add_gap, add_count = cohort.end_s.append, cohort.gap_s.append, cohort.gap_count.append
        predict, truth = self._predictor.decode_pace(decodes, sms, overlap), self._truth
        measure = None if truth is None else truth.decode_pace(decodes, sms, overlap)
        begun = started = cohort.started
        last = -1 if most is None else begun + most
        context, free, now, before, seconds = cohort.context_tokens, ledger.free, coasting.now_s, 0.0, 0.0
        last_end_s = cohort.end_s[-1]
        while now < begin_s and started != last:
            needed = growing[(started + 1) % size]
            if needed > free:
                coasting.stopped = True
                break
            predicted, source = predict(context + decodes)
            to_s = now + (predicted if measure is None else measure(context + decodes)[0])
            if to_s > end_s or to_s >= before_s:
                coasting.end_s = to_s
                break
            started, context, free, seconds, before = started + 1, context + decodes, free - needed, predicted, now
            add_row((now, to_s, index, number, sms, 0, 0, decodes, context, layers, seconds, waiting, free, source))
            observe((lane, decodes, context, overlap, sms, seconds, to_s - now))
            add_end(to_s)
            add_gap(to_s - last_end_s)
            add_count(decodes)
            now = last_end_s = to_s
            if started in ending:
                coasting.stopped = True
                break
        if started == begun:
            return NOBODY
        coasting.now_s, coasting.taken = now, coasting.taken + started - begun
        ledger.take(ledger.free - free)
        tally.settle()
        instance.lanes[lane].ended(before, seconds, sms)
        return cohort.coasted(started - begun, context)
