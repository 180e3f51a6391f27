"""Seconds of decoding as functions of the context: linear in pieces."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from profiler.latency import Source
from profiler.times import Times


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


class DecodePass(NamedTuple):
    """A pass that only decodes: pieces of attention, and a layer without it, the embedding and the head."""

    pieces: Pieces
    layer: Times
    embedding: Times
    head: Times

    def at(self, context: int, layers: int) -> tuple[float, float, Source]:
        """(seconds, those of them bound by DRAM, what most rest on) at a context no shorter than the batch."""
        # Pieces.at, written out: most of what a policy asks for comes here.
        (starts, at_zero, a_token, dram_at_zero, dram_a_token, sources), layer, embedding, head = self
        piece = bisect_right(starts, context) - 1
        seconds = at_zero[piece] + context * a_token[piece]
        dram = dram_at_zero[piece] + context * dram_a_token[piece]
        source = sources[piece]
        if layer[0] >= seconds:
            source = layer[2]
        return (
            layers * (seconds + layer[0]) + embedding[0] + head[0],
            layers * (dram + layer[1]) + embedding[1] + head[1],
            source,
        )
