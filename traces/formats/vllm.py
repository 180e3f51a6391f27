"""Request logs of a vLLM run: JSON lines with input_toks, output_toks and times on one monotonic clock.

The arrival is ``queued_ts``, when the engine took the request: ``arrival_time`` is the client's wall clock.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from traces.formats.rows import ReadOptions, Rows
from traces.jsonl import read_lines

KEYS = ("input_toks", "output_toks", "queued_ts")


def read(path: Path, options: ReadOptions) -> Rows:
    """The requests of a vLLM run's log. Raises TraceError naming file and line."""
    lines = read_lines(path)
    queued = np.array([line.time("queued_ts") for line in lines])
    named = all("request_id" in line.values for line in lines)
    return Rows(
        prompt_tokens=np.array([line.tokens("input_toks") for line in lines], np.int64),
        output_tokens=np.array([line.tokens("output_toks") for line in lines], np.int64),
        arrival_s=queued,
        request_ids=[str(line.values["request_id"]) for line in lines] if named else None,
        notes=("arrival = queued_ts",),
    )
