"""The oracle: the best split at every decision, by search over the latency model, with answers as long as they will be.

Ours. It tells how much the other policies could gain on the same kernels and lanes. At every decision with both phases
to run it tries each share for decode, pausing decode for a group of layers, and pausing prefill for a decode step; each
is followed to the end of what the instance knows (:mod:`policies.rollout`), and the way on which most requests meet
both SLOs is taken. Of equals it takes the one that does most work a second: prefill seconds, and of a decode step what
it takes beyond that of a single short request, since the reading of weights is shared by whoever joins later. The queue
is put in the order that gets most first tokens out in time (Moore and Hodgson), the hopeless last.

What it is a ceiling of: attainment by this family of schedules, whole prompts on one lane by groups of layers and whole
decode steps on the other, for someone who knows the lengths of all answers and nothing of requests to come. It is
greedy, over coarse forecasts with a share held for good, so better schedules exist, and a policy above it shows one. It
does not mix prompts and decodes in one launch, puts no batch aside, and pre-empts as the others do. Limits are taken at
``margin`` of what they are: requests that nobody knows of yet will want some of the time. Throughput, and latencies
below the SLO, are no aim of its.

The switches take one piece of knowledge or freedom away each, to measure what it is worth: ``lengths`` (else the next
token must keep the TPOT, and answers are thought to be ``typical_tokens`` long, or twice what there is), ``order``
(else as requests wait), ``pause`` (else both phases always go on), ``decode_sms`` (that share instead of the search).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, NamedTuple

import numpy as np

from policies.admission import Relief, blocks_to_begin
from policies.api import Chunk, Decision, LaneView, RequestProgress, Router, Step, TrueView
from policies.forecast import most_on_time, prefill_shape
from policies.phases import DECODE, PREFILL, room, split_steps
from policies.rollout import Decodes, Floats, PromptBatch, Rollout
from policies.routing import LeastLoaded
from policies.twolanes import TwoLanes
from profiler.work import Work

REFERENCE = Work(prefill=((4096, 0),))
"""The prefill that shares are compared by, and that decode is thought to run beside."""

FOREVER_S = 1e9
"""In place of a limit that there is not."""

SHARES = 8
"""How many splits are tried, about, unless ``sm_step`` says otherwise."""

Batches = tuple[tuple[Chunk, ...], ...]


class State(NamedTuple):
    """This policy's memo: decode's part of the last split, and prefill's pace on what each split leaves it.

    ``paces`` are (decode's SMs, how many times as long as on all SMs a prefill takes on the others).
    """

    decode_sms: int
    paces: tuple[tuple[int, float], ...]

    def pace(self, decode_sms: int) -> float:
        """That of a split; of any other share, all SMs above all, 1."""
        return next((pace for sms, pace in self.paces if sms == decode_sms), 1.0)


class Way(NamedTuple):
    """A way to go on: work done a second, decode's SMs now and afterwards, prefill's pace then.

    Now, 0 pauses decode for a layer group and all SMs pause prefill for a step; afterwards, 0 pauses decode until the
    queue is empty.
    """

    rate: float
    now_sms: int
    then_sms: int
    pace: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle(TwoLanes):
    """Two lanes on every instance.

    lengths, order, pause: knowledge and freedoms that it has; see above. With lengths and order, an answer too short to
        wait for the decode step in flight begins after it.
    decode_sms: decode's share beside a prefill; None searches for it.
    margin: the part of every limit that is aimed at.
    typical_tokens: how long an answer is thought to be without ``lengths``.
    horizon: prefill batches that a look ahead follows; those behind them are not looked at.
    queue_horizon: waiting requests that are put in order.
    layers_per_step: transformer layers in one prefill launch.
    batch_tokens: prompts are batched up to this many tokens; a longer one runs alone.
    sm_step: SMs by which shares differ, at most half of them; None takes a ninth of the device.
    max_resident: requests that may hold KV at once.
    """

    name: ClassVar[str] = "oracle"
    needs_truth: ClassVar[bool] = True

    lengths: bool = True
    order: bool = True
    pause: bool = True
    decode_sms: int | None = None
    margin: float = 0.9
    typical_tokens: int = 200
    horizon: int = 8
    queue_horizon: int = 256
    layers_per_step: int = 4
    batch_tokens: int = 2048
    sm_step: int | None = None
    max_resident: int = 1024
    router: Router = field(default_factory=LeastLoaded)

    def __post_init__(self) -> None:
        counts = ("decode_sms", "typical_tokens", "horizon", "queue_horizon", "layers_per_step", "batch_tokens")
        for name in (*counts, "sm_step", "max_resident"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"oracle: {name} is {value}; it must be 1 or more")
        if not 0 < self.margin <= 1:
            raise ValueError(f"oracle: margin is {self.margin}; it must be above 0 and at most 1")

    def decide(self, view: TrueView) -> Decision:
        prefill, decode = view.lanes[PREFILL], view.lanes[DECODE]
        state = view.memo if isinstance(view.memo, State) else self._first_state(view)
        relief = room(view)
        batches = self._batches(view, prefill, decode, relief, state)
        if not batches:
            if decode.busy or not relief.decodes:
                return Decision((), state)
            return Decision((Step(DECODE, view.sms, (), None, True, relief.victims, None, not view.waiting),), state)
        decode_sms = decode.sms if decode.busy else 0
        steps: tuple[Step, ...] = ()
        if relief.decodes and not decode.busy:
            decode_sms = self._search(view, batches, state)
            if decode_sms:
                steps = (Step(DECODE, decode_sms, (), None, True, relief.victims),)
            if decode_sms == view.sms:
                return Decision(steps, state)
            state = state._replace(decode_sms=decode_sms or state.decode_sms)
        if not prefill.busy:
            # Beside a step that has more than decode's part: the two overlap for its rest.
            sms = view.sms - min(decode_sms, state.decode_sms)
            layers = min(self.layers_per_step, view.latency.model.layers - prefill.layers_done)
            steps = (*steps, Step(PREFILL, sms, batches[0], layers))
        return Decision(steps, state)

    def _first_state(self, view: TrueView) -> State:
        total, estimate = view.sms, view.latency.estimate
        step = split_steps(view, self.sm_step)
        if self.sm_step is None:
            step *= max(1, total // (SHARES + 1) // step)
        shares = tuple(range(step, total, step)) if self.decode_sms is None else (self.decode_sms,)
        if not 0 < shares[0] < total:
            raise ValueError(f"decode_sms is {shares[0]} of an instance's {total} SMs; leave one or more to each phase")
        whole_s = estimate(REFERENCE, total).seconds
        paces = tuple((sms, estimate(REFERENCE, total - sms).seconds / whole_s) for sms in shares)
        return State(shares[len(shares) // 3], paces)

    def _batches(self, view: TrueView, prefill: LaneView, decode: LaneView, relief: Relief, state: State) -> Batches:
        """The batch in progress, or one that can begin now, and those behind it; empty where there is neither."""
        if prefill.batch and (decode.busy or not relief.decodes):
            return (prefill.batch,)
        queue = list(islice(view.waiting.values(), self.queue_horizon))
        if self.order and len(queue) > 1 and view.slo.limits_ttft:
            queue = self._on_time_first(view, queue, state)
        if prefill.batch:
            return (prefill.batch, *islice(self._cut(queue), self.horizon))
        if decode.busy and self.lengths and self.order:
            queue = self._bearing(view, queue)
        free, places = relief.free_blocks, self.max_resident - len(view.decoding) - len(view.prefilling)
        first: list[Chunk] = []
        for chunk in () if relief.victims else next(self._cut(queue), ()):
            free -= blocks_to_begin(chunk.request, view.block_tokens)
            if free < 0 or len(first) == places:
                break
            first.append(chunk)
        return (tuple(first), *islice(self._cut(queue[len(first) :]), self.horizon)) if first else ()

    def _bearing(self, view: TrueView, queue: list[RequestProgress]) -> list[RequestProgress]:
        """The queue without answers too short to wait for the rest of the decode step in flight: they begin after it.

        One with n tokens to come after its first has n TPOTs for that rest and n steps.
        """
        decode, now = view.lanes[DECODE], view.now_s
        rest_s = max(0.0, decode.started_s + decode.predicted_s - now)
        assert decode.work is not None
        step_s = view.latency.estimate(decode.work, view.sms).seconds
        token_s = view.latency.estimate(REFERENCE, view.sms).seconds / REFERENCE.new_tokens
        tpot_s = view.slo.tpot_limit_s * self.margin

        def bears(request: RequestProgress) -> bool:
            steps = view.output_tokens(request) - request.generated_tokens - 1
            prefill_s = prefill_shape(request)[0] * token_s
            in_time = rest_s + steps * step_s <= prefill_s + steps * tpot_s
            return not steps or in_time or _first_due_s(view, request, self.margin) < now + rest_s + 2 * prefill_s

        return [request for request in queue if bears(request)]

    def _cut(self, queue: list[RequestProgress]) -> Iterator[tuple[Chunk, ...]]:
        """Batches of whole prompts up to the budget."""
        batch: list[Chunk] = []
        tokens = 0
        for request in queue:
            new = prefill_shape(request)[0]
            if batch and tokens + new > self.batch_tokens:
                yield tuple(batch)
                batch, tokens = [], 0
            batch.append(Chunk(request, new))
            tokens += new
        if batch:
            yield tuple(batch)

    @staticmethod
    def _on_time_first(view: TrueView, queue: list[RequestProgress], state: State) -> list[RequestProgress]:
        token_s = view.latency.estimate(REFERENCE, view.sms).seconds / REFERENCE.new_tokens
        token_s *= state.pace(state.decode_sms)
        jobs = [
            (prefill_shape(request)[0] * token_s, _first_due_s(view, request, 1.0) - view.now_s) for request in queue
        ]
        return [queue[place] for place in most_on_time(jobs)]

    def _search(self, view: TrueView, batches: Batches, state: State) -> int:
        """Decode's SMs of the best way on: 0 to pause it, all to pause prefill."""
        lane, total = view.lanes[PREFILL], view.sms
        rollout, group_s = self._rollout(view, batches, state)
        decodes = self._decodes(view)
        context = float(decodes.context.sum())
        alone_s = rollout.step_s(len(decodes.leave), context, None)
        after, met_alone = decodes.after(1.0), decodes.met(0.0, alone_s, 1.0)
        work_s = alone_s - rollout.step_s(1, 1.0, None)
        begun = rollout._replace(batches=(_shortened(rollout.batches[0], group_s), *rollout.batches[1:]))
        pause_s = max(0.0, lane.started_s + lane.predicted_s - view.now_s) if lane.busy else group_s

        ways = [Way(1.0, 0, 0, 1.0)] if self.pause else []
        for sms, pace in state.paces:
            step_s = rollout.step_s(len(decodes.leave), context, sms)
            ways.append(Way(1 / pace + work_s / step_s, sms, sms, pace))
            if self.pause:
                ways.append(Way(1.0, 0, sms, pace))
                if not lane.busy:
                    ways.append(Way(work_s / alone_s, total, sms, pace))
        best, most, bound = ways[0], -1, rollout.bound(decodes)
        for way in sorted(ways, key=lambda way: way.rate, reverse=True):
            if way.now_sms == 0:
                met = begun.met(decodes, way.then_sms, way.pace, pause_s, pause_s)
            elif way.now_sms == total:
                met = met_alone + rollout.met(after, way.then_sms, way.pace, alone_s, alone_s)
            else:
                met = rollout.met(decodes, way.then_sms, way.pace, 0.0, 0.0)
            if met > most:
                best, most = way, met
            if most >= bound:
                break
        return best.now_sms

    def _rollout(self, view: TrueView, batches: Batches, state: State) -> tuple[Rollout, float]:
        """The start of a look ahead; seconds on all SMs of the layer group that is next or in flight."""
        lane, total, estimate = view.lanes[PREFILL], view.sms, view.latency.estimate
        layers, ahead = view.latency.model.layers, []
        for chunks in batches:
            work = Work(prefill=tuple((chunk.tokens, prefill_shape(chunk.request)[1]) for chunk in chunks))
            ahead.append(self._batch(view, chunks, estimate(work, total).seconds))
        layer_s = ahead[0].whole_s / layers
        group_s = layer_s * min(self.layers_per_step, layers - lane.layers_done)
        done_s = layer_s * lane.layers_done
        if lane.busy:
            in_flight_s = (view.now_s - lane.started_s) / state.pace(total - lane.sms)
            done_s, group_s = done_s + in_flight_s, max(0.0, group_s - in_flight_s)
        ahead[0] = _shortened(ahead[0], done_s)

        def step_s(requests: int, context: float, share: int | None) -> float:
            work = Work((), requests, int(context) + requests)
            if share is None:
                return estimate(work, total).seconds
            return estimate(work, share, REFERENCE, total - share).seconds

        taken = 0 if lane.batch else sum(chunk.request.prefill_tokens for chunk in batches[0])
        return Rollout(tuple(ahead), view.free_blocks * view.block_tokens - taken, step_s), group_s

    def _batch(self, view: TrueView, chunks: tuple[Chunk, ...], whole_s: float) -> PromptBatch:
        tpot_s = min(view.slo.tpot_limit_s * self.margin, FOREVER_S)
        rows = []
        for request, _ in chunks:
            steps, leave = self._steps(view, request, request.generated_tokens + 1)
            first_s, generated = request.first_token_s, request.generated_tokens
            last_due_s = FOREVER_S if first_s is None else first_s + tpot_s * (generated + steps) - view.now_s
            first_due_s = _first_due_s(view, request, self.margin) - view.now_s
            rows.append((first_due_s, steps, leave, request.prefill_tokens, tpot_s * steps, last_due_s))
        return PromptBatch(whole_s, *_columns(rows))

    def _decodes(self, view: TrueView) -> Decodes:
        tpot_s = min(view.slo.tpot_limit_s * self.margin, FOREVER_S)
        rows = []
        for request in view.decoding.values():
            generated, first_s = request.generated_tokens, request.first_token_s
            assert first_s is not None
            steps, leave = self._steps(view, request, generated)
            due_s = first_s + tpot_s * (generated + steps - 1) - view.now_s
            rows.append((steps, due_s, leave, request.context_tokens))
        return Decodes(*_columns(rows))

    def _steps(self, view: TrueView, request: RequestProgress, generated: int) -> tuple[int, int]:
        """(steps until TPOT is judged, steps until the answer is complete), when it has so many tokens."""
        if self.lengths:
            left = view.output_tokens(request) - generated
            return left, left
        return 1, self.typical_tokens - generated if generated < self.typical_tokens else generated


def _first_due_s(view: TrueView, request: RequestProgress, margin: float) -> float:
    """When a request's first token is due; one that is being recomputed has had it."""
    if request.first_token_s is not None:
        return FOREVER_S
    return request.arrival_s + min(view.slo.ttft_limit_s(request.prompt_tokens) * margin, FOREVER_S)


def _shortened(batch: PromptBatch, done_s: float) -> PromptBatch:
    return batch._replace(whole_s=max(0.0, batch.whole_s - done_s))


def _columns(rows: Sequence[tuple[float, ...]]) -> list[Floats]:
    return list(np.array(rows, dtype=np.float64).T)
