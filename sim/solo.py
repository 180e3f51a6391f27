"""The serving loop where one lane is all there is: nothing runs beside its steps, so each goes from start to end.

The same questions at the same instants, and the same answers, as with launches in flight; only the bookkeeping of what
is in flight falls away. Arrivals that come during a step are admitted when it has ended, at their own times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from policies.api import Observation, RequestProgress, Step
from profiler.latency import LatencyModel
from profiler.work import Work
from sim.checked_policy import FAULTS, CheckedPolicy
from sim.coast import Coast, Coasting, only_decodes
from sim.effects import Effects
from sim.instance import Instance, PolicyError
from sim.launch import NEVER, Coaster
from sim.state import Lane
from sim.tally import Tally
from sim.view import Clock, InstanceView
from traces.arrivals import ArrivalSource

new: Final = tuple.__new__


class Solo:
    """One instance of one lane. ``arrive`` admits the next request; ``check`` is called at each step, if there is one.

    ``preempt`` sends a resident request back to the queue.
    """

    def __init__(
        self,
        *,
        instance: Instance,
        view: InstanceView,
        policy: CheckedPolicy,
        arrivals: ArrivalSource,
        executor: Coaster,
        clock: Clock,
        latency: LatencyModel,
        effects: Effects,
        tally: Tally,
        coast: Coast,
        arrive: Callable[[], None],
        preempt: Callable[[Instance, RequestProgress], None],
        check: Callable[[], None] | None,
    ) -> None:
        self._instance = instance
        self._view = view
        self._policy = policy
        self._arrivals = arrivals
        self._executor = executor
        self._clock = clock
        self._latency = latency
        self._effects = effects
        self._tally = tally
        self._coast = coast
        self._arrive = arrive
        self._preempt = preempt
        self._check = check

    def serve(self) -> None:
        """Until nothing is left."""
        clock, instance, peek, ran = self._clock, self._instance, self._arrivals.peek_s, False
        while True:
            due = peek()
            while due is not None and due <= clock.now_s:
                self._arrive()
                due = peek()
            step = self._decide() if ran or instance.unseen else None
            ran = step is not None
            if step is not None:
                self._take(step, NEVER if due is None else due)
            elif due is None:
                break
            else:
                clock.now_s = due
        self._executor.jump(clock.now_s)

    def _decide(self) -> Step | None:
        instance = self._instance
        instance.unseen = False
        steps, instance.memo = self._policy.decide(self._view)
        if not steps:
            return None
        if len(steps) > 1:
            raise self._policy.refused(self._clock.now_s, PolicyError(f"{len(steps)} steps at once; it has one lane"))
        return steps[0]

    def _take(self, step: Step, due_s: float) -> None:
        """Does what the policy asked for: one step, or that one as often as nothing can intervene."""
        instance, now = self._instance, self._clock.now_s
        try:
            if instance.cache is not None:
                instance.take_back((step,))
            lane = instance.idle_lane(step)
            repeats = step.again and only_decodes(step) and bool(instance.cohort.members)
        except FAULTS as error:
            raise self._policy.refused(now, error) from error
        if repeats and self._repeated(step, due_s):
            return
        try:
            for victim in step.preempt:
                self._preempt(instance, victim)
            work = instance.begin(step, lane, now)
        except FAULTS as error:
            raise self._policy.refused(now, error) from error
        self._run(step, lane, work, due_s)

    def _repeated(self, step: Step, due_s: float) -> bool:
        """Repeats a decode step until something can intervene; whether there was time for one."""
        clock = self._clock
        coasting = Coasting(self._instance, step, clock.now_s)
        ended = self._coast.run(coasting, begin_s=due_s)
        if not coasting.taken:
            return False
        clock.now_s = coasting.now_s
        self._admit(due_s, clock.now_s)
        self._effects.decoded(self._instance, ended)
        if self._check is not None:
            self._check()
        return True

    def _run(self, step: Step, lane: Lane, work: Work, due_s: float) -> None:
        instance, clock = self._instance, self._clock
        start_s, sms = clock.now_s, step.sms
        if self._check is not None:
            self._check()
        predicted = self._latency.estimate(work, sms)
        row = (len(instance.waiting), instance.ledger.free, predicted[1])
        truth = self._executor.truth
        seconds = predicted[0] if truth is self._latency else truth.estimate(work, sms)[0]
        clock.now_s = end_s = start_s + seconds
        self._admit(due_s, end_s)
        lane.ended(start_s, end_s, predicted[0], sms)
        if step.decode:
            self._effects.decoded(instance, instance.cohort.finish_step(end_s))
        if step.prefill:
            self._effects.prefilled(instance, lane, step.prefill, work, end_s)
        seen = (step.lane, work, sms, None, 0, predicted[0], end_s - start_s, end_s)
        instance.observed.add(new(Observation, seen))
        self._tally.ran(step.lane, work, start_s, end_s, instance.index, sms, predicted[0], row)
        if self._check is not None:
            self._check()

    def _admit(self, due_s: float, end_s: float) -> None:
        """Those who have come during a step that has ended now; one who comes as it ends, comes after it."""
        if due_s >= end_s:
            return
        due: float | None = due_s
        while due is not None and due < end_s:
            self._clock.now_s = due
            self._arrive()
            due = self._arrivals.peek_s()
        self._clock.now_s = end_s
