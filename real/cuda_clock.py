"""Times of a device's events on the host's clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from real.lanes import DeviceError

EVERY_S = 0.2
DRIFT = 50e-6
"""Seconds that a device's clock may run off the host's in one: why anchors are set anew."""

TRIES = 3
FIRST_PATIENCE_S = 1.0
PATIENCE_S = 200e-6


class Anchor(NamedTuple):
    """An event, and when it was in ``perf_counter`` seconds, give or take ``doubt_s``; infinity if it was not seen."""

    event: Any
    at_s: float
    doubt_s: float


class DeviceClock:
    """``perf_counter`` seconds of events, through one whose time on both clocks is known, the anchor.

    An anchor is recorded on a stream of its own, so it came after it was asked for and before it was seen, a few
    microseconds later. ``clock`` is the host's.
    """

    def __init__(self, runtime: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        self._runtime, self._clock = runtime, clock
        self._stream = runtime.stream()
        self._anchor = self._best(FIRST_PATIENCE_S)
        if math.isinf(self._anchor.doubt_s):
            raise DeviceError(f"the GPU did nothing for {FIRST_PATIENCE_S:g} s; see whether another process holds it")
        self._tried_s = clock()

    def anchor(self) -> Anchor:
        """The one to time a launch by that begins now."""
        now_s = self._clock()
        if now_s - self._tried_s > EVERY_S:
            self._tried_s = now_s
            known, found = self._anchor, self._best(PATIENCE_S)
            # One that a busy device kept waiting may say less than an older one.
            if found.doubt_s < known.doubt_s + DRIFT * (now_s - known.at_s):
                self._anchor = found
        return self._anchor

    def _best(self, patience_s: float) -> Anchor:
        return min((self._tried(patience_s) for _ in range(TRIES)), key=lambda anchor: anchor.doubt_s)

    def _tried(self, patience_s: float) -> Anchor:
        event = self._runtime.event()
        before_s = self._clock()
        event.record(self._stream)
        while not event.query():
            if self._clock() - before_s > patience_s:
                return Anchor(event, before_s, math.inf)
        after_s = self._clock()
        return Anchor(event, (before_s + after_s) / 2, (after_s - before_s) / 2)


def seconds(anchor: Anchor, event: Any) -> float:
    """When ``event``, which has happened, did, in ``perf_counter`` seconds."""
    return anchor.at_s + float(anchor.event.elapsed_time(event)) / 1e3
