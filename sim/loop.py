"""The serving loop, written once for every executor.

Until the traffic is spent and nothing is left: read the time, admit what has arrived, ask the policy about each
instance where something changed and a lane is idle, launch what it says, and wait for the first completion or the next
arrival. What a step does to requests, KV blocks and token times happens here; how long it takes, in the executor.

At one instant all completions come before arrivals, and both before decisions. Arrivals at one instant keep their
order.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from policies.api import Observation, Policy, RequestProgress, Role, Step
from policies.slo import SLO
from profiler.latency import LatencyModel
from profiler.work import Work
from sim.between import NOTHING_BETWEEN, BetweenSteps
from sim.checked_policy import FAULTS, CheckedPolicy, Stopped
from sim.coast import Coast, only_decodes
from sim.coasts import Coasts
from sim.collector import collector_paused
from sim.effects import Effects
from sim.handover import Handover
from sim.instance import Instance, PolicyError
from sim.launch import NEVER, Coaster, Completion, Executor, KVHolder, Launch
from sim.ledger import BlockLedger
from sim.limits import Limits
from sim.records import RunResult
from sim.requestlog import RequestLog
from sim.solo import Solo
from sim.state import Lane, RequestState
from sim.tally import Tally
from sim.view import Clock, InstanceView, TrueInstanceView
from traces.arrivals import ArrivalSource

new: Final = tuple.__new__


class ServingLoop:
    """One run of a policy over arrivals on a cluster of equal instances."""

    def __init__(
        self,
        *,
        policy: Policy,
        arrivals: ArrivalSource,
        latency: LatencyModel,
        executor: Executor,
        instances: int,
        slo: SLO,
        limits: Limits,
        between: BetweenSteps = NOTHING_BETWEEN,
        progress: Callable[[int, float], None] | None = None,
        keep_token_times: bool = False,
        check_every_step: bool = False,
    ) -> None:
        self._policy = CheckedPolicy(policy)
        self._arrivals = arrivals
        self._latency = latency
        self._slo = slo
        self._executor = executor
        self._holder = executor if isinstance(executor, KVHolder) else None
        self._limits = limits
        self._between = between
        self._check_every_step = check_every_step
        self._clock = Clock()
        self._odd_gaps_s = array("d")
        self._tally = Tally(model_layers=latency.model.layers, keep_token_times=keep_token_times)
        self._log = RequestLog()
        self._flights: dict[int, Launch] = {}
        self._launches = -1
        self._instances = [self._build(index, role) for index, role in enumerate(self._policy.roles(instances))]
        self._front = [i for i in self._instances if i.role != "decode"]
        self._back = [i for i in self._instances if i.role == "decode"]
        self._changed: dict[int, None] = {}
        self._coasts: Coasts | None = None
        self._handover = Handover(self._instances, route=lambda r: self._route(r, self._back), touch=self._touch)
        self._effects = self._make_effects(progress)
        self._views = [self._view(instance) for instance in self._instances]

    def _make_effects(self, progress: Callable[[int, float], None] | None) -> Effects:
        return Effects(
            clock=self._clock,
            tally=self._tally,
            arrivals=self._arrivals,
            handover=self._handover,
            slo=self._slo,
            holder=self._holder,
            odd_gaps_s=self._odd_gaps_s,
            log=self._log,
            progress=progress,
        )

    def _build(self, index: int, role: Role) -> Instance:
        ledger = BlockLedger(self._limits.total_blocks, self._limits.block_tokens)
        return Instance(
            index=index,
            role=role,
            lanes=self._policy.lanes(role),
            ledger=ledger,
            odd_gaps_s=self._odd_gaps_s,
            model_layers=self._latency.model.layers,
            device_sms=self._latency.device.sms,
            tpot_s=self._slo.tpot_s,
            caches=self._limits.caches,
        )

    def _view(self, instance: Instance) -> InstanceView:
        clock, slo, latency = self._clock, self._slo, self._latency
        if self._policy.needs_truth:
            answers = self._effects.answer_tokens
            return TrueInstanceView(instance, clock=clock, slo=slo, latency=latency, answer_tokens=answers)
        return InstanceView(instance, clock=clock, slo=slo, latency=latency)

    def run(self) -> RunResult:
        """Serves all arrivals, or stops at ``limits.until_s``; raises PolicyError where the policy fails."""
        with collector_paused():
            try:
                self._serve()
            except Stopped:
                return replace(self.result(), interrupted=True)
        self._check_nobody_is_stranded()
        return self.result()

    def stop(self) -> None:
        """Ends the run before its next decision, with what there is by then; a signal may call it at any moment.

        No step asks whether it was called, so a run costs nothing more for it.
        """
        self._policy.stop()

    def result(self) -> RunResult:
        """What there is of the run: for one that its executor cut off. Ends it; to be asked once."""
        if self._coasts is not None:
            self._coasts.end_all()
        for request in self._effects.requests.values():
            if request.cohort is not None:
                self._tally.leaving(request)
                request.cohort.leave(request)
            self._log.add(request, self._effects.answer_tokens[request.index])
        return self._tally.result(
            requests=self._log,
            odd_gaps_s=self._odd_gaps_s,
            cohorts=[instance.cohort for instance in self._instances],
            end_s=self._clock.now_s,
            instances=len(self._instances),
            sms=self._latency.device.sms,
            cut_off=list(self._flights.values()),
            caches=[i.cache for i in self._instances if i.cache is not None and self._limits.prefixes is not None],
        )

    def _serve(self) -> None:
        until_s = self._limits.until_s
        arrivals, executor, clock = self._arrivals, self._executor, self._clock
        if isinstance(executor, Coaster) and executor.independent:
            coast = self._coast(executor)
            if self._is_solo():
                self._solo(executor, coast).serve()
                return
            self._coasts = self._make_coasts(executor, coast)
        coasts = self._coasts
        while True:
            now = clock.now_s = executor.now()
            if until_s is not None and now >= until_s:
                break
            due = arrivals.peek_s()
            while due is not None and due <= now:
                self._arrive()
                due = arrivals.peek_s()
            self._decide()
            coasting = coasts is not None and coasts.under_way
            if due is None and not self._flights and not coasting:
                break
            limit = due if until_s is None else until_s if due is None else min(due, until_s)
            if coasts is not None and coasting:
                if coasts.run(NEVER if limit is None else limit):
                    continue
                limit = coasts.first_end_s(limit)
            completion = executor.next(limit)
            while completion is not None:
                clock.now_s = completion.end_s
                self._complete(completion)
                completion = executor.next(clock.now_s) if self._flights else None

    def _is_solo(self) -> bool:
        """Whether one lane is all there is, and no step can be left in flight."""
        instances, immediate = self._instances, self._between is NOTHING_BETWEEN and self._limits.until_s is None
        return len(instances) == len(instances[0].lanes) == 1 and self._holder is None and immediate

    def _coast(self, coaster: Coaster) -> Coast:
        check = self.check if self._check_every_step else None
        return Coast(truth=coaster.truth, tally=self._tally, latency=self._latency, check=check)

    def _make_coasts(self, coaster: Coaster, coast: Coast) -> Coasts:
        return Coasts(
            coast=coast,
            executor=coaster,
            clock=self._clock,
            effects=self._effects,
            launch=self._launch,
            changed=self._touch,
        )

    def _solo(self, coaster: Coaster, coast: Coast) -> Solo:
        return Solo(
            instance=self._instances[0],
            view=self._views[0],
            policy=self._policy,
            arrivals=self._arrivals,
            executor=coaster,
            clock=self._clock,
            latency=self._latency,
            effects=self._effects,
            tally=self._tally,
            coast=coast,
            arrive=self._arrive,
            preempt=self._preempt,
            check=self.check if self._check_every_step else None,
        )

    @property
    def requests(self) -> Mapping[int, RequestState]:
        """Those that have arrived and not left, by the number of their arrival."""
        return self._effects.requests

    def free_blocks(self) -> tuple[int, ...]:
        """Free KV blocks of each instance."""
        return tuple(instance.ledger.free for instance in self._instances)

    def check(self) -> None:
        """Raises AssertionError unless every KV block is accounted for, on every instance."""
        for instance in self._instances:
            instance.check(self._handover.check(instance))

    def _touch(self, instance: Instance) -> None:
        """To be called before anything about an instance changes that it has not done itself."""
        coasts = self._coasts
        if coasts is not None and coasts.under_way:
            coasts.end(instance)
        self._changed[instance.index] = None

    def _arrive(self) -> None:
        request = self._arrivals.pop()
        state = RequestState(
            index=len(self._effects.answer_tokens),
            request_id=request.request_id,
            arrival_s=request.arrival_s,
            prompt_tokens=request.prompt_tokens,
        )
        state.chain = self._limits.chain(request)
        self._effects.requests[state.index] = state
        self._effects.answer_tokens.append(request.output_tokens)
        instance = self._route(state, self._front)
        reason = self._limits.misfit(request.prompt_tokens, request.output_tokens)
        queue_limit = self._limits.queue_limit
        if not reason and queue_limit is not None and len(instance.waiting) >= queue_limit:
            reason = "queue_full"
        if reason:
            state.state, state.reason = "rejected", reason
            self._effects.left(state)
            return
        self._touch(instance)
        instance.enqueue(state)

    def _route(self, request: RequestState, among: list[Instance]) -> Instance:
        if len(among) == 1:
            return among[0]
        if self._coasts is not None:
            self._coasts.end_if_evicting(among)
        chosen = self._policy.route(request, [instance.load(request) for instance in among])
        return self._instances[chosen]

    def _decide(self) -> None:
        # A decision can change other instances (a pre-empted request goes back to a prefill instance).
        coasts = self._coasts
        while self._changed:
            changed, self._changed = self._changed, {}
            for index in changed:
                instance = self._instances[index]
                if instance.busy_lanes == len(instance.lanes):
                    continue
                steps, instance.memo = self._policy.decide(self._views[index])
                try:
                    if instance.cache is not None:
                        instance.take_back(steps)
                    repeats = len(steps) == 1 and self._repeats(instance, steps[0])
                except FAULTS as error:
                    raise self._policy.refused(self._clock.now_s, error) from error
                if repeats and coasts is not None:
                    coasts.begin(instance, steps[0], self._next_number())
                    continue
                for step in steps:
                    self._launch(instance, step, self._next_number())
                    if self._check_every_step:
                        self.check()

    def _repeats(self, instance: Instance, step: Step) -> bool:
        """Whether a step that the policy would give again decodes, alone on its SMs, at once and with KV to do so."""
        if self._coasts is None or not step.again or not only_decodes(step):
            return False
        lane, cohort = instance.idle_lane(step), instance.cohort
        peer = instance.peers[lane.name]
        at_once = self._between is NOTHING_BETWEEN or (not cohort.fresh and lane.sms in (0, step.sms))
        alone = (peer is None or not peer.busy) and cohort.started == cohort.completed
        return at_once and alone and bool(cohort.members) and cohort.block_demand <= instance.ledger.free

    def _next_number(self) -> int:
        """What identifies a launch, or the coast that may become one: in order of decisions."""
        self._launches += 1
        return self._launches

    def _launch(self, instance: Instance, step: Step, number: int) -> None:
        lane, work, source = self._claim(instance, step)
        now, beside, beside_sms, delay_s = self._clock.now_s, None, 0, 0.0
        if source is not None:
            predicted = self._latency.estimate(work, 1)
        else:
            peer = instance.peers[lane.name]
            if peer is not None and peer.busy:
                beside, beside_sms = peer.work, peer.sms
            if self._between is not NOTHING_BETWEEN:
                delay_s = self._between.before(now, step, lane, peer, instance.cohort)
            predicted = self._latency.estimate(work, step.sms, beside, beside_sms)
        lane.busy, lane.sms, lane.work = True, step.sms, work
        instance.busy_lanes += 1
        lane.started_s, lane.predicted_s = now, predicted.seconds + delay_s
        waiting, free_blocks = len(instance.waiting), instance.ledger.free
        decoding = tuple(instance.cohort.members.values()) if self._holder and step.decode else ()
        what = (number, instance.index, step, work, now, beside, beside_sms, predicted)
        launch = new(Launch, (*what, self._latency, waiting, free_blocks, source, decoding, delay_s))
        self._flights[number] = launch
        self._executor.start(launch)

    def _claim(self, instance: Instance, step: Step) -> tuple[Lane, Work, int | None]:
        """Gives a step its lane, requests and KV blocks; with its work, and where the KV of a transfer comes from."""
        try:
            lane = instance.idle_lane(step)
            for victim in step.preempt:
                self._preempt(instance, victim)
            if step.transfer is not None:
                return lane, *instance.begin_transfer(step.transfer, step.layers)
            work = instance.begin(step, lane, self._clock.now_s)
            if step.stream:
                self._handover.announce(step, self._effects.requests)
            return lane, work, None
        except FAULTS as error:
            raise self._policy.refused(self._clock.now_s, error) from error

    def _preempt(self, instance: Instance, progress: RequestProgress) -> None:
        """Sends a resident request back to a queue: its own, or from a decode instance that of a prefill one."""
        request = self._effects.evict(instance, progress)
        home = instance if instance.role != "decode" else self._route(request, self._front)
        self._touch(home)
        home.enqueue(request, first=True)

    def _complete(self, completion: Completion) -> None:
        """Does to requests and blocks what a finished launch did."""
        launch_id, end_s = completion
        launch = self._flights.pop(launch_id)
        instance, step = self._instances[launch.instance], launch.step
        self._touch(instance)
        lane, effects = instance.lanes[step.lane], self._effects
        lane.busy, lane.work, lane.ended_s = False, None, end_s
        instance.busy_lanes -= 1
        if step.transfer is not None:
            effects.transferred(instance, launch)
        if step.decode:
            effects.decoded(instance, instance.cohort.finish_step(end_s))
        if step.prefill:
            effects.prefilled(instance, lane, step.prefill, launch.work, end_s)
        _, _, _, work, start_s, beside, beside_sms, (predicted_s, source), _, waiting, free_blocks, _, _, delay_s = (
            launch
        )
        predicted_s += delay_s
        seen = (step.lane, work, step.sms, beside, beside_sms, predicted_s, end_s - start_s, end_s)
        instance.observed.add(new(Observation, seen))
        row = (waiting, free_blocks, source)
        self._tally.ran(step.lane, work, start_s, end_s, instance.index, step.sms, predicted_s, row)
        if self._check_every_step:
            self.check()

    def _check_nobody_is_stranded(self) -> None:
        until_s = self._limits.until_s
        if until_s is not None and self._clock.now_s >= until_s:
            return
        stranded = [r for r in self._effects.requests.values() if r.state in ("waiting", "running")]
        if stranded:
            raise PolicyError(
                f"{self._policy.name}: {len(stranded)} requests (the first is {stranded[0].request_id}) are left "
                f"with nothing running at {self._clock.now_s:.6g} s"
            )
