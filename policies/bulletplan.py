"""Bullet's prefill scheduler: what prefill is on or would start next, and the TTFTs that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

from policies.admission import Relief, blocks_to_begin
from policies.api import Chunk, LaneView, RequestProgress, View
from policies.forecast import (
    TtftForecast,
    forecast_queue,
    missed,
    on_time_first,
    prefill_shape,
    shortest_first,
    within,
)
from profiler.latency import PrefillGroups, prefill_groups
from profiler.work import Work

new: Final = tuple.__new__
"""For what each decision makes: their own constructors take three times as long."""


class PlanSettings(Protocol):
    """Those of policies.bullet.Bullet that its scheduler reads."""

    @property
    def layers_per_step(self) -> int: ...
    @property
    def queue_horizon(self) -> int: ...
    @property
    def batch_fill(self) -> float: ...
    @property
    def max_resident(self) -> int: ...
    @property
    def reorder(self) -> bool: ...
    @property
    def on_time(self) -> bool: ...


class NextBatch(NamedTuple):
    """The next batch, and whether more can follow it.

    order, ends_s: the queue as it would be prefilled, and the seconds until each first token of it.
    whole_s: what the batch takes where it is the first one of that forecast.
    """

    chunks: tuple[Chunk, ...]
    follows: bool
    order: Sequence[RequestProgress]
    ends_s: Sequence[float]
    whole_s: float | None


class PrefillPlan(NamedTuple):
    """The batch that prefill is on, or would start: its next layer group, and when first tokens come of it.

    groups: seconds of its layers, of which ``layers_left`` remain and ``layers`` are in ``group``, the next.
    whole_s: what its remaining layers take on ``reference_sms``; left_s: the same less the time that those in flight
        have run.
    follows: whether a waiting request can be admitted after it; starved: whether one waits for KV or a place.
    alpha: measured over predicted seconds of late, counted in all of these.
    next: what the batch was taken from, None for one in progress: a forecast of the queue is made when the next is.
    """

    chunks: tuple[Chunk, ...]
    layers: int
    group: Work
    groups: PrefillGroups
    layers_left: int
    whole_s: float
    left_s: float
    reference_sms: int
    follows: bool
    starved: bool
    alpha: float
    next: NextBatch | None

    def pending(self, view: View) -> TtftForecast:
        """TTFTs of the requests ahead; one being recomputed has its first token and is left out."""
        now, (floor_s, base_s, token_s) = view.now_s, view.slo.ttft_line
        return TtftForecast(
            tuple(
                [
                    (now - request.arrival_s, seconds, max(floor_s, base_s + token_s * request.prompt_tokens))
                    for request, seconds in self._ahead()
                    if request.first_token_s is None
                ]
            )
        )

    def in_time(self, view: View, share: float) -> bool:
        """Whether the ``pending`` forecast is held, without making it."""
        now, (floor_s, base_s, token_s) = view.now_s, view.slo.ttft_line
        count = late = 0
        for request, seconds in self._ahead():
            if request.first_token_s is None:
                count += 1
                limit_s = max(floor_s, base_s + token_s * request.prompt_tokens)
                if (now - request.arrival_s + seconds) / limit_s > 1:
                    late += 1
        return within(share, late, count)

    def _ahead(self) -> list[tuple[RequestProgress, float]]:
        """Who is to be prefilled, and the seconds until the first token of each."""
        if self.next is None:
            return [(request, self.left_s) for request, _ in self.chunks]
        return list(zip(self.next.order, self.next.ends_s, strict=True))

    def forecast(self, view: View) -> TtftForecast:
        """``pending`` and, where the queue is planned anew, TTFTs of late."""
        forecast = self.pending(view)
        if self.next is None:
            return forecast
        return TtftForecast(forecast.pending, len(view.outcomes), missed(view.outcomes).ttft)

    def drain_s(self, view: View, horizon: int) -> float:
        """Seconds of what is left with all, up to ``horizon`` requests, that waits and can follow."""
        if not self.follows:
            return self.left_s
        if self.next is not None:
            return self.next.ends_s[-1]
        # At the batch's pace.
        tokens = sum([prefill_shape(request)[0] for request in islice(view.waiting.values(), horizon)])
        taken = sum([tokens for _, tokens in self.chunks])
        return self.left_s + self.whole_s * tokens / taken * view.latency.model.layers / self.layers_left

    def pace(self, sms: int) -> float:
        """How many times as long as on ``reference_sms`` the remaining layers take on so many."""
        return self.alpha * self.groups.seconds(self.layers_left, True, sms) / self.whole_s


def plan_prefill(
    settings: PlanSettings, view: View, lane: LaneView, relief: Relief, sms: int, alpha: float
) -> PrefillPlan | None:
    """The plan by ``sms`` SMs for prefill; None where there is nothing to prefill that fits."""
    layers = view.latency.model.layers
    chunks, waiting = lane.batch, view.waiting
    batch: NextBatch | None = None
    if chunks:
        layers -= lane.layers_done
        follows = starved = False
        if waiting:
            first = next(iter(waiting.values()))
            follows = _fits(view, first, relief.free_blocks, _places(settings, view))
            starved = not follows
    else:
        batch = _next_batch(settings, view, relief, sms, alpha) if waiting and not relief.victims else None
        if batch is None:
            return None
        chunks, follows = batch.chunks, batch.follows
        starved = len(chunks) < len(waiting) and not follows
    shapes = tuple([(tokens, prefill_shape(request)[1]) for request, tokens in chunks])
    groups = prefill_groups(view.latency, shapes)
    known_s = None if batch is None else batch.whole_s
    whole_s = alpha * groups.seconds(layers, True, sms) if known_s is None else known_s
    left_s = max(0.0, whole_s - (view.now_s - lane.started_s)) if lane.busy else whole_s
    taken = min(settings.layers_per_step, layers)
    group: Work = new(Work, (shapes, 0, 0, taken, taken == layers, 0, None))
    plan = (chunks, taken, group, groups, layers, whole_s, left_s, sms, follows, starved, alpha, batch)
    return new(PrefillPlan, plan)


def _places(settings: PlanSettings, view: View) -> int:
    return settings.max_resident - len(view.decoding) - len(view.prefilling)


def _fits(view: View, request: RequestProgress, free_blocks: int, places: int) -> bool:
    return places > 0 and blocks_to_begin(request, view.block_tokens) <= free_blocks


def _next_batch(settings: PlanSettings, view: View, relief: Relief, sms: int, alpha: float) -> NextBatch | None:
    """None where none of the queue fits."""
    waiting, free, places = view.waiting, relief.free_blocks, _places(settings, view)
    if len(waiting) == 1:
        # Mostly, and then there is nothing to put in order.
        (request,) = waiting.values()
        return _lone(view, request, sms, alpha) if _fits(view, request, free, places) else None
    queue = list(islice(waiting.values(), settings.queue_horizon))
    if not any(_fits(view, request, free, places) for request in queue):
        return None
    forecast_order = forecast_queue
    if settings.reorder and len(queue) > 1 and view.slo.limits_ttft:
        forecast_order = on_time_first if settings.on_time else shortest_first
    order, ends_s, batch = forecast_order(view, queue, sms, settings.batch_fill, alpha)
    chunks: list[Chunk] = []
    for request in order[:batch]:
        if not _fits(view, request, free, places - len(chunks)):
            break
        free -= blocks_to_begin(request, view.block_tokens)
        chunks.append(new(Chunk, (request, prefill_shape(request)[0])))
    taken = len(chunks)
    if not taken:
        return None
    behind = order[taken] if taken < len(order) else None
    follows = taken < len(waiting) if behind is None else _fits(view, behind, free, places - taken)
    return new(NextBatch, (tuple(chunks), follows, order, ends_s, ends_s[0] if taken == batch else None))


def _lone(view: View, request: RequestProgress, sms: int, alpha: float) -> NextBatch:
    """One request, and nobody behind it."""
    latency, shape = view.latency, prefill_shape(request)
    seconds = alpha * prefill_groups(latency, (shape,)).seconds(latency.model.layers, True, sms)
    return new(NextBatch, ((new(Chunk, (request, shape[0])),), False, (request,), (seconds,), seconds))
