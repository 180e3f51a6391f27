"""Files of Vidur, Sarathi and their kin, and length files of ShareGPT exchanges.

Vidur: num_prefill_tokens, num_decode_tokens [, arrived_at in seconds]; counts are also written as
"7564.0", totals and ratios beside them are derived and not read. First exchanges: conversation,
prompt_tokens, output_tokens.
"""

from __future__ import annotations

from pathlib import Path

from traces.formats.rows import ReadOptions, Rows
from traces.table import read_table

VIDUR = ("num_prefill_tokens", "num_decode_tokens")
EXCHANGES = ("conversation", "prompt_tokens", "output_tokens")


def read_vidur(path: Path, options: ReadOptions) -> Rows:
    """The requests of a processed trace of Vidur. Raises TraceError naming file, row and column."""
    table = read_table(path, VIDUR, "vidur", options.progress)
    return Rows(
        prompt_tokens=table.tokens("num_prefill_tokens"),
        output_tokens=table.tokens("num_decode_tokens"),
        arrival_s=table.times("arrived_at") if table.has("arrived_at") else None,
    )


def read_exchanges(path: Path, options: ReadOptions) -> Rows:
    """Lengths by conversation, without arrivals. Raises TraceError naming file, row and column."""
    table = read_table(path, EXCHANGES, "exchanges", options.progress)
    return Rows(
        prompt_tokens=table.tokens("prompt_tokens"),
        output_tokens=table.tokens("output_tokens"),
        request_ids=table.texts("conversation"),
    )
