"""Seconds of decoding as functions of the context: linear in pieces."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

from profiler.latency import Source
from profiler.times import PassTimes


class Pieces(NamedTuple):
    """Decoding from each of ``starts`` on, the last piece for ever: seconds, and those bound by DRAM, linear in the
    context, and what they rest on."""

    starts: list[int]
    at_zero: list[float]
    a_token: list[float]
    dram_at_zero: list[float]
    dram_a_token: list[float]
    sources: list[Source]

    def at(self, context: float) -> tuple[float, float, Source]:
        """(seconds, those of them bound by DRAM, what they rest on); below the first start as from there."""
        starts, at_zero, a_token, dram_at_zero, dram_a_token, sources = self
        piece = bisect_right(starts, context) - 1
        if piece < 0:
            piece = 0
        seconds = at_zero[piece] + context * a_token[piece]
        return seconds, dram_at_zero[piece] + context * dram_a_token[piece], sources[piece]


NEVER: Final = 1 << 60
"""The last piece ends at no context."""

Line = tuple[float, float, float, float]
"""At context 0 and for each token: seconds, and those bound by DRAM, twice."""


class KnownBatch(NamedTuple):
    """Decode attention of one batch at its knots, whatever the share: entries of one knot each.

    sizes: context tokens. flops, moved: of one layer. starts, sources: of the pieces between knots.
    """

    sizes: list[float]
    flops: list[float]
    moved: list[float]
    alphas: list[float]
    starts: list[int]
    sources: list[Source]


class DecodeLines:
    """Decode attention of one batch on one share, each piece worked out when a context lies on it.

    measured: whether it is the share on which the batch was. floor: seconds of the smallest launch. rate, bandwidth:
        FLOP/s and bytes/s of the share.
    """

    __slots__ = ("_bandwidth", "_batch", "_floor", "_measured", "_rate", "starts")

    def __init__(self, batch: KnownBatch, measured: bool, floor: float, rate: float, bandwidth: float) -> None:
        self._batch = batch
        self._measured = measured
        self._floor = floor
        self._rate = rate
        self._bandwidth = bandwidth
        self.starts: list[int] = batch.starts

    def source(self, piece: int) -> Source:
        """What one piece rests on."""
        return self._batch.sources[piece] if self._measured else "extrapolated"

    def pieces(self) -> Pieces:
        """All of them."""
        lines = [self.line(piece) for piece in range(len(self.starts))]
        at_zero, a_token, dram_at_zero, dram_a_token = ([line[place] for line in lines] for place in range(4))
        sources = [self.source(piece) for piece in range(len(self.starts))]
        return Pieces(self.starts, at_zero, a_token, dram_at_zero, dram_a_token, sources)

    def line(self, piece: int) -> Line:
        """One piece."""
        sizes = self._batch.sizes
        one_s, _ = self._at_knot(piece)
        two_s, in_dram = self._at_knot(piece + 1)
        a_token = (two_s - one_s) / (sizes[piece + 1] - sizes[piece])
        at_zero = one_s - a_token * sizes[piece]
        return (at_zero, a_token, at_zero, a_token) if in_dram else (at_zero, a_token, 0.0, 0.0)

    def _at_knot(self, place: int) -> tuple[float, bool]:
        """(seconds, whether DRAM bounds them): ``KernelClock.timed`` of a kernel with one alpha, its operations."""
        batch = self._batch
        computing, moving = batch.flops[place] / self._rate, batch.moved[place] / self._bandwidth
        if computing <= moving:
            return (self._floor + moving) * batch.alphas[place], True
        return (self._floor + computing) * batch.alphas[place], False


class DecodePass:
    """A pass that only decodes: lines of attention, and a layer without it, the embedding and the head.

    The line from context ``_begin`` to ``_end``, the last one asked for, is at hand: contexts grow slowly.
    """

    __slots__ = (
        "_a_token",
        "_at_zero",
        "_begin",
        "_dram_a_token",
        "_dram_at_zero",
        "_embedding_dram_s",
        "_embedding_s",
        "_end",
        "_head_dram_s",
        "_head_s",
        "_layer_dram_s",
        "_layer_s",
        "_layer_source",
        "_lines",
        "_pieces",
        "_source",
        "_starts",
    )

    def __init__(self, attention: DecodeLines | Pieces, rest: PassTimes) -> None:
        # One of the two.
        self._lines: DecodeLines | None = None
        self._pieces: Pieces | None = None
        if isinstance(attention, DecodeLines):
            self._lines = attention
        else:
            self._pieces = attention
        self._starts: list[int] = attention.starts
        layer_s, layer_dram_s, source, embedding_s, embedding_dram_s, head_s, head_dram_s = rest
        self._layer_s, self._layer_dram_s, self._layer_source = layer_s, layer_dram_s, source
        self._embedding_s, self._embedding_dram_s = embedding_s, embedding_dram_s
        self._head_s, self._head_dram_s = head_s, head_dram_s
        self._begin = self._end = 0
        self._at_zero = self._a_token = self._dram_at_zero = self._dram_a_token = 0.0
        self._source: Source = "roofline"

    def at(self, context: int, layers: int) -> tuple[float, float, Source]:
        """(seconds, those of them bound by DRAM, what most rest on) at a context no shorter than the batch."""
        if not self._begin <= context < self._end:
            self._seek(context)
        seconds = self._at_zero + context * self._a_token
        dram = self._dram_at_zero + context * self._dram_a_token
        source = self._layer_source if self._layer_s >= seconds else self._source
        return (
            layers * (seconds + self._layer_s) + self._embedding_s + self._head_s,
            layers * (dram + self._layer_dram_s) + self._embedding_dram_s + self._head_dram_s,
            source,
        )

    def _seek(self, context: int) -> None:
        """Has the line of this context at hand."""
        starts = self._starts
        end = bisect_right(starts, context)
        self._begin, self._end = starts[end - 1], starts[end] if end < len(starts) else NEVER
        piece = end - 1
        if self._lines is not None:
            line, self._source = self._lines.line(piece), self._lines.source(piece)
        else:
            assert self._pieces is not None
            _, at_zero, a_token, dram_at_zero, dram_a_token, sources = self._pieces
            line, self._source = (
                (at_zero[piece], a_token[piece], dram_at_zero[piece], dram_a_token[piece]),
                sources[piece],
            )
        self._at_zero, self._a_token, self._dram_at_zero, self._dram_a_token = line
