"""Bullet: prefill and decode at once on one GPU, each on its own SMs, moved layer by layer to hold the SLOs.

Lin et al., ASPLOS 2026, sections 3.2 and 3.3, Algorithm 1. Prefill runs in groups of layers and decode in whole
steps, on two lanes. Whenever a lane falls idle the scheduler forecasts the TTFT of what is being prefilled (or, before
a new batch, of the whole queue) and the TPOT of what is decoding, and splits the SMs:

- TPOT holds: decode gets the fewest SMs with which it still will, prefill the rest (prefill first: the shorter the
  prefill, the larger the decode batches);
- TPOT does not hold but TTFT does: decode gets all that it can use, prefill no fewer than keep its TTFT;
- neither holds: the split with the least max(TTFT / SLO, TPOT / SLO), over what can still be changed.

The queue is taken shortest prefill first when that breaks no TTFT SLO that would hold. A batch takes requests until it
makes use of its SMs. While pending TTFTs are in danger decode pauses for as long as its
own SLO allows. A decode step that will outlast the last prefill layers gets part of their SMs from the start, so shares
may overlap for a moment instead of leaving SMs idle. With one phase empty the other has all SMs.

Two limits on slowing decode are ours; the paper's "fewest SMs that hold the SLO" has none. A step lasts no longer than
the prefill that it makes room for: with a loose SLO and a short queue, SMs would idle for its rest. And while requests
wait for KV or places rather than SMs, decode takes all it can use, since only its ending frees them (``hurry_for_kv``).

Left open by the text, and settings here: layers a group (4), the percentile (P90) and its population (pending requests
and the last 100 finished), how much of a long queue is forecast, when a batch makes use of its SMs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, NamedTuple

from policies.admission import Relief, blocks_to_begin, relieve
from policies.api import Chunk, Decision, LaneView, Outcome, RequestProgress, Role, Router, Step, View
from policies.forecast import (
    TtftForecast,
    fewest,
    forecast_queue,
    percentile,
    prefill_shape,
    shortest_first,
)
from policies.routing import LeastLoaded
from profiler.work import Work

PREFILL, DECODE = "prefill", "decode"

USEFUL = 1.02
"""A step this close to the shortest there is counts as the shortest."""


class State(NamedTuple):
    """This policy's memo: the split, and the TPOT percentile (over its limit) of the requests finished so far.

    ``saturating_sms``, the fewest that draw nearly all of the bandwidth, never change.
    """

    prefill_sms: int
    decode_sms: int
    saturating_sms: int
    latest: Outcome | None = None
    past_tpot: float = 0.0


class PrefillPlan(NamedTuple):
    """The batch that prefill is on, or would start: its next layer group, and the TTFTs it leads to.

    whole_s: what its remaining layers take on ``reference_sms``; left_s: the same less the time that those in flight
        have run; drain_s: what is left with all that is known to wait.
    follows: whether a waiting request can be admitted after it; starved: whether one waits for KV or a place.
    """

    chunks: tuple[Chunk, ...]
    layers: int
    group: Work
    left: Work
    whole_s: float
    left_s: float
    drain_s: float
    reference_sms: int
    forecast: TtftForecast
    follows: bool
    starved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullet:
    """Two lanes on every instance.

    layers_per_step: transformer layers in one prefill launch.
    percentile: the share of requests whose TTFT and TPOT must be within SLO for it to count as held.
    queue_horizon: how many waiting requests are forecast and reordered; those behind them wait longer anyway.
    batch_fill: a prefill batch takes requests until it runs at this part of the FLOP/s that a long prompt attains.
    sm_step: SMs by which shares change, at most half of them; None takes the device's granularity.
    max_resident: requests that may hold KV at once.
    reorder, pause_decode, hurry_for_kv: switch these parts off to see what they are worth.
    """

    name: ClassVar[str] = "bullet"
    needs_truth: ClassVar[bool] = False
    fewest_instances: ClassVar[int] = 1

    layers_per_step: int = 4
    percentile: float = 0.9
    queue_horizon: int = 64
    batch_fill: float = 0.9
    sm_step: int | None = None
    max_resident: int = 1024
    reorder: bool = True
    pause_decode: bool = True
    hurry_for_kv: bool = True
    router: Router = field(default_factory=LeastLoaded)

    def __post_init__(self) -> None:
        for name in ("layers_per_step", "queue_horizon", "max_resident"):
            if getattr(self, name) < 1:
                raise ValueError(f"bullet: {name} is {getattr(self, name)}; it must be 1 or more")
        for name in ("percentile", "batch_fill"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"bullet: {name} is {getattr(self, name)}; it must be above 0 and at most 1")
        if self.sm_step is not None and self.sm_step < 1:
            raise ValueError(f"bullet: sm_step is {self.sm_step}; it must be 1 or more, or None for the device's")

    def roles(self, instances: int) -> tuple[Role, ...]:
        mixed: tuple[Role, ...] = ("mixed",)
        return mixed * instances

    def lanes(self, role: Role) -> tuple[str, ...]:
        return (PREFILL, DECODE)

    def decide(self, view: View) -> Decision:
        prefill, decode = view.lanes[PREFILL], view.lanes[DECODE]
        before = view.memo if isinstance(view.memo, State) else self._first_state(view)
        if prefill.batch and not prefill.busy and (decode.busy or not view.decoding):
            return Decision((self._next_group(view, prefill, decode, before),), before)
        if decode.busy:
            relief = Relief((), len(view.decoding), view.free_blocks - view.decode_block_demand)
        elif prefill.busy and not view.decoding:
            return Decision((), before)
        else:
            relief = relieve(view)
        plan = self._plan(view, prefill, relief, before.prefill_sms)
        if plan is None:
            sms, state = view.sms, before._replace(prefill_sms=view.sms, decode_sms=view.sms)
            if decode.busy or not relief.decodes:
                return Decision((), state)
            again = not view.waiting
            return Decision((Step(DECODE, sms, (), None, True, relief.victims, None, again),), state)
        return self._share(view, plan, relief, before)

    def _next_group(self, view: View, prefill: LaneView, decode: LaneView, before: State) -> Step:
        """The next layers of the batch in progress, with nothing else to decide.

        The share of a decode step in flight is settled until its end. What it leaves is prefill's; where that is less
        than prefill's part (decode had the GPU to itself when it started), the two overlap for the rest of the step.
        """
        layers = min(self.layers_per_step, view.latency.model.layers - prefill.layers_done)
        sms = max(before.prefill_sms, view.sms - decode.sms) if decode.busy else view.sms
        return Step(PREFILL, sms, prefill.batch, layers)

    def _first_state(self, view: View) -> State:
        """All SMs for both; and how many draw nine tenths of the bandwidth: decode's share without a TPOT SLO."""
        total, step = view.sms, self._sm_step(view)
        _, all_bytes = view.latency.ceilings(total)
        sms = fewest(step, total - step, step, lambda n: view.latency.ceilings(n)[1] >= 0.9 * all_bytes)
        return State(total, total, max(1, total // 2) if sms is None else sms)

    def _sm_step(self, view: View) -> int:
        return min(self.sm_step or view.latency.device.sm_granularity, view.sms // 2) or 1

    def _share(self, view: View, plan: PrefillPlan, relief: Relief, before: State) -> Decision:
        """Steps for the idle lanes while there is something to prefill."""
        prefill, decode = view.lanes[PREFILL], view.lanes[DECODE]
        if not relief.decodes:
            steps = () if prefill.busy else (Step(PREFILL, view.sms, plan.chunks, plan.layers),)
            return Decision(steps, before._replace(prefill_sms=view.sms))
        if decode.busy:
            # As in a next group: what the step in flight leaves, or this phase's part.
            state = self._split(view, plan, self._decode_clock(view, plan), before)
            sms = max(state.prefill_sms, view.sms - decode.sms)
            return Decision((Step(PREFILL, sms, plan.chunks, plan.layers),), state)
        decode_s = self._decode_clock(view, plan)
        state = self._split(view, plan, decode_s, before)
        steps = ()
        if not self._may_pause(view, plan, decode_s(state.decode_sms)):
            sms = self._decode_sms(view, plan, state.decode_sms, decode_s)
            steps = (Step(DECODE, sms, (), None, True, relief.victims),)
        if not prefill.busy:
            steps = (*steps, Step(PREFILL, state.prefill_sms if steps else view.sms, plan.chunks, plan.layers))
        return Decision(steps, state)

    def _plan(self, view: View, lane: LaneView, relief: Relief, sms: int) -> PrefillPlan | None:
        forecast, queue_s = None, 0.0
        layers = layers_left = view.latency.model.layers
        if lane.batch:
            chunks, layers_left = lane.batch, layers - lane.layers_done
            waiting = next(iter(view.waiting.values()), None)
            follows = waiting is not None and self._fits(view, waiting, relief.free_blocks, self._places(view))
            starved = waiting is not None and not follows
        else:
            chunks, follows, queue_s, forecast = self._next_batch(view, relief, sms)
            starved = len(chunks) < len(view.waiting) and not follows
        if not chunks:
            return None
        shapes = tuple((chunk.tokens, prefill_shape(chunk.request)[1]) for chunk in chunks)
        left = Work(prefill=shapes, layers=layers_left)
        whole_s = view.latency.estimate(left, sms).seconds
        left_s = max(0.0, whole_s - (view.now_s - lane.started_s)) if lane.busy else whole_s
        if forecast is None:
            forecast = TtftForecast(self._pending(view, [(chunk.request, left_s) for chunk in chunks]))
        if follows and lane.batch:
            # At the batch's pace: a forecast of the queue is made when the next batch is.
            tokens = sum(prefill_shape(request)[0] for request in islice(view.waiting.values(), self.queue_horizon))
            queue_s = left_s + whole_s * tokens / sum(new for new, _ in shapes) * layers / layers_left
        group_layers = min(self.layers_per_step, layers_left)
        return PrefillPlan(
            chunks=chunks,
            layers=group_layers,
            group=Work(prefill=shapes, layers=group_layers, head=group_layers == layers_left),
            left=left,
            whole_s=whole_s,
            left_s=left_s,
            drain_s=queue_s if follows else left_s,
            reference_sms=sms,
            forecast=forecast,
            follows=follows,
            starved=starved,
        )

    def _places(self, view: View) -> int:
        return self.max_resident - len(view.decoding) - len(view.prefilling)

    @staticmethod
    def _fits(view: View, request: RequestProgress, free_blocks: int, places: int) -> bool:
        return places > 0 and blocks_to_begin(request, view.block_tokens) <= free_blocks

    def _next_batch(
        self, view: View, relief: Relief, sms: int
    ) -> tuple[tuple[Chunk, ...], bool, float, TtftForecast | None]:
        """The next batch, whether more can follow it, and how long and with what TTFTs the queue will take."""
        if relief.victims or not view.waiting:
            return (), False, 0.0, None
        queue = list(islice(view.waiting.values(), self.queue_horizon))
        free, places = relief.free_blocks, self._places(view)
        if not any(self._fits(view, request, free, places) for request in queue):
            return (), False, 0.0, None
        sort = self.reorder and len(queue) > 1 and view.slo.limits_ttft
        order, ends_s, batch = (shortest_first if sort else forecast_queue)(view, queue, sms, self.batch_fill)
        chunks: list[Chunk] = []
        for request in order[:batch]:
            if not self._fits(view, request, free, places - len(chunks)):
                break
            free -= blocks_to_begin(request, view.block_tokens)
            chunks.append(Chunk(request, prefill_shape(request)[0]))
        taken = len(chunks)
        if taken < len(order):
            follows = self._fits(view, order[taken], free, places - taken)
        else:
            follows = taken < len(view.waiting)
        ahead = list(zip(order, ends_s, strict=True))
        settled = tuple(outcome.ttft_ratio for outcome in view.outcomes)
        return tuple(chunks), follows, ends_s[-1], TtftForecast(self._pending(view, ahead), settled)

    @staticmethod
    def _pending(view: View, ahead: list[tuple[RequestProgress, float]]) -> tuple[tuple[float, float, float], ...]:
        """Entries of a forecast; a request being recomputed has its first token and is left out."""
        now, limit_s = view.now_s, view.slo.ttft_limit_s
        return tuple(
            (now - request.arrival_s, seconds, limit_s(request.prompt_tokens))
            for request, seconds in ahead
            if request.first_token_s is None
        )

    @staticmethod
    def _decode_clock(view: View, plan: PrefillPlan) -> Callable[[int], float]:
        """Seconds of the next decode step on so many SMs, with prefill's layer group on all others."""
        decodes = len(view.decoding)
        work = Work(decode_requests=decodes, decode_context_tokens=view.decode_context_tokens + decodes)
        known: dict[int, float] = {}

        def seconds(sms: int) -> float:
            if sms not in known:
                known[sms] = view.latency.estimate(work, sms, plan.group, max(1, view.sms - sms)).seconds
            return known[sms]

        return seconds

    def _split(self, view: View, plan: PrefillPlan, decode_s: Callable[[int], float], before: State) -> State:
        """Algorithm 1's three branches."""
        total, step = view.sms, self._sm_step(view)
        if view.slo.tpot_s is None:
            sms = before.saturating_sms
            return before._replace(prefill_sms=total - sms, decode_sms=sms)
        before = self._with_past(view, before)
        limit_s = min(view.decode_slack_s(self.percentile), view.slo.tpot_s)
        useful_s = decode_s(before.saturating_sms)
        hurried = plan.starved and self.hurry_for_kv
        limit_s = min(limit_s, useful_s if hurried else max(plan.drain_s, useful_s))
        # Below saturation a step takes time in inverse proportion to its SMs.
        guess = math.ceil(min(total, before.saturating_sms * useful_s / limit_s)) if limit_s > 0 else total
        fit = fewest(step, total - step, step, lambda sms: decode_s(sms) <= limit_s, guess)
        if fit is not None and before.past_tpot <= 1:
            return before._replace(prefill_sms=total - fit, decode_sms=fit)

        def pace(sms: int) -> float:
            return view.latency.estimate(plan.left, sms).seconds / plan.whole_s

        def held(sms: int) -> bool:
            return plan.forecast.ratio(self.percentile, pace(sms)) <= 1

        least = None
        if held(plan.reference_sms):
            least = fewest(step, total - step, step, held, before.prefill_sms)
        if least is not None:
            sms = self._useful_sms(decode_s, step, total - least)
        else:
            savable = plan.forecast.savable(pace(total - step))
            sms = self._balanced_sms(view, savable, pace, decode_s, step)
        return before._replace(prefill_sms=total - sms, decode_sms=sms)

    @staticmethod
    def _useful_sms(decode_s: Callable[[int], float], step: int, most: int) -> int:
        """Decode SMs beyond which a step gets no shorter: taking more from prefill would help nobody."""
        useful = fewest(step, most, step, lambda sms: decode_s(sms) <= USEFUL * decode_s(most))
        return most if useful is None else useful

    def _balanced_sms(
        self,
        view: View,
        savable: TtftForecast,
        pace: Callable[[int], float],
        decode_s: Callable[[int], float],
        step: int,
    ) -> int:
        """Decode SMs of the split with the least max(TTFT / SLO, TPOT / SLO).

        Both are of what can still be changed: TTFT of requests that can still meet it, TPOT of the tokens to come.
        Counting what is lost already would hand all SMs to the phase that is further behind and keep them there.
        """
        total = view.sms

        def tpot(sms: int) -> float:
            return decode_s(sms) / view.slo.tpot_limit_s

        def ttft(sms: int) -> float:
            return max(1.0, savable.ratio(self.percentile, pace(total - sms)))

        crossing = fewest(step, total - step, step, lambda sms: tpot(sms) <= ttft(sms))
        if crossing is None:
            return self._useful_sms(decode_s, step, total - step)
        # The crossing lies between two splits; the one before it may have the smaller maximum.
        if crossing > step and tpot(crossing - step) < ttft(crossing):
            return crossing - step
        return crossing

    def _with_past(self, view: View, state: State) -> State:
        """The state with the TPOT percentile of finished requests, computed anew only when one has finished."""
        latest = view.outcomes[-1] if view.outcomes else None
        if latest is state.latest:
            return state
        past = [outcome.tpot_ratio for outcome in view.outcomes if outcome.tpot_ratio is not None]
        return state._replace(latest=latest, past_tpot=percentile(past, self.percentile))

    def _may_pause(self, view: View, plan: PrefillPlan, step_s: float) -> bool:
        """Whether decode can sit out the next layer group: TTFTs are in danger, and the TPOT SLO has room for it."""
        if (
            not self.pause_decode
            or view.slo.tpot_s is None
            or TtftForecast(plan.forecast.pending).ratio(self.percentile) <= 1
        ):
            return False
        group_s = view.latency.estimate(plan.group, view.sms).seconds
        return group_s + step_s <= view.decode_slack_s(self.percentile)

    @staticmethod
    def _decode_sms(view: View, plan: PrefillPlan, sms: int, decode_s: Callable[[int], float]) -> int:
        """Decode's share: more than its part near the last layers, by the time it will have the GPU alone."""
        if plan.follows or not plan.group.head:
            return sms
        alone = max(0.0, 1.0 - plan.left_s / decode_s(sms))
        return sms + int(alone * (view.sms - sms))
