"""APEX length files: ContextTokens, GeneratedTokens, StartTimeOffset in whole nanoseconds."""

from __future__ import annotations

from pathlib import Path

from traces.formats.rows import ReadOptions, Rows
from traces.table import read_table

NEEDED = ("ContextTokens", "GeneratedTokens", "StartTimeOffset")


def read(path: Path, options: ReadOptions) -> Rows:
    """The requests of an APEX file. Raises TraceError naming file, row and column."""
    table = read_table(path, NEEDED, "apex", options.progress)
    return Rows(
        prompt_tokens=table.tokens("ContextTokens"),
        output_tokens=table.tokens("GeneratedTokens"),
        arrival_s=table.times("StartTimeOffset", unit_s=1e-9) / 1e9,
    )
