"""Requests as rows: each leaves one when it has finished, and what the loop knew of it can be forgotten."""

from __future__ import annotations

from typing import Final

import numpy as np

from sim.growing import GrowingColumns
from sim.records import STATES, Records
from sim.state import RequestState

FLUSH_ROWS: Final = 4096

Seconds = float | None
RequestRow = tuple[int, str, str, float, int, int, int, Seconds, Seconds, Seconds, Seconds, Seconds, int, int, int, int]
"""Index, id and reason, and the columns below."""

_COLUMNS: dict[str, type[np.generic]] = {
    "arrival_s": np.float64,
    "prompt_tokens": np.int64,
    "output_tokens": np.int64,
    "generated_tokens": np.int64,
    "scheduled_s": np.float64,
    "first_token_s": np.float64,
    "last_token_s": np.float64,
    "itl_mean_s": np.float64,
    "itl_max_s": np.float64,
    "preemptions": np.int64,
    "cached_tokens": np.int64,
    "instance": np.int64,
    "state": np.int8,
}


class RequestLog:
    """Rows in the order in which requests leave, handed out in that of their arrival."""

    def __init__(self) -> None:
        self._rows: list[RequestRow] = []
        self._ids: list[str] = []
        self._reasons: list[str] = []
        self._columns = GrowingColumns({"index": np.int64} | _COLUMNS)

    def add(self, request: RequestState, answer_tokens: int) -> None:
        """A request as it stands; it is to change no more."""
        first_s, last_s, emitted = request.first_token_s, request.emitted_s, request.emitted
        mean_s = None if emitted < 2 or first_s is None or last_s is None else (last_s - first_s) / (emitted - 1)
        self._rows.append(
            (
                request.index,
                request.request_id,
                request.reason,
                request.arrival_s,
                request.prompt_tokens,
                answer_tokens,
                emitted,
                request.scheduled_s,
                first_s,
                last_s,
                mean_s,
                request.itl_max_s,
                request.preemptions,
                request.reused_tokens,
                request.instance,
                STATES.index(request.state),
            )
        )
        if len(self._rows) >= FLUSH_ROWS:
            self._flush()

    def _flush(self) -> None:
        index, ids, reasons, *values = zip(*self._rows, strict=True)
        self._rows.clear()
        self._ids += ids
        self._reasons += reasons
        # None, for what a request never had, becomes NaN.
        self._columns.extend([index, *values])

    def records(self) -> Records:
        """All requests; ends the log."""
        if self._rows:
            self._flush()
        columns = self._columns.whole()
        order = np.argsort(columns.pop("index"))
        ids, self._ids = tuple([self._ids[place] for place in order]), []
        reasons, self._reasons = tuple([self._reasons[place] for place in order]), []
        return Records(
            request_id=ids,
            reason=reasons,
            **{name: columns.pop(name)[order] for name in list(columns)},
        )
