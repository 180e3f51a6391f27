"""The serving loop, written once for every executor.

Until the traffic is spent and nothing is left: read the time, admit what has arrived, ask the policy about each
instance where something changed and a lane is idle, launch what it says, and wait for the first completion or the next
arrival. What a step does to requests, KV blocks and token times happens here; how long it takes, in the executor.

At one instant all completions come before arrivals, and both before decisions. Arrivals at one instant keep their
order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from policies.api import SLO, Policy, RequestProgress, Role, Step
from profiler.latency import LatencyModel
from profiler.work import Work
from sim.between import NOTHING_BETWEEN, BetweenSteps
from sim.checked_policy import CheckedPolicy
from sim.collector import collector_paused
from sim.handover import Handover
from sim.instance import Instance, PolicyError
from sim.launch import Coaster, Completion, Executor, KVHolder, Launch
from sim.ledger import BlockLedger
from sim.limits import Limits
from sim.records import RunResult
from sim.state import Lane, RequestState
from sim.tally import Tally
from sim.view import Clock, InstanceView, TrueInstanceView
from traces.arrivals import ArrivalSource

PROGRESS_EVERY = 512
NEVER = float("inf")


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
        self._progress = progress
        self._check_every_step = check_every_step
        self._clock = Clock()
        self._odd_gaps_s: list[float] = []
        self._tally = Tally(model_layers=latency.model.layers, keep_token_times=keep_token_times)
        self._requests: list[RequestState] = []
        self._answer_tokens: list[int] = []
        self._flights: dict[int, Launch] = {}
        self._launches = 0
        self._finished = 0
        self._instances = [self._build(index, role) for index, role in enumerate(self._policy.roles(instances))]
        self._views = [self._view(instance) for instance in self._instances]
        self._front = [i for i in self._instances if i.role != "decode"]
        self._back = [i for i in self._instances if i.role == "decode"]
        self._changed: dict[int, None] = {}
        self._handover = Handover(self._instances, route=lambda r: self._route(r, self._back), touch=self._touch)

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
            answers = self._answer_tokens
            return TrueInstanceView(instance, clock=clock, slo=slo, latency=latency, answer_tokens=answers)
        return InstanceView(instance, clock=clock, slo=slo, latency=latency)

    def run(self) -> RunResult:
        """Serves all arrivals, or stops at ``limits.until_s``; raises PolicyError where the policy fails."""
        with collector_paused():
            self._serve()
        self._check_nobody_is_stranded()
        return self.result()

    def result(self) -> RunResult:
        """What there is of the run: for one that its executor cut off. Ends it; to be asked once."""
        return self._tally.result(
            requests=self._requests,
            answer_tokens=self._answer_tokens,
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
        coaster = executor if isinstance(executor, Coaster) else None
        while True:
            now = clock.now_s = executor.now()
            if until_s is not None and now >= until_s:
                break
            due = arrivals.peek_s()
            while due is not None and due <= now:
                self._arrive()
                due = arrivals.peek_s()
            self._decide()
            if due is None and not self._flights:
                break
            limit = due if until_s is None else until_s if due is None else min(due, until_s)
            finished, launch = self._finished, None
            completion = executor.next(limit)
            while completion is not None:
                clock.now_s = completion.end_s
                launch = self._complete(completion)
                completion = executor.next(clock.now_s) if self._flights else None
            if coaster is not None and launch is not None and launch.step.again and self._finished == finished:
                self._coast(coaster, launch, limit)

    @property
    def requests(self) -> Sequence[RequestState]:
        """Those that have arrived so far, in that order."""
        return self._requests

    def free_blocks(self) -> tuple[int, ...]:
        """Free KV blocks of each instance."""
        return tuple(instance.ledger.free for instance in self._instances)

    def check(self) -> None:
        """Raises AssertionError unless every KV block is accounted for, on every instance."""
        for instance in self._instances:
            instance.check(self._handover.check(instance))

    def _touch(self, instance: Instance) -> None:
        self._changed[instance.index] = None

    def _arrive(self) -> None:
        request = self._arrivals.pop()
        state = RequestState(
            index=len(self._requests),
            request_id=request.request_id,
            arrival_s=request.arrival_s,
            prompt_tokens=request.prompt_tokens,
        )
        state.chain = self._limits.chain(request)
        self._requests.append(state)
        self._answer_tokens.append(request.output_tokens)
        instance = self._route(state, self._front)
        reason = self._limits.misfit(request.prompt_tokens, request.output_tokens)
        queue_limit = self._limits.queue_limit
        if not reason and queue_limit is not None and len(instance.waiting) >= queue_limit:
            reason = "queue_full"
        if reason:
            state.state, state.reason = "rejected", reason
            self._arrivals.finished(state.index, self._clock.now_s)
            return
        instance.enqueue(state)
        self._changed[instance.index] = None

    def _route(self, request: RequestState, among: list[Instance]) -> Instance:
        if len(among) == 1:
            return among[0]
        chosen = self._policy.route(request, [instance.load(request) for instance in among])
        return self._instances[chosen]

    def _decide(self) -> None:
        # A decision can change other instances (a pre-empted request goes back to a prefill instance).
        while self._changed:
            changed, self._changed = self._changed, {}
            for index in changed:
                instance = self._instances[index]
                if instance.busy_lanes == len(instance.lanes):
                    continue
                instance.unseen = False
                instance.asked += 1
                steps, instance.memo = self._policy.decide(self._views[index])
                try:
                    if instance.cache is not None:
                        instance.take_back(steps)
                    for step in steps:
                        self._launch(instance, step)
                except PolicyError as error:
                    raise PolicyError(f"policy {self._policy.name} at {self._clock.now_s:.6g} s: {error}") from error

    def _launch(self, instance: Instance, step: Step) -> None:
        lane = instance.idle_lane(step)
        for victim in step.preempt:
            self._preempt(instance, victim)
        now = self._clock.now_s
        source, beside, beside_sms, delay_s = None, None, 0, 0.0
        if step.transfer is not None:
            work, source = instance.begin_transfer(step.transfer, step.layers)
            predicted = self._latency.estimate(work, 1)
        else:
            work = instance.begin(step, lane, now)
            if step.stream:
                self._handover.announce(step, self._requests)
            peer = instance.peers[lane.name]
            if peer is not None and peer.busy:
                beside, beside_sms = peer.work, peer.sms
            delay_s = self._between.before(step, lane, peer, instance.cohort)
            predicted = self._latency.estimate(work, step.sms, beside, beside_sms)
        lane.busy, lane.sms, lane.work = True, step.sms, work
        instance.busy_lanes += 1
        lane.started_s, lane.predicted_s, lane.asked = now, predicted.seconds + delay_s, instance.asked
        launch = Launch(
            self._launches,
            instance.index,
            step,
            work,
            now,
            beside,
            beside_sms,
            predicted,
            self._latency,
            len(instance.waiting),
            instance.ledger.free,
            source,
            tuple(instance.cohort.members.values()) if self._holder and step.decode else (),
            delay_s,
        )
        self._launches += 1
        self._flights[launch.launch_id] = launch
        self._executor.start(launch)
        if self._check_every_step:
            self.check()

    def _coast(self, coaster: Coaster, launch: Launch, limit_s: float | None) -> None:
        """Repeats a decode step while nothing else can happen: what asking and launching anew would do, only faster.

        That needs every other lane and instance idle with nothing changed, and the policy's ``again`` to be its last
        word on this instance. It ends when a request has come or finished, when KV runs short, and before a step that
        would outlast ``limit_s``; then the policy is asked as after any step.
        """
        instance, step, latency = self._instances[launch.instance], launch.step, self._latency
        if self._flights or len(self._changed) > 1 or instance.asked != instance.lanes[step.lane].asked:
            return
        cohort, ledger, clock, lane = instance.cohort, instance.ledger, self._clock, instance.lanes[step.lane]
        waiting, finished, number = len(instance.waiting), self._finished, self._tally.lane(step.lane)
        until_s = NEVER if limit_s is None else limit_s
        while not instance.unseen and self._finished == finished:
            demand = cohort.block_demand
            free_blocks = ledger.free - demand
            if free_blocks < 0:
                return
            # The step is begun only once it is known to end in time, so its work is worked out from the outside.
            start_s, decodes = clock.now_s, len(cohort.members)
            context = cohort.context_tokens + decodes
            work = Work((), decodes, context, None, True, 0, step.overlap)
            predicted = latency.estimate(work, step.sms)
            end_s = coaster.alone(work, step.sms, predicted, latency, until_s)
            if end_s is None:
                return
            ledger.take(demand)
            cohort.start_step()
            clock.now_s = end_s
            seconds, source = predicted
            lane.started_s, lane.predicted_s = start_s, seconds
            for request in cohort.finish_step(end_s):
                self._finish_decoding(instance, request)
            instance.observed.append((step.lane, work, step.sms, None, 0, seconds, end_s - start_s))
            sizes = (0, 0, decodes, context, latency.model.layers, seconds, waiting, free_blocks)
            self._tally.add((start_s, end_s, instance.index, number, step.sms, *sizes), source)
            if self._check_every_step:
                self.check()

    def _preempt(self, instance: Instance, progress: RequestProgress) -> None:
        """Sends a resident request back to a queue: its own, or from a decode instance that of a prefill one."""
        request = self._requests[progress.index]
        remaining = self._answer_tokens[request.index] - request.generated_tokens
        self._tally.leaving(request)
        instance.evict(request, remaining)
        self._release(request, instance.index)
        home = instance if instance.role != "decode" else self._route(request, self._front)
        home.enqueue(request, first=True)
        self._changed[home.index] = None

    def _complete(self, completion: Completion) -> Launch:
        """Does to requests and blocks what a finished launch did, and returns it."""
        launch = self._flights.pop(completion.launch_id)
        instance, step = self._instances[launch.instance], launch.step
        lane = instance.lanes[step.lane]
        lane.busy, lane.work = False, None
        instance.busy_lanes -= 1
        self._changed[instance.index] = None
        if step.transfer is not None:
            self._finish_transfer(instance, launch)
        if step.decode:
            for request in instance.cohort.finish_step(completion.end_s):
                self._finish_decoding(instance, request)
        if step.prefill:
            self._finish_prefill(instance, lane, launch, completion.end_s)
        seconds = (launch.predicted_s, completion.end_s - launch.start_s)
        instance.observed.append((step.lane, launch.work, step.sms, launch.beside, launch.beside_sms, *seconds))
        self._tally.completed(launch, completion.end_s)
        if self._check_every_step:
            self.check()
        return launch

    def _finish_prefill(self, instance: Instance, lane: Lane, launch: Launch, end_s: float) -> None:
        if not launch.work.head:
            lane.layers_done += launch.work.layers or 0
            return
        lane.end_batch()
        for chunk in launch.step.prefill:
            request = self._requests[chunk.request.index]
            request.prefilled_tokens += chunk.tokens
            instance.pending_tokens -= chunk.tokens
            if request.prefix is not None:
                request.prefix.extend(request.prefilled_tokens // instance.ledger.block_tokens)
            if request.prefilled_tokens == request.prefill_tokens:
                self._emit_first(instance, request, end_s)

    def _emit_first(self, instance: Instance, request: RequestState, end_s: float) -> None:
        """The token that ends a prefill: the request's first, or the next one after a recomputation."""
        del instance.prefilling[request.index]
        if request.first_token_s is None:
            request.first_token_s = end_s
        elif request.emitted_s is not None:
            gap = end_s - request.emitted_s
            self._odd_gaps_s.append(gap)
            request.itl_max_s = max(gap, request.itl_max_s or 0.0)
        request.emitted += 1
        request.emitted_s = end_s
        self._tally.emitted(request, end_s)
        remaining = self._answer_tokens[request.index] - request.emitted
        if remaining and instance.role == "prefill":
            self._handover.offer(request)
        elif remaining:
            instance.cohort.join(request, remaining)
        else:
            if self._handover.withdraw(request):
                instance.give_back(request)
                self._release(request, instance.index)
            self._finish(instance, request)

    def _finish_transfer(self, instance: Instance, launch: Launch) -> None:
        assert launch.step.transfer is not None
        request = self._requests[launch.step.transfer.index]
        if self._handover.land(instance, request, launch.work.layers):
            self._release(request, request.instance)
            if request.state != "finished":
                request.instance = instance.index
                instance.cohort.join(request, self._answer_tokens[request.index] - request.emitted)

    def _finish_decoding(self, instance: Instance, request: RequestState) -> None:
        instance.give_back(request)
        self._tally.leaving(request)
        instance.cohort.leave(request)
        self._release(request, instance.index)
        self._finish(instance, request)

    def _release(self, request: RequestState, instance: int) -> None:
        if self._holder is not None:
            self._holder.release(request.index, instance)

    def _finish(self, instance: Instance, request: RequestState) -> None:
        request.state = "finished"
        instance.outcomes.append(request.outcome(self._slo))
        self._finished += 1
        self._arrivals.finished(request.index, self._clock.now_s)
        if self._progress is not None and self._finished % PROGRESS_EVERY == 0:
            self._progress(self._finished, self._clock.now_s)

    def _check_nobody_is_stranded(self) -> None:
        until_s = self._limits.until_s
        if until_s is not None and self._clock.now_s >= until_s:
            return
        stranded = [r for r in self._requests if r.state in ("waiting", "running")]
        if stranded:
            raise PolicyError(
                f"{self._policy.name}: {len(stranded)} requests (the first is {stranded[0].request_id}) are left "
                f"with nothing running at {self._clock.now_s:.6g} s"
            )
