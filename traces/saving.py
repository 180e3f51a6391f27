"""Writing a trace in our own form, CSV or Parquet (see :mod:`traces.formats.own`)."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from traces.errors import TraceError
from traces.formats.own import METADATA
from traces.request import Trace, repeated


def save(trace: Trace, path: str | Path) -> None:
    """Write ``trace`` to ``path``, whose ending, .csv or .parquet, says how.

    The file appears under its name only when it is whole, and replaces one that is there; folders above it are made.
    Equal traces give equal bytes.
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
        writers[path.suffix](trace, temporary)
        # A temporary file is private; the trace gets the mode that a plain new file would have.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_csv(trace: Trace, path: Path) -> None:
    columns: dict[str, list[object]] = {"request_id": list(_ids(trace))}
    if trace.arrival_s is not None:
        # repr of a float is the shortest text that reads back as the same float.
        columns["arrival_s"] = [repr(arrival) for arrival in trace.arrival_s.tolist()]
    columns["prompt_tokens"] = trace.prompt_tokens.tolist()
    columns["output_tokens"] = trace.output_tokens.tolist()
    if trace.session_ids is not None:
        columns["session_id"] = [session or "" for session in trace.session_ids]
    if trace.block_hashes is not None:
        columns["block_hashes"] = [" ".join(map(str, blocks)) for blocks in trace.block_hashes]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _write_parquet(trace: Trace, path: Path) -> None:
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
