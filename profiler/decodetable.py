"""Decode attention, tabulated: for each batch, pieces linear in its context, on all shares at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiler.decodepass import Pieces
from profiler.everyshare import CODES, SOURCES, Floats, on_every_share
from profiler.kernels import Kernel, Shard
from profiler.kerneltime import KernelClock
from profiler.tables import put

if TYPE_CHECKING:
    from profiler.steptable import Calibration

BLOCK = 16
"""Sizes of batches that are tabulated together: not much longer than one, and what that takes stays in the cache."""

MOST_BLOCKS, MOST_BATCHES = 128, 2048
"""Of which the pieces are kept: a batch takes some 20 kB."""


class DecodeKnots(NamedTuple):
    """Decode attention of several batches at the contexts where its one alpha is known: batches x contexts.

    contexts: tokens of each request. sources: codes of what alphas rest on.
    """

    contexts: list[float]
    alphas: Floats
    sources: NDArray[np.int8]


class _Lines(NamedTuple):
    """The pieces of some batches on all shares: batches x SMs x pieces. ``in_dram``: whether DRAM bounds a piece."""

    starts: list[list[int]]
    at_zero: Floats
    a_token: Floats
    in_dram: NDArray[np.bool_]
    sources: NDArray[np.int8]

    def on(self, batch: int, sms: int) -> Pieces:
        at_zero, a_token = self.at_zero[batch, sms].tolist(), self.a_token[batch, sms].tolist()
        in_dram, sources = self.in_dram[batch, sms], [SOURCES[code] for code in self.sources[batch, sms].tolist()]
        if in_dram.all():
            return Pieces(self.starts[batch], at_zero, a_token, at_zero, a_token, sources)
        dram, dram_a_token = (np.where(in_dram, of, 0.0).tolist() for of in (at_zero, a_token))
        return Pieces(self.starts[batch], at_zero, a_token, dram, dram_a_token, sources)


def _lines(sizes: Floats, seconds: Floats, dram: NDArray[np.bool_], sources: NDArray[np.int8]) -> _Lines:
    """Pieces between points: ``sizes``, their contexts, batches x points; the others batches x SMs x points."""
    a_token = np.diff(seconds, axis=2)
    a_token /= np.diff(sizes, axis=1)[:, None]
    at_zero = seconds[:, :, :-1] - a_token * sizes[:, None, :-1]
    # What lies between two known points is neither, and rests on what is known less well.
    weaker = np.maximum(np.maximum(sources[:, :, :-1], sources[:, :, 1:]), CODES["interpolated"])
    # Contexts are whole, and whole numbers compare faster with each other than with floats.
    starts = np.ceil(sizes[:, :-1]).astype(np.int64).tolist()
    return _Lines(starts, at_zero, a_token, dram[:, :, 1:], weaker)


class DecodeTable:
    """One layer's decode attention of one shard. ``known`` holds pieces by SMs and requests."""

    __slots__ = ("_blocks", "_calibrated", "_calibration", "_clock", "_points", "_shard", "_singles", "known")

    def __init__(
        self,
        shard: Shard,
        clock: KernelClock,
        calibrated: Callable[[list[Kernel]], list[Kernel]],
        calibration: Calibration | None,
    ) -> None:
        self._shard = shard
        self._clock = clock
        self._calibrated = calibrated
        self._calibration = calibration
        self._blocks: dict[int, _Lines | None] = {}
        self._singles: dict[int, _Lines] = {}
        self._points: dict[int, list[Kernel]] = {}
        self.known: list[dict[int, Pieces]] = [{} for _ in range(shard.device.sms + 1)]

    def add(self, requests: int, sms: int) -> Pieces:
        """Pieces between the contexts at which decode attention is known."""
        block, place = divmod(requests, BLOCK)
        if block not in self._blocks:
            put(self._blocks, block, self._block(range(max(1, block * BLOCK), (block + 1) * BLOCK)), MOST_BLOCKS)
        lines = self._blocks[block]
        if lines is not None:
            return put(self.known[sms], requests, lines.on(place - (block == 0), sms))
        if self._calibration is None:
            # Where compute takes over from DRAM differs from share to share.
            return put(self.known[sms], requests, self._single(requests, sms).on(0, sms))
        lines = self._singles.get(requests) or put(self._singles, requests, self._single(requests, sms), MOST_BATCHES)
        return put(self.known[sms], requests, lines.on(0, sms))

    def points(self, requests: int, sms: int) -> list[Kernel]:
        """Decode attention at its knots: the least context, those that are known, and one beyond."""
        known = self._points.get(requests)
        if known is None:
            attention = self._shard.attention_decode
            contexts = [requests, *self._contexts(attention(requests, requests), sms)]
            known = self._calibrated([attention(requests, context) for context in (*contexts, 2 * contexts[-1])])
            if self._calibration is not None:
                put(self._points, requests, known)
        return known

    def _contexts(self, decode: Kernel, sms: int) -> Sequence[float]:
        requests = decode.dims[0]
        if self._calibration is not None:
            return [knot for knot in self._calibration.context_knots(decode) if knot > requests]
        crossing = self._clock.ridge_context(self._shard.decode_attention, requests, sms)
        return [crossing] if requests < crossing < math.inf else []

    def _single(self, requests: int, sms: int) -> _Lines:
        points = self.points(requests, sms)
        sizes = np.array([[kernel.size for kernel in points]])
        seconds, dram, sources = on_every_share(self._clock, points)
        return _lines(sizes, seconds.T[None], dram.T[None], sources.T[None])

    def _block(self, requests: range) -> _Lines | None:
        """:meth:`_single` of many batches."""
        if self._calibration is None:
            return None
        kernel = self._shard.attention_decode(1, 1)
        knots = self._calibration.decode_knots(kernel, requests)
        if knots is None:
            return None
        clock, rates, shares = self._clock, self._shard.decode_attention, np.arange(self._shard.device.sms + 1)
        shares[0] = 1
        batches = np.array(requests)[:, None]
        sizes = batches * np.array([knots.contexts], dtype=np.float64)
        moved = sizes * rates.bytes_per_token + batches * rates.bytes_per_request
        moving = moved[:, None] / np.array((1.0, *clock.bandwidth[1:]))[:, None]
        rate = clock.flops[kernel.kind, kernel.dtype] / self._shard.device.sms
        computing = (sizes * rates.flops_per_token)[:, None] / (rate * shares)[:, None]
        dram = computing <= moving
        seconds = np.maximum(moving, computing, out=moving)
        seconds += clock.floors.get(kernel.op, 0.0)
        seconds *= knots.alphas[:, None]
        sources = np.full(seconds.shape, CODES["extrapolated"], dtype=np.int8)
        sources[:, clock.shares[kernel.op][-1]] = knots.sources
        return _lines(sizes, seconds, dram, sources)
