"""What a scheduler foresees of its SLOs: TTFTs of the requests it has yet to prefill, TPOTs of those that decode.

Pure functions of a view, shared by policies that plan against SLOs (Bullet paper, section 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from policies.api import Outcome, RequestProgress, View
from profiler.series import PrefillPasses, prefill_passes

SATURATING_TOKENS = 4096
"""A prompt long enough that neither weights nor tail waves hold it back."""

SATURATING = ((SATURATING_TOKENS, 0),)

new: Final = tuple.__new__


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest of the values that at least ``share`` of them do not exceed; -inf for none."""
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else -math.inf


def within(share: float, beyond: int, count: int) -> bool:
    """Whether the ``share`` percentile of ``count`` values is within a limit that so many of them are beyond."""
    return count - beyond >= math.ceil(share * count)


class Missed(NamedTuple):
    """How many finished requests missed the TTFT limit, how many the TPOT limit, and how many have a TPOT."""

    ttft: int
    tpot: int
    judged: int


def missed(outcomes: Sequence[Outcome]) -> Missed:
    """Those of the finished requests that a view shows. What has a method of this name has counted them."""
    own: Callable[[], Missed] | None = getattr(outcomes, "missed", None)
    if own is not None:
        return own()
    tpots = [ratio > 1 for _, ratio in outcomes if ratio is not None]
    return Missed(sum([ratio > 1 for ratio, _ in outcomes]), sum(tpots), len(tpots))


