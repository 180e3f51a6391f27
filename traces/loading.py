"""Reading a trace: detect the format, read the columns, apply the rules that hold for every format.

Rules, each noted in the trace's provenance when it did something:
- rows whose prompt or output is 0 tokens are dropped (failed requests: there is nothing to serve);
- rows out of order are sorted by arrival, ties kept in file order;
- the first arrival becomes 0, except in our own files, which keep their origin.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from traces.errors import TraceError
from traces.formats import FORMATS
from traces.formats.rows import ReadOptions, Rows
from traces.request import FloatColumn, Provenance, Trace
from traces.table import header_of

_GZIP, _PARQUET = b"\x1f\x8b", b"PAR1"


def load(path: str | Path, format: str | None = None, *, options: ReadOptions | None = None) -> Trace:
    """The trace in a file (or ServeGen folder), its format detected from content unless named.

    Raises TraceError naming file, line, value and remedy.
    """
    path = Path(path)
    if not path.exists():
        raise TraceError(f"{path}: no such file; give the path of a trace, or see `bulletsim traces list`")
    if format is not None and format not in FORMATS:
        raise TraceError(f"unknown trace format {format!r}; formats: {', '.join(FORMATS)}")
    name = format or detect(path)
    rows = FORMATS[name].read(path, options or ReadOptions())
    return assemble(rows, Provenance(source=path.name, format=name, sha256=_sha256(path)), path.stem)


def detect(path: Path) -> str:
    """The format's name, from content alone."""
    with path.open("rb") as file:
        start = file.read(4096)
    if start.startswith(_GZIP):
        raise TraceError(f"{path.name}: compressed; run gunzip on it first")
    if b"\0" in start:
        raise TraceError(f"{path.name}: a binary file and no Parquet; give a CSV, JSONL or Parquet trace")
    names = header_of(path)
    found = next((key for key, kind in FORMATS.items() if kind.columns and {*kind.columns} <= {*names}), None)
    if found is None:
        raise TraceError(
            f"{path.name}: line 1: no known format has the columns {', '.join(names)[:200]}; "
            "our own has request_id, arrival_s, prompt_tokens, output_tokens"
        )
    return found


def assemble(rows: Rows, provenance: Provenance, name: str) -> Trace:
    """The rules above, applied."""
    for note in rows.notes:
        provenance = provenance.noting(note)
    count = len(rows.prompt_tokens)
    kept = np.flatnonzero((rows.prompt_tokens > 0) & (rows.output_tokens > 0))
    if len(kept) < count:
        provenance = provenance.noting(f"{count - len(kept)} of {count} rows dropped: prompt or output of 0 tokens")
    if len(kept) == 0:
        raise TraceError(f"{provenance.source}: no row has both prompt and output tokens; nothing to serve")
    arrivals = rows.arrival_s
    if arrivals is not None:
        order = kept[np.argsort(arrivals[kept], kind="stable")]
        moved = int(np.count_nonzero(order != kept))
        if moved:
            provenance = provenance.noting(f"sorted by arrival: {moved} rows were out of order")
        kept = order
        arrivals, provenance = _based(arrivals[kept], rows.rebased, provenance)
    whole = len(kept) == count and bool(np.all(kept == np.arange(count)))
    chosen = range(count) if whole else kept.tolist()
    return Trace(
        provenance=provenance,
        prompt_tokens=rows.prompt_tokens[kept],
        output_tokens=rows.output_tokens[kept],
        arrival_s=arrivals,
        request_ids=None if rows.request_ids is None else tuple(rows.request_ids[i] for i in chosen),
        session_ids=None if rows.session_ids is None else tuple(rows.session_ids[i] for i in chosen),
        block_hashes=None if rows.block_hashes is None else tuple(rows.block_hashes[i] for i in chosen),
        block_tokens=rows.block_tokens,
        name=name,
    )


def _based(arrivals: FloatColumn, rebased: bool, provenance: Provenance) -> tuple[FloatColumn, Provenance]:
    first = float(arrivals[0])
    if rebased and first:
        provenance = provenance.noting(f"arrivals moved by {-first:g} s: the first is at 0")
        arrivals = arrivals - first
    return arrivals, provenance


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
