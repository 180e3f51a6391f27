"""Bullet: prefill and decode at once on one GPU, each on its own SMs, moved layer by layer to hold the SLOs.

Lin et al., ASPLOS 2026, sections 3.2 and 3.3, Algorithm 1. Prefill runs in groups of layers and decode in whole
steps, on two lanes. Whenever a lane falls idle the scheduler forecasts the TTFT of what is being prefilled (or, before
a new batch, of the whole queue) and the TPOT of what is decoding, and splits the SMs:

- TPOT holds: decode gets the fewest SMs with which it still will, prefill the rest (prefill first: the shorter the
  prefill, the larger the decode batches);
- TPOT does not hold but TTFT does: prefill gets the fewest SMs with which it still will, decode the rest;
- neither holds: the split with the least max(TTFT / SLO, TPOT / SLO).

The queue is taken shortest prefill first when that breaks no TTFT SLO that would hold. A batch takes requests until its
arithmetic intensity reaches the ridge of its SMs. While pending TTFTs are in danger decode pauses for as long as its
own SLO allows. A decode step that will outlast the last prefill layers gets part of their SMs from the start, so shares
may overlap for a moment instead of leaving SMs idle. With one phase empty the other has all SMs.

Left open by the text, and settings here: layers a group (4), the percentile (P90) and its population (pending requests
and the last 100 finished), how much of a long queue is forecast.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from policies.admission import Relief, blocks_for, relieve
from policies.api import Chunk, Decision, LaneView, RequestProgress, Role, Router, Step, View
from policies.forecast import (
    TtftForecast,
    batch_to_ridge,
    decode_allowance_s,
    fewest,
    forecast_queue,
    percentile,
    shortest_first,
    tpot_ratio,
)
from policies.routing import LeastLoaded
from profiler.work import Work

PREFILL, DECODE = "prefill", "decode"


class Split(NamedTuple):
    """SMs of each phase; the memo of this policy."""

    prefill_sms: int
    decode_sms: int


class PrefillPlan(NamedTuple):
    """The batch that prefill is on, or would start: its next layer group, and the TTFTs it leads to.

    ``left_s`` is what remains of the batch at ``reference_sms``.
    """

    chunks: tuple[Chunk, ...]
    layers: int
    group: Work
    left: Work
    left_s: float
    reference_sms: int
    forecast: TtftForecast
    queue_follows: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullet:
    """Two lanes on every instance.

    layers_per_step: transformer layers in one prefill launch.
    percentile: the share of requests whose TTFT and TPOT must be within SLO for it to count as held.
    queue_horizon: how many waiting requests are forecast and reordered; those behind them wait longer anyway.
    sm_step: SMs by which shares change; None takes the device's granularity.
    max_resident: requests that may hold KV at once.
    reorder, pause_decode: switch these parts off to see what they are worth.
    """

    name: ClassVar[str] = "bullet"
    needs_truth: ClassVar[bool] = False
    fewest_instances: ClassVar[int] = 1

    layers_per_step: int = 4
    percentile: float = 0.9
    queue_horizon: int = 64
    sm_step: int | None = None
    max_resident: int = 256
    reorder: bool = True
    pause_decode: bool = True
    router: Router = field(default_factory=LeastLoaded)

    def __post_init__(self) -> None:
        for name in ("layers_per_step", "queue_horizon", "max_resident"):
            if getattr(self, name) < 1:
                raise ValueError(f"bullet: {name} is {getattr(self, name)}; it must be 1 or more")
        if not 0 < self.percentile <= 1:
            raise ValueError(f"bullet: percentile is {self.percentile}; it must be above 0 and at most 1")
        if self.sm_step is not None and self.sm_step < 1:
            raise ValueError(f"bullet: sm_step is {self.sm_step}; it must be 1 or more, or None for the device's")

    def roles(self, instances: int) -> tuple[Role, ...]:
        mixed: tuple[Role, ...] = ("mixed",)
        return mixed * instances

    def lanes(self, role: Role) -> tuple[str, ...]:
        return (PREFILL, DECODE)

    def decide(self, view: View) -> Decision:
        prefill, decode = view.lanes[PREFILL], view.lanes[DECODE]
        before = view.memo if isinstance(view.memo, Split) else Split(view.sms, view.sms)
        if decode.busy:
            relief = Relief((), len(view.decoding), view.free_blocks - view.decode_block_demand)
        elif prefill.busy and not view.decoding:
            return Decision((), before)
        else:
            relief = relieve(view)
        plan = self._plan(view, prefill, relief, before)
        split = self._split(view, plan, relief.decodes, before)
        steps: list[Step] = []
        decoding = decode.busy
        if not decode.busy and relief.decodes and not (plan and self._may_pause(view, plan, split)):
            sms = self._decode_sms(view, plan, split)
            steps.append(Step(DECODE, sms, decode=True, preempt=relief.victims))
            decoding = True
        if plan and not prefill.busy:
            sms = split.prefill_sms if decoding else view.sms
            steps.append(Step(PREFILL, sms, prefill=plan.chunks, layers=plan.layers))
        return Decision(tuple(steps), split)

    def _plan(self, view: View, lane: LaneView, relief: Relief, before: Split) -> PrefillPlan | None:
        sms = before.prefill_sms
        if lane.batch:
            forecast = None
            chunks, layers_left = lane.batch, view.latency.model.layers - lane.layers_done
            queue_follows = bool(view.waiting)
        else:
            chunks, queue_follows, forecast = self._next_batch(view, relief, sms)
            layers_left = view.latency.model.layers
            if not chunks:
                return None
        shapes = tuple((chunk.tokens, chunk.request.prefilled_tokens) for chunk in chunks)
        layers = min(self.layers_per_step, layers_left)
        left = Work(prefill=shapes, layers=layers_left)
        left_s = view.latency.estimate(left, sms).seconds
        if lane.busy:
            left_s = max(0.0, left_s - (view.now_s - lane.started_s))
        if forecast is None:
            ahead = [(chunk.request, left_s) for chunk in chunks]
            forecast = TtftForecast(self._pending(view, ahead))
        group = Work(prefill=shapes, layers=layers, head=layers == layers_left)
        return PrefillPlan(chunks, layers, group, left, left_s, sms, forecast, queue_follows)

    def _next_batch(self, view: View, relief: Relief, sms: int) -> tuple[tuple[Chunk, ...], bool, TtftForecast | None]:
        """The next batch, whether requests stay behind, and what the whole queue can expect."""
        if relief.victims or not view.waiting:
            return (), False, None
        queue: list[RequestProgress] = []
        for request in view.waiting.values():
            queue.append(request)
            if len(queue) == self.queue_horizon:
                break
        order = shortest_first(view, queue, sms) if self.reorder and len(queue) > 1 else queue
        batch = order[: batch_to_ridge(view, order, 0, sms)]
        free = relief.free_blocks
        room = self.max_resident - len(view.decoding) - len(view.prefilling)
        chunks: list[Chunk] = []
        for request in batch:
            free -= blocks_for(request.prefill_tokens, view.block_tokens)
            if free < 0 or len(chunks) >= room:
                break
            chunks.append(Chunk(request, request.prefill_tokens))
        ahead = list(zip(order, forecast_queue(view, order, sms), strict=True))
        limit_s = view.slo.ttft_limit_s
        settled = tuple(done.ttft_s / limit_s(done.prompt_tokens) for done in view.outcomes)
        behind = len(chunks) < len(view.waiting)
        return tuple(chunks), behind, TtftForecast(self._pending(view, ahead), settled)

    @staticmethod
    def _pending(view: View, ahead: list[tuple[RequestProgress, float]]) -> tuple[tuple[float, float, float], ...]:
        """Entries of a forecast; a request being recomputed has its first token and is left out."""
        now, limit_s = view.now_s, view.slo.ttft_limit_s
        return tuple(
            (now - request.arrival_s, seconds, limit_s(request.prompt_tokens))
            for request, seconds in ahead
            if request.first_token_s is None
        )

    def _split(self, view: View, plan: PrefillPlan | None, decodes: int, before: Split) -> Split:
        """Algorithm 1's three branches."""
        total, step = view.sms, self.sm_step or view.latency.device.sm_granularity
        if plan is None or not decodes:
            return Split(total, total)
        if view.slo.tpot_s is None:
            return self._saturating_split(view, step)
        work = Work(decode_requests=decodes, decode_context_tokens=view.decode_context_tokens + decodes)

        def decode_s(sms: int) -> float:
            return view.latency.estimate(work, sms, plan.group, total - sms).seconds

        allowance_s = min(decode_allowance_s(view, self.percentile), view.slo.tpot_s)
        fit = fewest(step, total - step, step, lambda sms: decode_s(sms) <= allowance_s, before.decode_sms)
        past = [outcome.tpot_s for outcome in view.outcomes if outcome.tpot_s is not None]
        if fit is not None and percentile(past, self.percentile) <= view.slo.tpot_s:
            return Split(total - fit, fit)

        def ttft(sms: int) -> float:
            pace = view.latency.estimate(plan.left, sms).seconds / max(
                view.latency.estimate(plan.left, plan.reference_sms).seconds, 1e-12
            )
            return plan.forecast.ratio(self.percentile, pace)

        if ttft(plan.reference_sms) <= 1:
            least = fewest(step, total - step, step, lambda sms: ttft(sms) <= 1, before.prefill_sms)
            if least is not None:
                return Split(least, total - least)
        crossing = fewest(
            step,
            total - step,
            step,
            lambda sms: tpot_ratio(view, decode_s(sms), self.percentile) <= ttft(total - sms),
        )
        sms = total - step if crossing is None else crossing
        return Split(total - sms, sms)

    @staticmethod
    def _saturating_split(view: View, step: int) -> Split:
        """Without a TPOT SLO: the fewest decode SMs that draw nine tenths of the bandwidth."""
        _, all_bytes = view.latency.ceilings(view.sms)
        sms = fewest(step, view.sms - step, step, lambda n: view.latency.ceilings(n)[1] >= 0.9 * all_bytes)
        sms = view.sms // 2 if sms is None else sms
        return Split(view.sms - sms, sms)

    def _may_pause(self, view: View, plan: PrefillPlan, split: Split) -> bool:
        """Whether decode can sit out the next layer group: TTFTs are in danger, and its TPOTs allow it."""
        if not self.pause_decode or plan.forecast.ratio(self.percentile, pending_only=True) <= 1:
            return False
        decodes = len(view.decoding)
        work = Work(decode_requests=decodes, decode_context_tokens=view.decode_context_tokens + decodes)
        group_s = view.latency.estimate(plan.group, view.sms).seconds
        step_s = view.latency.estimate(work, split.decode_sms, plan.group, split.prefill_sms).seconds
        return group_s + step_s <= decode_allowance_s(view, self.percentile)

    def _decode_sms(self, view: View, plan: PrefillPlan | None, split: Split) -> int:
        """Decode's share: more than its part near the last layers, by the time it will have the GPU alone."""
        if plan is None or plan.queue_follows:
            return split.decode_sms
        decodes = len(view.decoding)
        work = Work(decode_requests=decodes, decode_context_tokens=view.decode_context_tokens + decodes)
        step_s = view.latency.estimate(work, split.decode_sms, plan.group, split.prefill_sms).seconds
        alone = max(0.0, 1.0 - plan.left_s / step_s)
        return split.decode_sms + int(alone * (view.sms - split.decode_sms))
