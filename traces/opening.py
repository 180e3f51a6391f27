"""One word for a trace: a path, workload:NAME, or the name of a public trace that has been fetched."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from traces.arrivals import between, first
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
    slice: str | None = None,
) -> Trace:
    """The trace that ``spec`` names: "workload:code", the path of a file, or a fetched catalogue name.

    ``requests`` is how many a workload draws (1,000 by default) and how many are kept of a file, from its
    start; ``seed`` is for what is drawn. ``slice`` is START:END in seconds, either of which may be left out: requests
    that arrive then, before they are counted. Raises TraceError if there is no such trace.
    """
    start_s, end_s = span_of(slice)
    if spec.startswith(WORKLOAD):
        if format is not None:
            raise TraceError(f"format {format} is of a file, and {spec} is none; leave it out")
        count = DEFAULT_REQUESTS if requests is None else requests
        trace = workload(spec.removeprefix(WORKLOAD), count, seed)
        return trace if slice is None else between(trace, start_s, end_s)
    path = path_of(spec)
    options = options or ReadOptions(seed=seed)
    if path.is_dir():  # a span that is generated is cut beforehand
        return _counted(load(path, format, options=replace(options, start_s=start_s, end_s=end_s)), requests)
    trace = load(path, format, options=options)
    return _counted(trace if slice is None else between(trace, start_s, end_s), requests)


def _counted(trace: Trace, requests: int | None) -> Trace:
    return trace if requests is None else first(trace, requests)


def span_of(slice: str | None) -> tuple[float, float | None]:
    """The seconds that START:END spells, (0, None) for everything; TraceError for what spells none."""
    if slice is None:
        return 0.0, None
    start, colon, end = slice.partition(":")
    try:
        if not colon:
            raise ValueError
        span = float(start or 0), float(end) if end else None
    except ValueError:
        raise TraceError(f"slice is {slice!r}; give START:END in seconds, such as 600:1200") from None
    if not 0 <= span[0] < (math.inf if span[1] is None else span[1]):
        raise TraceError(f"slice {slice} is empty; give a start of 0 or more and an end after it")
    return span


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
