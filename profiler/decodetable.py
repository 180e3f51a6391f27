"""Decode attention, tabulated: for each batch and share, pieces linear in its context."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from profiler.decodepass import DecodeLines, KnownBatch, Pieces
from profiler.kernels import Kernel, Shard
from profiler.kerneltime import KernelClock
from profiler.latency import Source
from profiler.tables import put
from profiler.times import CODES, SOURCES

if TYPE_CHECKING:
    from profiler.steptable import Calibration

MOST_BATCHES = 2048
"""Of which the knots are kept."""


class DecodeKnots(NamedTuple):
    """Decode attention of one batch at the contexts where its one alpha is known, and what that rests on.

    contexts: tokens of each request.
    """

    contexts: list[int]
    alphas: list[float]
    sources: list[Source]


class DecodeTable:
    """One layer's decode attention of one shard. ``known`` holds pieces by SMs and requests.

    batches: what is the same on all shares, by requests; tables of one shard may have them in common.
    """

    __slots__ = ("_batches", "_calibrated", "_calibration", "_clock", "_measured_sms", "_points", "_shard", "known")

    def __init__(
        self,
        shard: Shard,
        clock: KernelClock,
        calibrated: Callable[[list[Kernel]], list[Kernel]],
        calibration: Calibration | None,
        batches: dict[int, KnownBatch] | None = None,
    ) -> None:
        self._shard = shard
        self._clock = clock
        self._calibrated = calibrated
        self._calibration = calibration
        self._batches = {} if batches is None else batches
        self._points: dict[int, list[Kernel]] = {}
        self._measured_sms = (clock.shares.get("attention_decode") or (shard.device.sms,))[-1]
        self.known: list[dict[int, Pieces]] = [{} for _ in range(shard.device.sms + 1)]

    def add(self, requests: int, sms: int) -> Pieces:
        """Pieces between the contexts at which decode attention is known."""
        lines = self.lines(requests, sms)
        return put(self.known[sms], requests, lines if isinstance(lines, Pieces) else lines.pieces())

    def lines(self, requests: int, sms: int) -> DecodeLines | Pieces:
        """The same, each worked out when it is asked for where alphas are the same on all shares."""
        batch = self.batch(requests)
        if batch is None:
            return self._through(self.points(requests, sms), sms)
        clock = self._clock
        floor, measured = clock.floors.get("attention_decode", 0.0), sms == self._measured_sms
        rate = clock.flops["attention", "bf16"] / self._shard.device.sms * sms
        return DecodeLines(batch, measured, floor, rate, clock.bandwidth[sms])

    def points(self, requests: int, sms: int) -> list[Kernel]:
        """Decode attention at its knots: the least context, those that are known, and one beyond."""
        known = self._points.get(requests)
        if known is None:
            attention = self._shard.attention_decode
            contexts = [requests, *self._contexts(attention(requests, requests), sms)]
            known = self._calibrated([attention(requests, context) for context in (*contexts, 2 * contexts[-1])])
            if self._calibration is not None:
                put(self._points, requests, known, MOST_BATCHES)
        return known

    def _contexts(self, decode: Kernel, sms: int) -> Sequence[float]:
        requests = decode.dims[0]
        if self._calibration is not None:
            return [knot for knot in self._calibration.context_knots(decode) if knot > requests]
        # Where compute takes over from DRAM differs from share to share.
        crossing = self._clock.ridge_context(self._shard.decode_attention, requests, sms)
        return [crossing] if requests < crossing < math.inf else []

    def _through(self, points: list[Kernel], sms: int) -> Pieces:
        """Pieces between kernels."""
        times = [self._clock.time(point, sms) for point in points]
        return _pieces(
            [point.size for point in points],
            [math.ceil(point.size) for point in points[:-1]],
            [time.seconds for time in times],
            [time.bound == "dram" for time in times],
            _weaker([time.source for time in times]),
        )

    def batch(self, requests: int) -> KnownBatch | None:
        """None where alphas differ from share to share, or none is known."""
        known = self._batches.get(requests)
        if known is not None or self._calibration is None:
            return known
        knots = self._calibration.decode_knots(self._shard.attention_decode(requests, requests))
        if knots is None:
            return None
        of_token, bytes_of_token, bytes_of_request = self._shard.decode_attention
        sizes = [float(requests * context) for context in knots.contexts]
        batch = KnownBatch(
            sizes,
            [size * of_token for size in sizes],
            [size * bytes_of_token + requests * bytes_of_request for size in sizes],
            knots.alphas,
            [requests * context for context in knots.contexts[:-1]],
            _weaker(knots.sources),
        )
        return put(self._batches, requests, batch, MOST_BATCHES)


def _pieces(
    sizes: list[float], starts: list[int], seconds: list[float], dram: list[bool], sources: list[Source]
) -> Pieces:
    """Pieces between points; ``starts`` are the sizes as whole numbers, which compare faster with each other."""
    at_zero: list[float] = []
    a_token: list[float] = []
    for (size, one_s), (next_size, two_s) in pairwise(zip(sizes, seconds, strict=True)):
        slope = (two_s - one_s) / (next_size - size)
        a_token.append(slope)
        at_zero.append(one_s - slope * size)
    if all(dram[1:]):
        return Pieces(starts, at_zero, a_token, at_zero, a_token, sources)
    dram_at_zero = [base if in_dram else 0.0 for base, in_dram in zip(at_zero, dram[1:], strict=True)]
    dram_a_token = [slope if in_dram else 0.0 for slope, in_dram in zip(a_token, dram[1:], strict=True)]
    return Pieces(starts, at_zero, a_token, dram_at_zero, dram_a_token, sources)


def _weaker(sources: list[Source]) -> list[Source]:
    """What lies between two known points is neither, and rests on what is known less well."""
    least = CODES["interpolated"]
    return [SOURCES[max(CODES[one], CODES[two], least)] for one, two in pairwise(sources)]
