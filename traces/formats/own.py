"""Our own form, CSV or Parquet: request_id, arrival_s, prompt_tokens, output_tokens [, session_id, block_hashes].

Seconds as float, from the trace's start. Without arrival_s it is a file of lengths. A CSV holds block
hashes as whole numbers with spaces between, and not the size of the blocks; Parquet keeps that size and the
provenance in its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from traces.errors import TraceError
from traces.formats.rows import ReadOptions, Rows
from traces.progress import Progress, part
from traces.request import repeated
from traces.table import PARSED, Table, read_table

NEEDED = ("prompt_tokens", "output_tokens")
COLUMNS = ("request_id", "arrival_s", "prompt_tokens", "output_tokens", "session_id", "block_hashes")
METADATA = b"bulletsim"
TOLD_ROWS = 1 << 14
"""Rows of which each has a list to be made, between two words on how far that is."""


def read_csv(path: Path, options: ReadOptions) -> Rows:
    """The requests of a CSV in our own form. Raises TraceError naming file, row and column."""
    table = read_table(path, NEEDED, "csv", options.progress)
    _check_names(path, table.columns)
    blocks = None
    if table.has("block_hashes"):
        blocks = []
        for row, text in enumerate(table.texts("block_hashes")):
            blocks.append(_hashes(table, row, text))
            if row % TOLD_ROWS == 0:
                options.progress(PARSED + (1 - PARSED) * row / table.rows)
    return _rows(table, blocks, options.block_tokens, ())


def read_parquet(path: Path, options: ReadOptions) -> Rows:
    """The requests of a Parquet file in our own form. Raises TraceError naming file, row and column."""
    stored, about = _stored(path)
    missing = [name for name in NEEDED if name not in stored.column_names]
    if missing:
        raise TraceError(
            f"{path}: no column {missing[0]!r}; the file has {', '.join(stored.column_names)[:200]}; "
            f"wanted: {', '.join(COLUMNS)}"
        )
    _check_names(path, stored.column_names)
    if stored.num_rows == 0:
        raise TraceError(f"{path}: no rows; give a trace with at least one request")
    table = Table(path=path, rows=stored.num_rows, columns=_plain(path, stored), in_lines=False)
    options.progress(PARSED)
    blocks = None
    if "block_hashes" in stored.column_names:
        blocks = _lists(stored["block_hashes"], part(options.progress, PARSED, 1))
    rows = _rows(table, blocks, about.get("block_tokens", options.block_tokens), tuple(about.get("notes", ())))
    del stored, table
    _release()
    return rows


def _lists(column: Any, progress: Progress) -> list[tuple[int, ...]]:
    """A column of lists, slice by slice."""
    found: list[tuple[int, ...]] = []
    for begin in range(0, len(column), TOLD_ROWS):
        found += [tuple(row or ()) for row in column.slice(begin, TOLD_ROWS).to_pylist()]
        progress(begin / len(column))
    return found


def _stored(path: Path) -> tuple[Any, dict[str, Any]]:
    """The file's table, known to be sound, and what :mod:`traces.saving` wrote about it."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        stored = pq.read_table(path)
        stored.validate(full=True)
        about = dict(json.loads((stored.schema.metadata or {}).get(METADATA, b"{}")))
        if "block_hashes" in stored.column_names:
            hashes = stored["block_hashes"].cast(pa.list_(pa.int64()))
            index = stored.column_names.index("block_hashes")
            stored = stored.set_column(index, "block_hashes", hashes)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = (str(error).splitlines() or ["damaged"])[0]
        raise TraceError(f"{path}: not a sound Parquet file ({reason}); make it again") from None
    return stored, about


def _release() -> None:
    """Gives back what Arrow keeps of a file that has been read: of a million requests more than they take."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def _check_names(path: Path, names: Iterable[str]) -> None:
    """In our own form a name that is not ours is a slip: "arrival" would be a trace without arrivals."""
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise TraceError(
            f"{path}: unknown column {unknown[0]!r}; our own form has {', '.join(COLUMNS)}; rename or remove it"
        )


def _plain(path: Path, stored: Any) -> dict[str, Any]:
    """The scalar columns as text, which is what a Table checks; numbers keep every digit."""
    import pyarrow as pa

    plain = {}
    for name in COLUMNS[:5]:
        if name in stored.column_names:
            try:
                plain[name] = stored[name].cast(pa.string())
            except pa.ArrowException:
                kind = stored[name].type
                raise TraceError(f"{path}: column {name} is of type {kind}; wanted: numbers") from None
            if name != "session_id" and stored[name].null_count:
                raise TraceError(f"{path}: column {name} has empty values; fill or remove those rows")
    return plain


def _rows(table: Table, blocks: list[tuple[int, ...]] | None, block_tokens: int, notes: tuple[str, ...]) -> Rows:
    prompts = table.tokens("prompt_tokens")
    if blocks is not None:
        _check_blocks(table, blocks, block_tokens)
    return Rows(
        prompt_tokens=prompts,
        output_tokens=table.tokens("output_tokens"),
        arrival_s=table.times("arrival_s") if table.has("arrival_s") else None,
        request_ids=_ids(table) if table.has("request_id") else None,
        session_ids=[text or None for text in table.texts("session_id")] if table.has("session_id") else None,
        block_hashes=blocks,
        block_tokens=None if blocks is None else block_tokens,
        rebased=False,
        notes=notes,
    )


def _ids(table: Table) -> list[str]:
    """The requests' names; two of one name could not be told apart in what a run writes."""
    ids = table.texts("request_id")
    first, again = repeated(ids) or (0, 0)
    if again:
        raise TraceError(
            f"{table.path}: {table.place(again)}: request_id {ids[again]!r} is also that of {table.place(first)}; "
            "give each request its own, or leave the column out"
        )
    return ids


def _hashes(table: Table, row: int, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split())
    except ValueError:
        raise table.refusal("block_hashes", row, "whole numbers with spaces between") from None


def _check_blocks(table: Table, blocks: list[tuple[int, ...]], block_tokens: int) -> None:
    for row, (tokens, hashes) in enumerate(zip(table.tokens("prompt_tokens").tolist(), blocks, strict=True)):
        if hashes and len(hashes) != -(-tokens // block_tokens):
            raise TraceError(
                f"{table.path}: {table.place(row)}: {len(hashes)} block hashes for {tokens} prompt tokens in "
                f"blocks of {block_tokens}; give the size of the blocks (ReadOptions.block_tokens)"
            )
