"""BurstGPT (CC-BY-4.0), versions 1 to 3.

Timestamp in seconds from midnight of day 1, whole in v1 and v2 and written as "19440110.0" in v3; v3 also
inserts Session ID (empty on API rows) and Elapsed time in the middle. Failed requests are rows of 0 tokens.
The resolution is 1 s, so requests share stamps.
"""

from __future__ import annotations

from pathlib import Path

from traces.formats.rows import ReadOptions, Rows
from traces.table import read_table

NEEDED = ("Timestamp", "Request tokens", "Response tokens")


def read(path: Path, options: ReadOptions) -> Rows:
    """The requests of a BurstGPT file. Raises TraceError naming file, row and column."""
    table = read_table(path, NEEDED, "burstgpt", options.progress)
    sessions = [text or None for text in table.texts("Session ID")] if table.has("Session ID") else None
    return Rows(
        prompt_tokens=table.tokens("Request tokens"),
        output_tokens=table.tokens("Response tokens"),
        arrival_s=table.times("Timestamp"),
        session_ids=sessions,
        notes=("arrivals have a resolution of 1 s",),
    )
