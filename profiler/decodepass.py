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


class DecodePass:
    """A pass that only decodes: pieces of attention, and a layer without it, the embedding and the head."""

    __slots__ = (
        "_a_token",
        "_at_zero",
        "_dram_a_token",
        "_dram_at_zero",
        "_embedding_dram_s",
        "_embedding_s",
        "_head_dram_s",
        "_head_s",
        "_layer_dram_s",
        "_layer_s",
        "_layer_source",
        "_sources",
        "_starts",
    )

    def __init__(self, pieces: Pieces, layer: Times, embedding: Times, head: Times) -> None:
        self._starts, self._at_zero, self._a_token, self._dram_at_zero, self._dram_a_token, self._sources = pieces
        self._layer_s, self._layer_dram_s, self._layer_source, _ = layer
        self._embedding_s, self._embedding_dram_s, _, _ = embedding
        self._head_s, self._head_dram_s, _, _ = head

    def at(self, context: int, layers: int) -> tuple[float, float, Source]:
        """(seconds, those of them bound by DRAM, what most rest on) at a context no shorter than the batch."""
        # Pieces.at, written out: most of what a policy asks for comes here.
        piece = bisect_right(self._starts, context) - 1
        seconds = self._at_zero[piece] + context * self._a_token[piece]
        dram = self._dram_at_zero[piece] + context * self._dram_a_token[piece]
        source = self._layer_source if self._layer_s >= seconds else self._sources[piece]
        return (
            layers * (seconds + self._layer_s) + self._embedding_s + self._head_s,
            layers * (dram + self._layer_dram_s) + self._embedding_dram_s + self._head_dram_s,
            source,
        )
