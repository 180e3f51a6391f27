"""The serving loop where one lane is all there is: nothing runs beside its steps, so each goes from start to end.

The same questions at the same instants, and the same answers, as with launches in flight; only the bookkeeping of what
is in flight falls away. Arrivals that come during a step are admitted when it has ended, at their own times.
"""

from __future__ import annotations

from collections.abc import Callable

from policies.api import Observation, RequestProgress, Step
from profiler.latency import LatencyModel
from sim.checked_policy import CheckedPolicy
from sim.coast import Coast, Coasting, only_decodes
from sim.effects import Effects
from sim.instance import Instance, PolicyError
from sim.launch import NEVER, Coaster
from sim.tally import Tally
from sim.view import Clock, InstanceView
from traces.arrivals import ArrivalSource

new = tuple.__new__


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
                self._run(step, NEVER if due is None else due)
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
        try:
            if instance.cache is not None:
                instance.take_back(steps)
            if len(steps) > 1:
                raise PolicyError(f"{len(steps)} steps at once on an instance of one lane")
            return steps[0]
        except (PolicyError, TypeError) as error:
            raise self._refused(error) from error

    def _run(self, step: Step, due_s: float) -> None:
        instance, clock = self._instance, self._clock
        try:
            lane = instance.idle_lane(step)
            if step.again and only_decodes(step) and instance.cohort.members:
                coasting = Coasting(instance, step, clock.now_s)
                ended = self._coast.run(coasting, begin_s=due_s)
                if coasting.taken:
                    clock.now_s = coasting.now_s
                    self._admit(due_s, clock.now_s)
                    self._effects.decoded(instance, ended)
                    if self._check is not None:
                        self._check()
                    return
            for victim in step.preempt:
                self._preempt(instance, victim)
            work = instance.begin(step, lane, clock.now_s)
        except (PolicyError, TypeError) as error:
            raise self._refused(error) from error
        start_s, sms = clock.now_s, step.sms
        if self._check is not None:
            self._check()
        predicted = self._latency.estimate(work, sms)
        row = (len(instance.waiting), instance.ledger.free, predicted[1])
        truth = self._executor.truth
        seconds = predicted[0] if truth is self._latency else truth.estimate(work, sms)[0]
        clock.now_s = end_s = start_s + seconds
        self._admit(due_s, end_s)
        lane.ended(start_s, predicted[0], sms)
        if step.decode:
            self._effects.decoded(instance, instance.cohort.finish_step(end_s))
        if step.prefill:
            self._effects.prefilled(instance, lane, step.prefill, work, end_s)
        instance.observed.add(new(Observation, (step.lane, work, sms, None, 0, predicted[0], end_s - start_s)))
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

    def _refused(self, error: PolicyError | TypeError) -> PolicyError:
        return PolicyError(f"policy {self._policy.name} at {self._clock.now_s:.6g} s: {error}")
