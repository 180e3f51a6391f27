"""Requests: public trace formats in, synthetic workloads, arrival processes."""

from traces.arrivals import ArrivalSource, OpenArrivals, poisson, rescaled
from traces.errors import TraceError
from traces.formats.rows import ReadOptions
from traces.loading import load
from traces.request import Provenance, Request, Trace
from traces.workloads import workload, workloads

__all__ = [
    "ArrivalSource",
    "OpenArrivals",
    "Provenance",
    "ReadOptions",
    "Request",
    "Trace",
    "TraceError",
    "load",
    "poisson",
    "rescaled",
    "workload",
    "workloads",
]
