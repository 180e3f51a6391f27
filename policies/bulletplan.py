"""Bullet's prefill scheduler: what prefill is on or would start next, and the TTFTs that follow from it."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from policies.admission import Relief, blocks_to_begin
from policies.api import Chunk, LaneView, RequestProgress, View
from policies.forecast import TtftForecast, forecast_queue, on_time_first, prefill_shape, shortest_first
from profiler.work import Work


class PrefillPlan(NamedTuple):
    """The batch that prefill is on, or would start: its next layer group, and the TTFTs it leads to.

    whole_s: what its remaining layers take on ``reference_sms``; left_s: the same less the time that those in flight
        have run; drain_s: what is left with all that is known to wait.
    follows: whether a waiting request can be admitted after it; starved: whether one waits for KV or a place.
    alpha: measured over predicted seconds of late, counted in all of these.
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
    alpha: float


class NextBatch(NamedTuple):
    """The next batch, whether more can follow it, and how long and with what TTFTs the queue will take."""

    chunks: tuple[Chunk, ...] = ()
    follows: bool = False
    queue_s: float = 0.0
    forecast: TtftForecast | None = None


NO_BATCH = NextBatch()


class Planning:
    """The part of the policy that looks ahead; the settings it reads are those of policies.bullet.Bullet."""

    __slots__ = ()

    layers_per_step: int
    queue_horizon: int
    batch_fill: float
    max_resident: int
    reorder: bool
    on_time: bool

    def _plan(self, view: View, lane: LaneView, relief: Relief, sms: int, alpha: float) -> PrefillPlan | None:
        batch = NO_BATCH
        layers = layers_left = view.latency.model.layers
        if lane.batch:
            chunks, layers_left = lane.batch, layers - lane.layers_done
            waiting = next(iter(view.waiting.values()), None)
            follows = waiting is not None and self._fits(view, waiting, relief.free_blocks, self._places(view))
            starved = waiting is not None and not follows
        else:
            batch = self._next_batch(view, relief, sms, alpha)
            chunks, follows = batch.chunks, batch.follows
            starved = len(chunks) < len(view.waiting) and not follows
        if not chunks:
            return None
        shapes = tuple((chunk.tokens, prefill_shape(chunk.request)[1]) for chunk in chunks)
        left = Work(prefill=shapes, layers=layers_left)
        whole_s = alpha * view.latency.estimate(left, sms).seconds
        left_s = max(0.0, whole_s - (view.now_s - lane.started_s)) if lane.busy else whole_s
        queue_s = batch.queue_s
        if follows and lane.batch:
            # At the batch's pace: a forecast of the queue is made when the next batch is.
            tokens = sum(prefill_shape(request)[0] for request in islice(view.waiting.values(), self.queue_horizon))
            queue_s = left_s + whole_s * tokens / sum(new for new, _ in shapes) * layers / layers_left
        group_layers = min(self.layers_per_step, layers_left)
        ahead = [(chunk.request, left_s) for chunk in chunks]
        return PrefillPlan(
            chunks=chunks,
            layers=group_layers,
            group=Work(prefill=shapes, layers=group_layers, head=group_layers == layers_left),
            left=left,
            whole_s=whole_s,
            left_s=left_s,
            drain_s=queue_s if follows else left_s,
            reference_sms=sms,
            forecast=batch.forecast or TtftForecast(_pending(view, ahead)),
            follows=follows,
            starved=starved,
            alpha=alpha,
        )

    def _places(self, view: View) -> int:
        return self.max_resident - len(view.decoding) - len(view.prefilling)

    @staticmethod
    def _fits(view: View, request: RequestProgress, free_blocks: int, places: int) -> bool:
        return places > 0 and blocks_to_begin(request, view.block_tokens) <= free_blocks

    def _next_batch(self, view: View, relief: Relief, sms: int, alpha: float) -> NextBatch:
        if relief.victims or not view.waiting:
            return NO_BATCH
        queue = list(islice(view.waiting.values(), self.queue_horizon))
        free, places = relief.free_blocks, self._places(view)
        if not any(self._fits(view, request, free, places) for request in queue):
            return NO_BATCH
        forecast_order = forecast_queue
        if self.reorder and len(queue) > 1 and view.slo.limits_ttft:
            forecast_order = on_time_first if self.on_time else shortest_first
        order, ends_s, batch = forecast_order(view, queue, sms, self.batch_fill, alpha)
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
        settled = tuple(outcome.ttft_ratio for outcome in view.outcomes)
        forecast = TtftForecast(_pending(view, list(zip(order, ends_s, strict=True))), settled)
        return NextBatch(tuple(chunks), follows, ends_s[-1], forecast)


def _pending(view: View, ahead: list[tuple[RequestProgress, float]]) -> tuple[tuple[float, float, float], ...]:
    """Entries of a forecast; a request being recomputed has its first token and is left out."""
    now, limit_s = view.now_s, view.slo.ttft_limit_s
    return tuple(
        (now - request.arrival_s, seconds, limit_s(request.prompt_tokens))
        for request, seconds in ahead
        if request.first_token_s is None
    )
