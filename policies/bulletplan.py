"""Bullet's prefill scheduler: what prefill is on or would start next, and the TTFTs that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from policies.admission import Relief, blocks_to_begin
from policies.api import Chunk, LaneView, RequestProgress, View
from policies.bulletterms import State, Terms
from policies.forecast import (
    TtftForecast,
    forecast_queue,
    missed,
    on_time_first,
    prefill_shape,
    shortest_first,
    within,
)
from profiler.series import PrefillGroups, prefill_groups

new: Final = tuple.__new__
"""For what each decision makes: their own constructors take three times as long."""


class NextBatch:
    """The next batch, and whether more can follow it.

    order, ends_s: the queue as it would be prefilled, and the seconds until each first token of it.
    whole_s: what the batch takes where it is the first one of that forecast. groups: its layers, where it was asked.
    """

    __slots__ = ("chunks", "ends_s", "follows", "groups", "order", "whole_s")

    def __init__(
        self,
        chunks: tuple[Chunk, ...],
        follows: bool,
        order: Sequence[RequestProgress],
        ends_s: Sequence[float],
        whole_s: float | None,
        groups: PrefillGroups | None = None,
    ) -> None:
        self.chunks = chunks
        self.follows = follows
        self.order = order
        self.ends_s = ends_s
        self.whole_s = whole_s
        self.groups = groups


class PrefillPlan:
    """The batch that prefill is on, or would start: its next layer group, and when first tokens come of it.

    layers, ends: of the next group, and whether it ends the pass. groups: seconds of the batch's layers, of which
        ``layers_left`` remain.
    whole_s: what its remaining layers take on ``reference_sms``; left_s: the same less the time that those in flight
        have run.
    follows: whether a waiting request can be admitted after it; starved: whether one waits for KV or a place.
    alpha: measured over predicted seconds of late, counted in all of these.
    next: what the batch was taken from, None for one in progress: a forecast of the queue is made when the next is.
    """

    __slots__ = (
        "alpha",
        "chunks",
        "ends",
        "follows",
        "groups",
        "layers",
        "layers_left",
        "left_s",
        "next",
        "reference_sms",
        "starved",
        "whole_s",
    )

    def __init__(
        self,
        terms: Terms,
        chunks: tuple[Chunk, ...],
        groups: PrefillGroups,
        layers_left: int,
        whole_s: float,
        run_s: float,
        reference_sms: int,
        follows: bool,
        starved: bool,
        alpha: float,
        next: NextBatch | None,
    ) -> None:
        self.chunks = chunks
        self.groups = groups
        self.layers_left = layers_left
        self.layers = min(terms.layers_per_step, layers_left)
        self.ends = self.layers == layers_left
        self.whole_s = whole_s
        self.left_s = max(0.0, whole_s - run_s)
        self.reference_sms = reference_sms
        self.follows = follows
        self.starved = starved
        self.alpha = alpha
        self.next = next

    def pending(self, terms: Terms, now_s: float) -> tuple[tuple[float, float, float], ...]:
        """TTFTs of the requests ahead, as a forecast has them; one being recomputed has its first token and is left
        out."""
        return tuple(
            [
                (now_s - request.arrival_s, seconds, terms.ttft_limit_s(request.prompt_tokens))
                for request, seconds in self._ahead()
                if request.first_token_s is None
            ]
        )

    def in_time(self, terms: Terms, now_s: float) -> bool:
        """Whether the forecast of those ``pending`` is held, without making it."""
        count = late = 0
        for request, seconds in self._ahead():
            if request.first_token_s is None:
                count += 1
                if (now_s - request.arrival_s + seconds) / terms.ttft_limit_s(request.prompt_tokens) > 1:
                    late += 1
        return within(terms.percentile, late, count)

    def _ahead(self) -> list[tuple[RequestProgress, float]]:
        """Who is to be prefilled, and the seconds until the first token of each."""
        if self.next is None:
            return [(request, self.left_s) for request, _ in self.chunks]
        return list(zip(self.next.order, self.next.ends_s, strict=True))

    def forecast(self, terms: Terms, view: View) -> TtftForecast:
        """Of those ``pending`` and, where the queue is planned anew, TTFTs of late."""
        pending = self.pending(terms, view.now_s)
        if self.next is None:
            return TtftForecast(pending)
        return TtftForecast(pending, len(view.outcomes), missed(view.outcomes).ttft)

    def drain_s(self, terms: Terms, view: View) -> float:
        """Seconds of what is left with all, up to the queue's horizon, that waits and can follow."""
        if not self.follows:
            return self.left_s
        if self.next is not None:
            return self.next.ends_s[-1]
        # At the batch's pace.
        tokens = sum([prefill_shape(request)[0] for request in islice(view.waiting.values(), terms.queue_horizon)])
        taken = sum([tokens for _, tokens in self.chunks])
        return self.left_s + self.whole_s * tokens / taken * terms.layers / self.layers_left

    def group_s(self, sms: int) -> float:
        """Seconds of the next group alone on so many SMs."""
        return self.alpha * self.groups.seconds(self.layers, self.ends, sms)

    def pace(self, sms: int) -> float:
        """How many times as long as on ``reference_sms`` the remaining layers take on so many."""
        return self.alpha * self.groups.seconds(self.layers_left, True, sms) / self.whole_s


