"""One word for a trace: a path, workload:NAME, or the name of a public trace that has been fetched."""

from __future__ import annotations

from pathlib import Path

from traces.arrivals import first
from traces.catalogue import CATALOGUE, fetched
from traces.errors import TraceError
from traces.formats.rows import ReadOptions
from traces.loading import load
from traces.request import Trace
from traces.workloads import workload, workloads

WORKLOAD = "workload:"
DEFAULT_REQUESTS = 1000


def open_trace(
    spec: str,
    seed: int = 0,
    requests: int | None = None,
    *,
    format: str | None = None,
    options: ReadOptions | None = None,
) -> Trace:
    """The trace that ``spec`` names: "workload:code", the path of a file, or a fetched catalogue name.

    ``requests`` is how many a workload draws (1,000 by default) and how many are kept of a file, from its
    start; ``seed`` is for what is drawn. Raises TraceError if there is no such trace.
    """
    if spec.startswith(WORKLOAD):
        count = DEFAULT_REQUESTS if requests is None else requests
        return workload(spec.removeprefix(WORKLOAD), count, seed)
    trace = load(path_of(spec), format, options=options or ReadOptions(seed=seed))
    return trace if requests is None else first(trace, requests)


def path_of(spec: str) -> Path:
    """The file or folder that ``spec``, no workload, names; TraceError if there is none."""
    path = Path(spec)
    if path.exists():
        return path
    if spec in CATALOGUE:
        found = fetched(spec)
        if found is None:
            raise TraceError(f"{spec} has not been fetched; run: bulletsim traces fetch {spec}")
        return found
    if spec in workloads():
        raise TraceError(f"{spec}: no such file; the built-in workload of that name is {WORKLOAD}{spec}")
    raise TraceError(
        f"{spec}: no such file; give a path, {WORKLOAD}NAME ({', '.join(workloads())}) or a name of "
        "`bulletsim traces list`"
    )
