"""Times of launches as sums over kernels, tabulated so that one costs a few look-ups.

All of a layer but attention depends on the number of tokens alone, the head on the number of sequences alone, prefill
attention on the sequences being prefilled, and decode attention on the batch and its context; so the sum is four
parts, each kept in a table. ``KernelClock`` is the formula; nothing else computes a time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import NamedTuple, Protocol, TypeVar

from profiler.kernels import Chunks, Kernel, Shard
from profiler.kerneltime import KernelClock, KernelTime
from profiler.latency import Source
from profiler.overlap import Parts, overlapped, overlapped_cost
from profiler.times import NO_TIME, Times, added, between
from profiler.work import Work, bad_layers

TABLE_ENTRIES = 32_768
"""Entries that one table (of one number of SMs) keeps before it starts anew."""


K = TypeVar("K")
V = TypeVar("V")


class Calibration(Protocol):
    """What measurements say of a kernel: the same kernel with its ``alphas`` and ``source``."""

    def calibrated(self, kernel: Kernel) -> Kernel: ...

    def alphas(self, kernel: Kernel) -> tuple[tuple[float, ...], Source]: ...

    @property
    def mixes(self) -> bool:
        """Whether ``mixed_ratio`` is known."""
        ...

    def mixed_ratio(self, new_tokens: int, requests: int, context: int) -> float:
        """Attention of prefilling and decoding sequences in one launch over the sum of the two."""
        ...

    def token_knots(self) -> list[int]:
        """Tokens between which a dense layer's time but for attention may be taken as linear, ascending."""
        ...

    def context_knots(self, kernel: Kernel) -> list[float]:
        """Context tokens of a decode attention at which its alphas are known, ascending; linear between them."""
        ...


class Segment(NamedTuple):
    """Decoding from a context on: seconds, and those bound by DRAM, linear in the context."""

    seconds: float
    seconds_a_token: float
    dram: float
    dram_a_token: float
    source: Source


class _Cost(NamedTuple):
    flops: float
    dram_bytes: float


def _cost(kernels: list[Kernel]) -> _Cost:
    return _Cost(sum(k.runs * k.flops for k in kernels), sum(k.runs * k.dram_bytes for k in kernels))


