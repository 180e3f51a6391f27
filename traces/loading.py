"""Reading a trace: detect the format, read the columns, apply the rules that hold for every format.

Rules, each noted in the trace's provenance when it did something:
- rows whose prompt or output is 0 tokens are dropped (failed requests: there is nothing to serve);
- rows out of order are sorted by arrival, ties kept in file order;
- the first arrival becomes 0, except in our own files, which keep their origin;
- requests are numbered by row where a public file gives a name twice; our own files are refused.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from traces.errors import TraceError
from traces.formats import FORMATS, servegen
from traces.formats.rows import ReadOptions, Rows
from traces.hashing import sha256
from traces.jsonl import read_lines
from traces.progress import part
from traces.request import FloatColumn, Provenance, Trace, repeated
from traces.table import header_of

_GZIP, _PARQUET = b"\x1f\x8b", b"PAR1"
_BLANK = b" \t\r\n\xef\xbb\xbf"


def load(path: str | Path, format: str | None = None, *, options: ReadOptions | None = None) -> Trace:
    """The trace in a file (or ServeGen folder), its format detected from content unless named.

    Raises TraceError naming file, line, value and remedy.
    """
    path = Path(path)
    if not path.exists():
        raise TraceError(f"{path}: no such file; give the path of a trace, or see `bulletsim traces list`")
    if format is not None and format not in FORMATS:
        raise TraceError(f"unknown trace format {format!r}; formats: {', '.join(FORMATS)}")
    try:
        return _loaded(path, format, options or ReadOptions())
    except OSError as error:
        raise TraceError(f"{error.filename or path}: cannot be read: {error.strerror}; give a file that can") from None


def _loaded(path: Path, format: str | None, options: ReadOptions) -> Trace:
    name = format or detect(path)
    if path.is_dir() and name != "servegen":
        raise TraceError(f"{path}: a folder, which format {name!r} cannot read; give a file")
    if format is not None and not path.is_dir():
        _readable(path, name)
    form = FORMATS[name]
    rows = form.read(path, replace(options, progress=part(options.progress, 0, form.share)))
    digest = sha256(path, part(options.progress, form.share, (form.share + 1) / 2))
    return assemble(rows, Provenance(source=path.name, format=name, sha256=digest), path.stem, path)


def detect(path: Path) -> str:
    """The format's name, from content alone; TraceError if it is none that is known."""
    if path.is_dir():
        if servegen.is_folder(path):
            return "servegen"
        raise TraceError(f"{path}: a folder without chunk-*-trace.csv; give a file or a ServeGen folder")
    start = _readable(path, None)
    if start.startswith(_PARQUET):
        return "parquet"
    if re.match(rb"\s*\[\s*\{", start.lstrip(_BLANK)):
        return "sharegpt"
    if start.lstrip(_BLANK).startswith(b"{"):
        have = set(next(read_lines(path)).values)
        found = next((key for key, kind in FORMATS.items() if kind.keys and {*kind.keys} <= have), None)
        shape = "JSON keys"
    else:
        have = set(header_of(path))
        found = next((key for key, kind in FORMATS.items() if kind.columns and {*kind.columns} <= have), None)
        shape = "columns"
    if found is None:
        other = next((word for mark, word in ((";", "semicolons"), ("\t", "tabs")) if mark in "".join(have)), None)
        remedy = f"part columns by commas, not {other}; our own has" if other else "our own has"
        raise TraceError(
            f"{path}: line 1: no known format has the {shape} {', '.join(sorted(have))[:200] or '(none)'}; {remedy} "
            "request_id, arrival_s, prompt_tokens, output_tokens"
        )
    return found


def _readable(path: Path, format: str | None) -> bytes:
    """The file's first bytes; TraceError for what no reader, or not the one named, can take."""
    with path.open("rb") as file:
        start = file.read(4096)
    if start.startswith(_GZIP):
        raise TraceError(f"{path}: compressed; run gunzip on it first")
    is_parquet = start.startswith(_PARQUET)
    if (format == "parquet") != is_parquet and format is not None:
        raise TraceError(f"{path}: {'a' if is_parquet else 'no'} Parquet file; format {format!r} was named")
    if b"\0" in start and not is_parquet:
        raise TraceError(f"{path}: a binary file and no Parquet; give a CSV, JSONL or Parquet trace")
    if not start.strip(_BLANK):
        raise TraceError(f"{path}: the file is empty; give a trace with a header and rows")
    return start


def assemble(rows: Rows, provenance: Provenance, name: str, path: Path) -> Trace:
    """The rules above, applied; ``path`` is what refusals name."""
    for note in rows.notes:
        provenance = provenance.noting(note)
    ids = rows.request_ids
    if ids is not None and repeated(ids):
        ids, provenance = None, provenance.noting("requests numbered by row: the source gives a name twice")
    count = len(rows.prompt_tokens)
    kept = np.flatnonzero((rows.prompt_tokens > 0) & (rows.output_tokens > 0))
    if len(kept) < count:
        provenance = provenance.noting(f"{count - len(kept)} of {count} rows dropped: prompt or output of 0 tokens")
    if len(kept) == 0:
        raise TraceError(f"{path}: no row has both prompt and output tokens; nothing to serve")
    arrivals = rows.arrival_s
    if arrivals is not None:
        order = kept[np.argsort(arrivals[kept], kind="stable")]
        moved = int(np.count_nonzero(order != kept))
        if moved:
            provenance = provenance.noting(f"sorted by arrival: {moved} rows were out of order")
        kept = order
        arrivals, provenance = _based(arrivals[kept], rows.rebased, provenance)
        provenance = _binned(arrivals, provenance)
    whole = len(kept) == count and bool(np.all(kept == np.arange(count)))
    chosen = range(count) if whole else kept.tolist()
    return Trace(
        provenance=provenance,
        prompt_tokens=rows.prompt_tokens[kept],
        output_tokens=rows.output_tokens[kept],
        arrival_s=arrivals,
        request_ids=None if ids is None else tuple(ids[i] for i in chosen),
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


def _binned(arrivals: FloatColumn, provenance: Provenance) -> Provenance:
    """Note arrivals of which more than half share their stamp with another."""
    stamps, counts = np.unique(arrivals, return_counts=True)
    shared = int(counts[counts > 1].sum())
    if 2 * shared > len(arrivals) > 1:
        provenance = provenance.noting(
            f"binned: {len(arrivals)} arrivals have {len(stamps)} distinct stamps; spread_bins spreads them"
        )
    return provenance
