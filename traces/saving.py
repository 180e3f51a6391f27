"""Writing a trace in our own form, CSV or Parquet (see :mod:`traces.formats.own`)."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

from traces.errors import TraceError
from traces.formats.own import METADATA, TOLD_ROWS
from traces.progress import Progress, untold
from traces.request import Trace, repeated

BUILT = 0.5
"""Share of writing Parquet that is done when there are columns."""


def save(trace: Trace, path: str | Path, *, progress: Progress = untold) -> None:
    """Write ``trace`` to ``path``, whose ending, .csv or .parquet, says how.

    The file appears under its name only when it is whole, and replaces one that is there; folders above it are made.
    Equal traces give equal bytes. ``progress`` hears how far the writing is.
    Raises TraceError for another ending, a name that two requests have, or hashes that :mod:`traces.sessions` made;
    OSError where nothing can be written.
    """
    path = Path(path)
    writers = {".csv": _write_csv, ".parquet": _write_parquet}
    if path.suffix not in writers:
        raise TraceError(f"{path}: a trace is saved as .csv or .parquet; choose one of these endings")
    if trace.answers_hashed:
        raise TraceError(
            f"{trace.name}: hashes made from sessions are not saved; save the trace that they were made from"
        )
    twice = repeated(trace.request_ids or ())
    if twice is not None:
        name = _ids(trace)[twice[0]]
        raise TraceError(f"{trace.name}: requests {twice[0]} and {twice[1]} are both called {name!r}; rename one")
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        temporary = Path(file.name)
    try:
        writers[path.suffix](trace, temporary, progress)
        # A temporary file is private; the trace gets the mode that a plain new file would have.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_csv(trace: Trace, path: Path, progress: Progress) -> None:
    ids = _ids(trace)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for begin in range(0, len(trace), TOLD_ROWS):
            columns = _texts(trace, ids, slice(begin, begin + TOLD_ROWS))
            if begin == 0:
                writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
            progress(min(1.0, (begin + TOLD_ROWS) / len(trace)))


def _texts(trace: Trace, ids: Sequence[str], rows: slice) -> dict[str, Sequence[object]]:
    columns: dict[str, Sequence[object]] = {"request_id": ids[rows]}
    if trace.arrival_s is not None:
        # repr of a float is the shortest text that reads back as the same float.
        columns["arrival_s"] = [repr(arrival) for arrival in trace.arrival_s[rows].tolist()]
    columns["prompt_tokens"] = trace.prompt_tokens[rows].tolist()
    columns["output_tokens"] = trace.output_tokens[rows].tolist()
    if trace.session_ids is not None:
        columns["session_id"] = [session or "" for session in trace.session_ids[rows]]
    if trace.block_hashes is not None:
        columns["block_hashes"] = [" ".join(map(str, blocks)) for blocks in trace.block_hashes[rows]]
    return columns


def _write_parquet(trace: Trace, path: Path, progress: Progress) -> None:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    columns = {"request_id": pa.array(_ids(trace), pa.string())}
    if trace.arrival_s is not None:
        columns["arrival_s"] = pa.array(trace.arrival_s, pa.float64())
    columns["prompt_tokens"] = pa.array(trace.prompt_tokens, pa.int64())
    columns["output_tokens"] = pa.array(trace.output_tokens, pa.int64())
    if trace.session_ids is not None:
        columns["session_id"] = pa.array(trace.session_ids, pa.string())
    if trace.block_hashes is not None:
        columns["block_hashes"] = pa.array(trace.block_hashes, pa.list_(pa.int64()))
    progress(BUILT)
    table = pa.table(columns)
    pq.write_table(table.replace_schema_metadata({METADATA: _about(trace)}), path)


def _about(trace: Trace) -> str:
    origin = f"made from {trace.provenance.source} ({trace.provenance.format})"
    digest = [f"sha256 of that source: {trace.provenance.sha256}"] if trace.provenance.sha256 else []
    about: dict[str, object] = {"notes": [origin, *digest, *trace.provenance.notes]}
    if trace.block_tokens is not None:
        about["block_tokens"] = trace.block_tokens
    return json.dumps(about)


def _ids(trace: Trace) -> tuple[str, ...]:
    return trace.request_ids or tuple(map(str, range(len(trace))))