def plan_prefill(
    terms: Terms, view: View, lane: LaneView, relief: Relief, before: State, alpha: float
) -> PrefillPlan | None:
    """The plan by the SMs that prefill had ``before``; None where there is nothing to prefill that fits."""
    chunks = lane.batch
    if not chunks:
        batch = _next_batch(terms, view, relief, before.prefill_sms, alpha)
        return None if batch is None else _of_next(terms, view, batch, before.prefill_sms, alpha)
    layers, sms, waiting = terms.layers - lane.layers_done, before.prefill_sms, view.waiting
    follows = starved = False
    if waiting:
        first = next(iter(waiting.values()))
        follows = _fits(terms, first, relief.free_blocks, _places(terms, view))
        starved = not follows
    groups = before.groups
    if groups is None or before.chunks is not chunks:
        groups = _groups(terms, chunks)
    whole_s = alpha * groups.seconds(layers, True, sms)
    run_s = view.now_s - lane.started_s if lane.busy else 0.0
    return PrefillPlan(terms, chunks, groups, layers, whole_s, run_s, sms, follows, starved, alpha, None)


def _of_next(terms: Terms, view: View, batch: NextBatch, sms: int, alpha: float) -> PrefillPlan:
    """The plan for a batch that nothing has been launched of."""
    groups, whole_s = batch.groups, batch.whole_s
    if groups is None:
        groups = _groups(terms, batch.chunks)
    if whole_s is None:
        whole_s = alpha * groups.seconds(terms.layers, True, sms)
    starved = not batch.follows and len(batch.chunks) < len(view.waiting)
    return PrefillPlan(
        terms, batch.chunks, groups, terms.layers, whole_s, 0.0, sms, batch.follows, starved, alpha, batch
    )


def _groups(terms: Terms, chunks: tuple[Chunk, ...]) -> PrefillGroups:
    return prefill_groups(terms.latency, tuple([(tokens, prefill_shape(request)[1]) for request, tokens in chunks]))


def _places(terms: Terms, view: View) -> int:
    return terms.max_resident - len(view.decoding) - len(view.prefilling)


def _fits(terms: Terms, request: RequestProgress, free_blocks: int, places: int) -> bool:
    return places > 0 and blocks_to_begin(request, terms.block_tokens) <= free_blocks


def _next_batch(terms: Terms, view: View, relief: Relief, sms: int, alpha: float) -> NextBatch | None:
    """None where there is no queue, none of it fits, or room has just been made for others."""
    waiting, free = view.waiting, relief.free_blocks
    if not waiting or relief.victims:
        return None
    places = _places(terms, view)
    if len(waiting) == 1:
        # Mostly, and then there is nothing to put in order.
        (request,) = waiting.values()
        return _lone(terms, request, sms, alpha) if _fits(terms, request, free, places) else None
    queue = list(islice(waiting.values(), terms.queue_horizon))
    if not any(_fits(terms, request, free, places) for request in queue):
        return None
    forecast_order = forecast_queue
    if terms.reorder and len(queue) > 1 and terms.limits_ttft:
        forecast_order = on_time_first if terms.on_time else shortest_first
    order, ends_s, batch = forecast_order(view, queue, sms, terms.batch_fill, alpha)
    chunks: list[Chunk] = []
    for request in order[:batch]:
        if not _fits(terms, request, free, places - len(chunks)):
            break
        free -= blocks_to_begin(request, terms.block_tokens)
        chunks.append(new(Chunk, (request, prefill_shape(request)[0])))
    taken = len(chunks)
    if not taken:
        return None
    behind = order[taken] if taken < len(order) else None
    follows = taken < len(waiting) if behind is None else _fits(terms, behind, free, places - taken)
    return NextBatch(tuple(chunks), follows, order, ends_s, ends_s[0] if taken == batch else None)


def _lone(terms: Terms, request: RequestProgress, sms: int, alpha: float) -> NextBatch:
    """One request, and nobody behind it."""
    shape = prefill_shape(request)
    groups = prefill_groups(terms.latency, (shape,))
    seconds = alpha * groups.seconds(terms.layers, True, sms)
    return NextBatch((new(Chunk, (request, shape[0])),), False, (request,), (seconds,), seconds, groups)
