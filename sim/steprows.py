"""Rows of steps on their way into columns. Steps that differ in little more than their times are added together."""

from __future__ import annotations

from typing import Final, get_args

import numpy as np

from profiler.latency import Source
from sim.growing import GrowingColumns

FLUSH_STEPS: Final = 4096
"""Steps kept as rows before they become columns: few enough to be small, many enough to be quick."""

_COLUMNS: dict[str, type[np.generic]] = {
    "start_s": np.float64,
    "end_s": np.float64,
    "instance": np.int16,
    "lane": np.int8,
    "sms": np.int16,
    "prefill_tokens": np.int32,
    "prefill_requests": np.int32,
    "decode_requests": np.int32,
    "context_tokens": np.int32,
    "layers": np.int16,
    "predicted_s": np.float64,
    "waiting": np.int32,
    "free_blocks": np.int32,
}

_SOURCES: tuple[Source, ...] = get_args(Source)
_CODES = {source: code for code, source in enumerate(_SOURCES)}


StepRun = tuple[int, float, int, int, int, int, int, int, int, int, int]
"""What so many steps, counted first, have in common: start_s, instance, lane, sms, prefill_tokens, prefill_requests,
decode_requests, context_tokens, layers and waiting.

Each step begins as the one before ends; ``start_s`` and ``context_tokens`` are those of the first, and each of the
others has one more token of context for each decoding request.
"""


class StepRows:
    """``runs``, and of each step in them: its end, predicted seconds, free blocks and what the prediction rests on.

    Whoever has added to these says so with ``settle``.
    """

    def __init__(self) -> None:
        self.runs: list[StepRun] = []
        self.ends_s: list[float] = []
        self.predicted_s: list[float] = []
        self.free_blocks: list[int] = []
        self.sources: list[Source] = []
        self._columns = GrowingColumns(_COLUMNS)
        self._seconds = [0.0] * len(_SOURCES)
        self._met: dict[Source, None] = {}

    def settle(self) -> None:
        """Turns what is at hand into columns once there is much."""
        if len(self.ends_s) >= FLUSH_STEPS:
            self._flush()

    def whole(self) -> dict[str, np.ndarray]:
        """The columns, of shape (n,); nothing is to be added after that."""
        if self.runs:
            self._flush()
        return self._columns.whole()

    @property
    def source_s(self) -> dict[str, float]:
        """Seconds of steps in columns by what their prediction rests on."""
        return {source: self._seconds[_CODES[source]] for source in self._met}

    def _flush(self) -> None:
        # fromiter needs not look at the values first to know their type and how many there are.
        of_first, first_s, *constant = zip(*self.runs, strict=True)
        rows, runs = len(self.ends_s), len(self.runs)
        steps = np.fromiter(of_first, np.int64, runs)
        begins = np.cumsum(steps) - steps
        end_s = np.fromiter(self.ends_s, np.float64, rows)
        start_s = np.empty_like(end_s)
        start_s[1:] = end_s[:-1]
        start_s[begins] = first_s
        instance, lane, sms, tokens, requests, decodes, context, layers, waiting = (
            np.repeat(np.fromiter(values, np.int64, runs), steps) for values in constant
        )
        context += decodes * (np.arange(rows) - np.repeat(begins, steps))
        predicted_s = np.fromiter(self.predicted_s, np.float64, rows)
        free_blocks = np.fromiter(self.free_blocks, np.int64, rows)
        shape = (instance, lane, sms, tokens, requests, decodes, context, layers)
        self._columns.extend((start_s, end_s, *shape, predicted_s, waiting, free_blocks))
        self._add_up(end_s - start_s)
        for values in (self.runs, self.ends_s, self.predicted_s, self.free_blocks, self.sources):
            values.clear()

    def _add_up(self, seconds: np.ndarray) -> None:
        codes = np.array([_CODES[source] for source in self.sources], np.int8)
        for source in dict.fromkeys(self.sources):
            self._met[source] = None
            code = _CODES[source]
            # One after another, so that the sum does not depend on where a block ends.
            parts = np.concatenate([[self._seconds[code]], seconds[codes == code]])
            self._seconds[code] = float(np.cumsum(parts)[-1])
