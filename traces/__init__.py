"""Requests: public trace formats in, synthetic workloads, arrival processes."""

from traces.arrival_spec import ArrivalSpec, parse_arrivals
from traces.arrivals import (
    ArrivalSource,
    ClosedLoop,
    OpenArrivals,
    between,
    constant,
    first,
    gamma,
    on_off,
    poisson,
    rescaled,
    shrunk,
    spread_bins,
)
from traces.catalogue import CATALOGUE, PublicTrace, fetch
from traces.errors import TraceError
from traces.formats import FORMATS
from traces.formats.rows import ReadOptions
from traces.loading import detect, load
from traces.opening import open_trace
from traces.request import Provenance, Request, Trace
from traces.saving import save
from traces.sessions import SessionLoop, with_hashes
from traces.statistics import Statistics, rank_correlation, summarise
from traces.workloads import workload, workloads

__all__ = [
    "CATALOGUE",
    "FORMATS",
    "ArrivalSource",
    "ArrivalSpec",
    "ClosedLoop",
    "OpenArrivals",
    "Provenance",
    "PublicTrace",
    "ReadOptions",
    "Request",
    "SessionLoop",
    "Statistics",
    "Trace",
    "TraceError",
    "between",
    "constant",
    "detect",
    "fetch",
    "first",
    "gamma",
    "load",
    "on_off",
    "open_trace",
    "parse_arrivals",
    "poisson",
    "rank_correlation",
    "rescaled",
    "save",
    "shrunk",
    "spread_bins",
    "summarise",
    "with_hashes",
    "workload",
    "workloads",
]
