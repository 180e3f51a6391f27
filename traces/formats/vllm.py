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
    found = [
        (line.time("queued_ts"), line.tokens("input_toks"), line.tokens("output_toks"), line.values.get("request_id"))
        for line in read_lines(path, options.progress)
    ]
    queued, prompts, outputs, ids = zip(*found, strict=True)
    return Rows(
        prompt_tokens=np.array(prompts, np.int64),
        output_tokens=np.array(outputs, np.int64),
        arrival_s=np.array(queued),
        request_ids=None if None in ids else list(map(str, ids)),
        notes=("arrival = queued_ts",),
    )