class StepTable:
    """Launch times of one shard. Holds no settings of its own; tables grow as shapes are met."""

    __slots__ = (
        "_attention",
        "_attention_costs",
        "_calibration",
        "_clock",
        "_decode",
        "_decode_kernels",
        "_head_costs",
        "_head_kernels",
        "_heads",
        "_knots",
        "_layer_costs",
        "_layer_kernels",
        "_layers",
        "_mixed_ratio",
        "_prefills",
        "_shard",
        "model_layers",
    )

    def __init__(self, shard: Shard, clock: KernelClock, calibration: Calibration | None = None) -> None:
        shares = range(shard.device.sms + 1)
        self._shard = shard
        self._clock = clock
        self._calibration = calibration
        self._mixed_ratio = calibration.mixed_ratio if calibration is not None and calibration.mixes else None
        self.model_layers = shard.model.layers
        # Rows of experts change elsewhere than tokens do.
        self._knots = [] if calibration is None or shard.model.experts else calibration.token_knots()
        self._layers: list[dict[int, tuple[Times, Times]]] = [{} for _ in shares]
        self._heads: list[dict[int, Times]] = [{} for _ in shares]
        self._attention: list[dict[Chunks, Times]] = [{} for _ in shares]
        self._decode: list[dict[int, tuple[list[int], list[Segment]]]] = [{} for _ in shares]
        self._prefills: list[dict[tuple[Chunks, int | None, bool], tuple[float, float, Source]]] = [{} for _ in shares]
        self._decode_kernels: dict[int, list[Kernel]] = {}
        self._layer_kernels: dict[int, tuple[list[Kernel], list[Kernel]]] = {}
        self._head_kernels: dict[int, list[Kernel]] = {}
        self._layer_costs: dict[int, tuple[_Cost, _Cost]] = {}
        self._head_costs: dict[int, _Cost] = {}
        self._attention_costs: dict[Chunks, _Cost] = {}

    def kernel_time(self, kernel: Kernel, sms: int) -> KernelTime:
        """A kernel of this shard alone on ``sms`` SMs, calibrated where there are measurements."""
        if kernel.op != "attention_decode":
            return self._clock.time(self._calibrated([kernel])[0], sms)
        context, requests = kernel.size, kernel.dims[0]
        if context in (point.size for point in self._decode_points(requests, sms)):
            return self._clock.time(self._calibrated([kernel])[0], sms)
        starts, segments = self._decode[sms].get(requests) or self._add_decode(requests, sms)
        segment = segments[max(0, bisect_right(starts, context) - 1)]
        seconds = kernel.runs * (segment.seconds + context * segment.seconds_a_token)
        return KernelTime(kernel, seconds, "dram" if segment.dram else "compute", segment.source)

    def launch(self, work: Work, sms: int) -> tuple[float, float, Source]:
        """(seconds, those of them bound by DRAM, what most rest on) of a launch alone on ``sms`` SMs, host excluded.

        Raises ValueError for token counts that no launch has.
        """
        prefill, tokens, context, layers, head, _, overlap = work
        if overlap is not None:
            return overlapped(self, work, sms)
        if prefill and not tokens and not context:
            # Layer groups of one batch, again and again.
            known, key = self._prefills[sms], (prefill, layers, head)
            return known.get(key) or _put(known, key, self._launch(work, sms))
        return self._launch(work, sms)

    def _launch(self, work: Work, sms: int) -> tuple[float, float, Source]:
        prefill, tokens, context, layers, head, _, _ = work
        seconds = dram = 0.0
        source: Source = "roofline"
        if tokens:
            if context < tokens:
                raise _bad(work)
            starts, segments = self._decode[sms].get(tokens) or self._add_decode(tokens, sms)
            base, a_token, dram, dram_a_token, source = segments[bisect_right(starts, context) - 1]
            seconds = base + context * a_token
            dram += context * dram_a_token
        elif context:
            raise _bad(work)
        rows = tokens
        if prefill:
            times = self._attention[sms].get(prefill) or self._add_attention(prefill, sms, work)
            if times[0] >= seconds:
                source = times[2]
            seconds += times[0]
            dram += times[1]
            for chunk in prefill:
                tokens += chunk[0]
            if rows and self._mixed_ratio is not None:
                ratio = self._mixed_ratio(tokens - rows, rows, context)
                seconds *= ratio
                dram *= ratio
            rows += len(prefill)
        layer, embedding = self._layers[sms].get(tokens) or self._add_layer(tokens, sms, work)
        if layer[0] >= seconds:
            source = layer[2]
        if layers is None:
            count = self.model_layers
        else:
            if not 0 < layers <= self.model_layers:
                raise bad_layers(work, self.model_layers)
            count = layers
            if not head:
                return count * (seconds + layer[0]), count * (dram + layer[1]), source
        last = self._heads[sms].get(rows) or self._add_head(rows, sms)
        return (
            count * (seconds + layer[0]) + embedding[0] + last[0],
            count * (dram + layer[1]) + embedding[1] + last[1],
            source,
        )

    def parts(self, work: Work, sms: int) -> Parts:
        """The parts that ``launch`` adds up; attention of both phases as if in launches of their own.

        Raises ValueError as ``launch`` does.
        """
        prefill, requests, context = work.prefill, work.decode_requests, work.decode_context_tokens
        decoding = NO_TIME
        if context < requests or (context and not requests):
            raise _bad(work)
        if requests:
            starts, segments = self._decode[sms].get(requests) or self._add_decode(requests, sms)
            base, a_token, dram, dram_a_token, source = segments[bisect_right(starts, context) - 1]
            decoding = Times(base + context * a_token, dram + context * dram_a_token, source)
        prefilling = NO_TIME
        if prefill:
            prefilling = self._attention[sms].get(prefill) or self._add_attention(prefill, sms, work)
        layer, embedding = self._layers[sms].get(work.new_tokens) or self._add_layer(work.new_tokens, sms, work)
        rows = len(prefill) + requests
        head = self._heads[sms].get(rows) or self._add_head(rows, sms)
        moved_s = self.cost(work._replace(layers=1, head=False, overlap=None))[1] / self._clock.bandwidth[sms]
        return Parts(prefilling, decoding, layer, embedding.seconds + head.seconds, moved_s)

    def decode_pass(self, work: Work, sms: int) -> tuple[list[int], list[Segment]]:
        """Whole passes that decode as many requests as ``work``: pieces linear in the context, and where they begin.

        Raises ValueError as ``launch`` does.
        """
        requests, context = work.decode_requests, work.decode_context_tokens
        if requests < 1 or context < requests:
            raise _bad(work)
        starts, segments = self._decode[sms].get(requests) or self._add_decode(requests, sms)
        layer, embedding = self._layers[sms].get(requests) or self._add_layer(requests, sms, work)
        last = self._heads[sms].get(requests) or self._add_head(requests, sms)
        count = self.model_layers
        return starts, [
            Segment(
                count * (part.seconds + layer.seconds) + embedding.seconds + last.seconds,
                count * part.seconds_a_token,
                count * (part.dram + layer.dram_seconds) + embedding.dram_seconds + last.dram_seconds,
                count * part.dram_a_token,
                layer.source if layer.seconds >= part.seconds + start * part.seconds_a_token else part.source,
            )
            for start, part in zip(starts, segments, strict=True)
        ]

    def cost(self, work: Work) -> tuple[float, float]:
        """(useful FLOPs, DRAM bytes) of a launch on one device. Raises ValueError as ``launch`` does."""
        prefill, tokens, context, layers, head, _, overlap = work
        if overlap is not None:
            return overlapped_cost(self, work)
        if context < tokens or (context and not tokens):
            raise _bad(work)
        rates = self._shard.decode_attention
        flops = context * rates.flops_per_token
        moved = context * rates.bytes_per_token + tokens * rates.bytes_per_request
        rows = len(prefill) + tokens
        if prefill:
            cost = self._attention_costs.get(prefill) or self._add_attention_cost(prefill, work)
            flops += cost[0]
            moved += cost[1]
            for chunk in prefill:
                tokens += chunk[0]
        layer, embedding = self._layer_costs.get(tokens) or self._add_layer_cost(tokens, work)
        count = self.model_layers if layers is None else layers
        if not 0 < count <= self.model_layers:
            raise bad_layers(work, self.model_layers)
        flops, moved = count * (flops + layer[0]), count * (moved + layer[1])
        if layers is not None and not head:
            return flops, moved
        last = self._head_costs.get(rows) or self._add_head_cost(rows)
        return flops + embedding[0] + last[0], moved + embedding[1] + last[1]

    def _calibrated(self, kernels: list[Kernel]) -> list[Kernel]:
        calibration = self._calibration
        return kernels if calibration is None else [calibration.calibrated(kernel) for kernel in kernels]

    def _kernels(self, tokens: int, work: Work) -> tuple[list[Kernel], list[Kernel]]:
        """Kernels of one layer and of the embedding."""
        found = self._layer_kernels.get(tokens)
        if found is None:
            if tokens < 1 or work.decode_requests < 0:
                raise _bad(work)
            layer, embedding = self._shard.layer_kernels(tokens), self._shard.embedding_kernels(tokens)
            found = _put(self._layer_kernels, tokens, (self._calibrated(layer), self._calibrated(embedding)))
        return found

    def _last_kernels(self, rows: int) -> list[Kernel]:
        found = self._head_kernels.get(rows)
        if found is None:
            found = _put(self._head_kernels, rows, self._calibrated(self._shard.head_kernels(rows)))
        return found

    def _sum_on(self, kernels: list[Kernel], sms: int) -> Times:
        time = self._clock.time
        return added([time(kernel, sms) for kernel in kernels])

    def _add_layer(self, tokens: int, sms: int, work: Work) -> tuple[Times, Times]:
        place = bisect_right(self._knots, tokens)
        if 0 < place < len(self._knots) and self._knots[place - 1] != tokens:
            low, high = self._knots[place - 1], self._knots[place]
            known = self._layers[sms]
            below = known.get(low) or self._sum_layer(low, sms, work)
            above = known.get(high) or self._sum_layer(high, sms, work)
            share = (tokens - low) / (high - low)
            layer, embedding = (between(one, two, share) for one, two in zip(below, above, strict=True))
            return _put(self._layers[sms], tokens, (layer, embedding))
        return self._sum_layer(tokens, sms, work)

    def _sum_layer(self, tokens: int, sms: int, work: Work) -> tuple[Times, Times]:
        layer, embedding = self._kernels(tokens, work)
        return _put(self._layers[sms], tokens, (self._sum_on(layer, sms), self._sum_on(embedding, sms)))

    def _add_head(self, rows: int, sms: int) -> Times:
        return _put(self._heads[sms], rows, self._sum_on(self._last_kernels(rows), sms))

    def _add_attention(self, prefill: Chunks, sms: int, work: Work) -> Times:
        for new, cached in prefill:
            if new < 1 or cached < 0:
                raise _bad(work)
        kernel = self._shard.attention_prefill(prefill)
        calibration = self._calibration
        alphas, source = (kernel.alphas, kernel.source) if calibration is None else calibration.alphas(kernel)
        _, seconds, bound, source = self._clock.timed(kernel, sms, alphas, source)
        return _put(self._attention[sms], prefill, Times(seconds, seconds if bound == "dram" else 0.0, source))

    def _add_decode(self, requests: int, sms: int) -> tuple[list[int], list[Segment]]:
        """Linear pieces between the contexts at which decode attention is known; the last one goes on for ever."""
        points = self._decode_points(requests, sms)
        time = self._clock.time
        times = [time(kernel, sms) for kernel in points]
        segments = []
        for first, last, one, two in zip(points, points[1:], times, times[1:], strict=False):
            a_token = (two.seconds - one.seconds) / (last.size - first.size)
            at_zero = one.seconds - a_token * first.size
            moves = two.bound == "dram"
            source = _weaker(one.source, two.source)
            segments.append(Segment(at_zero, a_token, at_zero if moves else 0.0, a_token if moves else 0.0, source))
        # Contexts are whole, and whole numbers compare faster with each other than with floats.
        starts = [math.ceil(kernel.size) for kernel in points[:-1]]
        return _put(self._decode[sms], requests, (starts, segments))

    def _decode_points(self, requests: int, sms: int) -> list[Kernel]:
        """Decode attention at its knots: the least context, those that are known, and one beyond."""
        known = self._decode_kernels.get(requests)
        if known is None:
            attention = self._shard.attention_decode
            whole = attention(requests, requests)
            contexts = [requests, *self._contexts(whole, sms)]
            known = self._calibrated([attention(requests, context) for context in (*contexts, 2 * contexts[-1])])
            if self._calibration is not None:
                _put(self._decode_kernels, requests, known)
        return known

    def _contexts(self, decode: Kernel, sms: int) -> list[float]:
        requests = decode.dims[0]
        if self._calibration is not None:
            return [knot for knot in self._calibration.context_knots(decode) if knot > requests]
        crossing = self._clock.ridge_context(self._shard.decode_attention, requests, sms)
        return [crossing] if requests < crossing < float("inf") else []

    def _add_layer_cost(self, tokens: int, work: Work) -> tuple[_Cost, _Cost]:
        layer, embedding = self._kernels(tokens, work)
        return _put(self._layer_costs, tokens, (_cost(layer), _cost(embedding)))

    def _add_head_cost(self, rows: int) -> _Cost:
        return _put(self._head_costs, rows, _cost(self._last_kernels(rows)))

    def _add_attention_cost(self, prefill: Chunks, work: Work) -> _Cost:
        for new, cached in prefill:
            if new < 1 or cached < 0:
                raise _bad(work)
        return _put(self._attention_costs, prefill, _cost([self._shard.attention_prefill(prefill)]))


def _weaker(one: Source, two: Source) -> Source:
    """What rests on both of two known points but is neither."""
    if "extrapolated" in (one, two) or "roofline" in (one, two):
        return "roofline" if "roofline" in (one, two) else "extrapolated"
    return "interpolated"


def _put(table: dict[K, V], key: K, value: V) -> V:
    if len(table) >= TABLE_ENTRIES:
        table.clear()
    table[key] = value
    return value


def _bad(work: Work) -> ValueError:
    return ValueError(
        f"no launch has these token counts: {work}; a prefill has 1 or more new and 0 or more cached tokens, a "
        f"decoding request at least one context token, and work has at least one of them"
    )