def fewest(lowest: int, highest: int, step: int, enough: Callable[[int], bool], guess: int = 0) -> int | None:
    """The smallest of lowest, lowest + step, ... up to highest that is enough; None if none is.

    ``enough`` must not turn false as its argument grows. The search strides away from ``guess``, twice as far each
    time, and bisects the last stride: a good guess takes two calls.
    """
    count = (highest - lowest) // step + 1
    if count <= 0:
        return None

    # The answer lies in low ... high; high is known to fit, or is none.
    low, high, stride = 0, count, 1
    start = min(max(-(-(guess - lowest) // step), 0), count - 1)
    if enough(lowest + start * step):
        high = start
        while low < high:
            probe = max(high - stride, low)
            if not enough(lowest + probe * step):
                low = probe + 1
                break
            high, stride = probe, 2 * stride
    else:
        low = start + 1
        while low < high:
            probe = min(low + stride - 1, high - 1)
            if enough(lowest + probe * step):
                high = probe
                break
            low, stride = probe + 1, 2 * stride
    while low < high:
        middle = (low + high) // 2
        if enough(lowest + middle * step):
            high = middle
        else:
            low = middle + 1
    return lowest + low * step if low < count else None


class TtftForecast(NamedTuple):
    """Predicted TTFTs: (seconds waited so far, seconds of prefill ahead at the reference share, limit) a request.

    ``settled`` requests already have their first token, ``missed`` of them after their limit. ``pace`` below is how
    many times as long as at the reference share the prefill ahead takes.
    """

    pending: tuple[tuple[float, float, float], ...]
    settled: int = 0
    missed: int = 0

    def held(self, share: float, pace: float = 1.0) -> bool:
        """Whether the ``share`` percentile of TTFT over limit is 1 or less."""
        late = [1 for waited, ahead, limit in self.pending if (waited + ahead * pace) / limit > 1]
        return within(share, len(late) + self.missed, len(self.pending) + self.settled)

    def pending_ratio(self, share: float, pace: float = 1.0) -> float:
        """The ``share`` percentile of TTFT over limit of the pending requests."""
        return percentile([(waited + ahead * pace) / limit for waited, ahead, limit in self.pending], share)

    def savable(self, best_pace: float) -> TtftForecast:
        """The pending requests that can still meet their limit, at the best pace there is."""
        return TtftForecast(tuple(entry for entry in self.pending if entry[0] + entry[1] * best_pace <= entry[2]))


def prefill_shape(request: RequestProgress) -> tuple[int, int]:
    """(new tokens, cached tokens) of all that is left of a request's prompt."""
    done = request.prefilled_tokens + request.cached_tokens
    return request.prefill_tokens - done, done


class QueueForecast(NamedTuple):
    """A queue in the order it would be prefilled, batch by batch.

    ``ends_s`` are the seconds until each request's first token; ``batch`` is how many the first batch takes.
    """

    order: Sequence[RequestProgress]
    ends_s: Sequence[float]
    batch: int


def forecast_queue(
    view: View, queue: Sequence[RequestProgress], sms: int, fill: float, alpha: float = 1.0
) -> QueueForecast:
    """The queue in this order. A batch takes requests until it runs at ``fill`` of the FLOP/s there are.

    Those are what SATURATING_TOKENS attain on these SMs. The plain ridge, FLOPs a byte of C_p / D_p, is passed at some
    180 tokens of an 8B model on an A100, which padded tiles and tail waves still hold to 0.45 of C_p; a long prompt
    attains 0.75. FLOP/s count every limit. Estimates are multiplied by ``alpha``, which changes no batch.
    """
    shapes = [prefill_shape(request) for request in queue]
    return new(QueueForecast, (queue, *_batches(prefill_passes(view.latency, sms), shapes, fill, alpha)))


def _batches(
    passes: PrefillPasses, shapes: Sequence[tuple[int, int]], fill: float, alpha: float
) -> tuple[list[float], int]:
    """``ends_s`` and ``batch`` of a queue of these shapes."""
    count, enough, fewest = len(shapes), math.inf, 0
    if count > 1:
        full_s, full = passes.of(SATURATING)
        enough = fill * full / full_s
        if sum([cached for _, cached in shapes]) == 0:
            fewest = passes.fewest_tokens(enough, count)
    ends_s: list[float] = []
    ahead_s, first, begin, tokens = 0.0, 0, 0, 0
    for end, (new_tokens, _) in enumerate(shapes, 1):
        tokens += new_tokens
        if end < count and tokens < fewest:
            continue
        seconds, flops = passes.of(tuple(shapes[begin:end]))
        if end == count or flops >= enough * seconds:
            ahead_s += alpha * seconds
            ends_s += [ahead_s] * (end - begin)
            first = first or end
            begin, tokens = end, 0
    return ends_s, first


def shortest_first(
    view: View, queue: Sequence[RequestProgress], sms: int, fill: float, alpha: float = 1.0
) -> QueueForecast:
    """The queue by ascending prefill, if everyone who would meet the TTFT SLO in queue order still does; else as it is.

    Less prefill is less latency on the same SMs, so sorting by tokens sorts by estimated latency.
    """
    shapes, passes = [prefill_shape(request) for request in queue], prefill_passes(view.latency, sms)
    tokens = [new_tokens for new_tokens, _ in shapes]
    if tokens == sorted(tokens):
        return new(QueueForecast, (queue, *_batches(passes, shapes, fill, alpha)))
    places = sorted(range(len(tokens)), key=tokens.__getitem__)
    now, (floor_s, base_s, token_s) = view.now_s, view.slo.ttft_line
    due_s = [request.arrival_s + max(floor_s, base_s + token_s * request.prompt_tokens) for request in queue]
    sorted_ends_s, sorted_batch = _batches(passes, [shapes[place] for place in places], fill, alpha)
    late = [place for order, place in enumerate(places) if now <= due_s[place] < now + sorted_ends_s[order]]
    if late:
        ends_s, batch = _batches(passes, shapes, fill, alpha)
        for place in late:
            if now + ends_s[place] <= due_s[place]:
                return new(QueueForecast, (queue, ends_s, batch))
    return new(QueueForecast, ([queue[place] for place in places], sorted_ends_s, sorted_batch))


def on_time_first(
    view: View, queue: Sequence[RequestProgress], sms: int, fill: float, alpha: float = 1.0
) -> QueueForecast:
    """The queue in the order that gets most first tokens out in time, those that are lost anyway last.

    Prefill takes time by its tokens, at the pace of a long prompt on these SMs.
    """
    token_s = alpha * prefill_passes(view.latency, sms).of(SATURATING)[0] / SATURATING_TOKENS
    now, limit_s = view.now_s, view.slo.ttft_limit_s
    jobs = [(prefill_shape(one)[0] * token_s, one.arrival_s + limit_s(one.prompt_tokens) - now) for one in queue]
    return forecast_queue(view, [queue[place] for place in most_on_time(jobs)], sms, fill, alpha)


def most_on_time(jobs: Sequence[tuple[float, float]]) -> list[int]:
    """The order of (seconds, due time from the same start) jobs, one at a time, in which most end in time.

    Moore and Hodgson, 1968: in order of due times, the longest so far is put off whenever one would be late. Those put
    off come last, in their own order.
    """
    by_due = sorted(range(len(jobs)), key=lambda place: jobs[place][1])
    kept: list[tuple[float, int]] = []
    end_s, late = 0.0, set()
    for place in by_due:
        seconds, due_s = jobs[place]
        heappush(kept, (-seconds, place))
        end_s += seconds
        if end_s > due_s:
            longest, put_off = heappop(kept)
            end_s += longest
            late.add(put_off)
    return [*(place for place in by_due if place not in late), *sorted(late)]
