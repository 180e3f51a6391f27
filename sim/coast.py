"""Decode steps of one instance while nothing can happen between them, without a launch for each.

It needs the policy's ``again`` to be its last word on the instance. A step then does what asking and launching anew
would do: its duration follows from the context, its KV from the counters of the cohort.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from policies.api import Step
from profiler.latency import LatencyModel, Pacer
from sim.instance import Instance
from sim.launch import Coaster
from sim.state import NOBODY, RequestState
from sim.tally import Tally
from sim.view import Clock


class Coast:
    """``check`` is called after each step, where there is one."""

    def __init__(
        self, *, executor: Coaster, clock: Clock, tally: Tally, latency: LatencyModel, check: Callable[[], None] | None
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._tally = tally
        self._predictor = Pacer(latency)
        self._truth = None if executor.truth is latency else Pacer(executor.truth)
        self._check = check

    def run(self, instance: Instance, step: Step, begin_s: float, end_s: float) -> tuple[int, Sequence[RequestState]]:
        """Steps that begin before ``begin_s``, end by ``end_s`` and before anything else in flight does.

        How many, and the requests that got their last token in the last one. It stops there, and where KV runs short.
        """
        if self._check is None:
            return self._steps(instance, step, begin_s, end_s, None)
        steps, taken, ended = 0, 1, NOBODY
        while taken and not ended:
            taken, ended = self._steps(instance, step, begin_s, end_s, 1)
            steps += taken
            if taken and not ended:
                self._check()
        return steps, ended

    def _steps(
        self, instance: Instance, step: Step, begin_s: float, end_s: float, most: int | None
    ) -> tuple[int, Sequence[RequestState]]:
        """The loop over steps: everything that it touches is at hand, since most steps of most runs are taken here."""
        cohort, ledger, tally, executor = instance.cohort, instance.ledger, self._tally, self._executor
        growing, ending, size = cohort.growing, cohort.ending, ledger.block_tokens
        lane, sms, overlap, decodes = step.lane, step.sms, step.overlap, len(cohort.members)
        number, waiting, index, layers = tally.lane(lane), len(instance.waiting), instance.index, instance.model_layers
        add_row, observe = tally.rows.append, instance.observed.append
        add_end, add_gap, add_count = cohort.end_s.append, cohort.gap_s.append, cohort.gap_count.append
        predict, truth = self._predictor.decode_pace(decodes, sms, overlap), self._truth
        measure = None if truth is None else truth.decode_pace(decodes, sms, overlap)
        begun = started = cohort.started
        last = -1 if most is None else begun + most
        context, free, now, before, seconds = cohort.context_tokens, ledger.free, self._clock.now_s, 0.0, 0.0
        last_end_s, first_end_s = cohort.end_s[-1], executor.first_end_s()
        while now < begin_s and started != last:
            needed = growing[(started + 1) % size]
            predicted, source = predict(context + decodes)
            to_s = now + (predicted if measure is None else measure(context + decodes)[0])
            if needed > free or to_s > end_s or to_s >= first_end_s:
                break
            started, context, free, seconds, before = started + 1, context + decodes, free - needed, predicted, now
            add_row((now, to_s, index, number, sms, 0, 0, decodes, context, layers, seconds, waiting, free, source))
            observe((lane, decodes, context, overlap, sms, seconds, to_s - now))
            add_end(to_s)
            add_gap(to_s - last_end_s)
            add_count(decodes)
            now = last_end_s = to_s
            if started in ending:
                break
        if started == begun:
            return 0, NOBODY
        self._clock.now_s = now
        executor.jump(now)
        ledger.take(ledger.free - free)
        tally.settle()
        instance.lanes[lane].ended(before, seconds, sms)
        return started - begun, cohort.coasted(started - begun, context)
