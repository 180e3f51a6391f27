"""Our own form, CSV or Parquet: request_id, arrival_s, prompt_tokens, output_tokens [, session_id, block_hashes].

Seconds as float, from the trace's start. Without arrival_s it is a file of lengths. A CSV holds block
hashes as whole numbers with spaces between.
"""

from __future__ import annotations

from pathlib import Path

from traces.formats.rows import ReadOptions, Rows
from traces.table import Table, read_table

NEEDED = ("prompt_tokens", "output_tokens")


def read_csv(path: Path, options: ReadOptions) -> Rows:
    return rows_of(read_table(path, NEEDED, "csv"), options)


def rows_of(table: Table, options: ReadOptions) -> Rows:
    return Rows(
        prompt_tokens=table.tokens("prompt_tokens"),
        output_tokens=table.tokens("output_tokens"),
        arrival_s=table.numbers("arrival_s") if table.has("arrival_s") else None,
        request_ids=table.texts("request_id") if table.has("request_id") else None,
        session_ids=[text or None for text in table.texts("session_id")] if table.has("session_id") else None,
        rebased=False,
    )
