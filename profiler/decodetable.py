"""Decode attention, tabulated: for each batch, pieces linear in its context, on all shares at once."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from profiler.everyshare import CODES, SOURCES, Floats, on_every_share
from profiler.kernels import Kernel, Shard
from profiler.kerneltime import KernelClock
from profiler.latency import Source
from profiler.tables import put
from profiler.times import Times

MOST_BATCHES = 2048
"""Sizes of batches whose pieces are kept: each takes some 20 kB."""


class Segment(NamedTuple):
    """Decoding from a context on: seconds, and those bound by DRAM, linear in the context."""

    seconds: float
    seconds_a_token: float
    dram: float
    dram_a_token: float
    source: Source


Pieces = tuple[list[int], list[Segment]]
"""The contexts from which pieces begin, and the pieces; the last one goes on for ever."""


class DecodePass(NamedTuple):
    """A pass that only decodes: pieces of attention, and a layer without it, the embedding and the head."""

    starts: list[int]
    segments: list[Segment]
    layer: Times
    embedding: Times
    head: Times

    def at(self, context: int, layers: int) -> tuple[float, float, Source]:
        """(seconds, those of them bound by DRAM, what most rest on) at a context no shorter than the batch."""
        starts, segments, layer, embedding, head = self
        seconds, a_token, dram, dram_a_token, source = segments[bisect_right(starts, context) - 1]
        seconds += context * a_token
        dram += context * dram_a_token
        if layer[0] >= seconds:
            source = layer[2]
        return (
            layers * (seconds + layer[0]) + embedding[0] + head[0],
            layers * (dram + layer[1]) + embedding[1] + head[1],
            source,
        )


class _Lines(NamedTuple):
    """The pieces of a batch on all shares: SMs x pieces."""

    starts: list[int]
    at_zero: Floats
    a_token: Floats
    dram_at_zero: Floats
    dram_a_token: Floats
    sources: Floats

    def on(self, sms: int) -> Pieces:
        columns = (self.at_zero, self.a_token, self.dram_at_zero, self.dram_a_token)
        sources = [SOURCES[code] for code in self.sources[sms].tolist()]
        return self.starts, list(map(Segment, *(column[sms].tolist() for column in columns), sources))


class DecodeTable:
    """One layer's decode attention of one shard.

    ``knots`` gives the context tokens of a decode attention at which its alphas are known, ascending, and alphas are
    linear between them; None where there are no measurements. ``known`` holds pieces by SMs and requests.
    """

    __slots__ = ("_calibrated", "_clock", "_knots", "_lines", "_points", "_shard", "known")

    def __init__(
        self,
        shard: Shard,
        clock: KernelClock,
        calibrated: Callable[[list[Kernel]], list[Kernel]],
        knots: Callable[[Kernel], Sequence[float]] | None,
    ) -> None:
        self._shard = shard
        self._clock = clock
        self._calibrated = calibrated
        self._knots = knots
        self._lines: dict[int, _Lines] = {}
        self._points: dict[int, list[Kernel]] = {}
        self.known: list[dict[int, Pieces]] = [{} for _ in range(shard.device.sms + 1)]

    def add(self, requests: int, sms: int) -> Pieces:
        """Pieces between the contexts at which decode attention is known."""
        if self._knots is None:
            # Where compute takes over from DRAM differs from share to share.
            lines = self._make_lines(self.points(requests, sms))
        else:
            lines = self._lines.get(requests) or put(
                self._lines, requests, self._make_lines(self.points(requests, sms)), MOST_BATCHES
            )
        return put(self.known[sms], requests, lines.on(sms))

    def points(self, requests: int, sms: int) -> list[Kernel]:
        """Decode attention at its knots: the least context, those that are known, and one beyond."""
        known = self._points.get(requests)
        if known is None:
            attention = self._shard.attention_decode
            contexts = [requests, *self._contexts(attention(requests, requests), sms)]
            known = self._calibrated([attention(requests, context) for context in (*contexts, 2 * contexts[-1])])
            if self._knots is not None:
                put(self._points, requests, known)
        return known

    def _contexts(self, decode: Kernel, sms: int) -> list[float]:
        requests = decode.dims[0]
        if self._knots is not None:
            return [knot for knot in self._knots(decode) if knot > requests]
        crossing = self._clock.ridge_context(self._shard.decode_attention, requests, sms)
        return [crossing] if requests < crossing < float("inf") else []

    def _make_lines(self, points: list[Kernel]) -> _Lines:
        seconds, dram, sources = on_every_share(self._clock, points)
        sizes = np.array([kernel.size for kernel in points])[:, None]
        a_token = np.diff(seconds, axis=0) / np.diff(sizes, axis=0)
        at_zero = seconds[:-1] - a_token * sizes[:-1]
        moves = dram[1:]
        # What lies between two known points is neither, and rests on what is known less well.
        weaker = np.maximum(np.maximum(sources[:-1], sources[1:]), CODES["interpolated"])
        # Contexts are whole, and whole numbers compare faster with each other than with floats.
        starts = [math.ceil(kernel.size) for kernel in points[:-1]]
        tables = (at_zero, a_token, np.where(moves, at_zero, 0.0), np.where(moves, a_token, 0.0), weaker)
        return _Lines(starts, *(np.ascontiguousarray(table.T) for table in tables))
