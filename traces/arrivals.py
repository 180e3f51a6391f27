"""When requests arrive: processes that give a trace new arrival times, and the sources that a loop consumes.

Conventions. The first request arrives at 0 and the mean rate of n requests is (n - 1) / span, span being
the time from the first arrival to the last. Gaps are drawn at rate 1 and divided by the rate: the same
seed at twice the rate is the same arrivals at half the times, so a sweep over rates changes nothing else.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

import numpy as np

from traces.chance import generator
from traces.errors import TraceError
from traces.request import FloatColumn, Request, Trace


def positive(name: str, value: float, remedy: str) -> float:
    """``value``, or TraceError if it is not a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise TraceError(f"{name} is {value}; give {remedy}")
    return value


def recorded(trace: Trace) -> FloatColumn:
    """The arrivals that the trace came with, shape (n,); TraceError for a file of lengths alone."""
    if trace.arrival_s is None:
        raise TraceError(
            f"{trace.name}: a trace of lengths, without arrival times; give it arrivals, such as poisson:4"
        )
    return trace.arrival_s


def rescaled(trace: Trace, rate: float) -> Trace:
    """Recorded arrivals, stretched or compressed to a mean ``rate`` in requests/s; the first is at 0."""
    positive("rate", rate, "requests per second, above 0")
    arrivals = recorded(trace)
    span = float(arrivals[-1] - arrivals[0])
    if span == 0:
        raise TraceError(f"{trace.name}: all requests arrive at once, so no rate can be set; use poisson:{rate:g}")
    factor = (len(trace) - 1) / span / rate
    return _arriving(
        trace, (arrivals - arrivals[0]) * factor, f"arrivals rescaled by {factor:.6g} to {rate:g} requests/s"
    )


def poisson(trace: Trace, rate: float, seed: int = 0) -> Trace:
    """Independent exponential gaps with mean 1 / ``rate`` seconds."""
    positive("rate", rate, "requests per second, above 0")
    gaps = generator(seed, "arrivals").standard_exponential(max(len(trace) - 1, 0))
    return _arriving(trace, _after(gaps / rate), f"arrivals: Poisson, {rate:g} requests/s, seed {seed}")


def _after(gaps: FloatColumn) -> FloatColumn:
    return np.concatenate(([0.0], np.cumsum(gaps)))


def _arriving(trace: Trace, arrivals: FloatColumn, note: str) -> Trace:
    return replace(trace, arrival_s=arrivals[: len(trace)], provenance=trace.provenance.noting(note))


class ArrivalSource(Protocol):
    """Where a serving loop gets its requests from, in order of arrival."""

    def peek_s(self) -> float | None:
        """The time of the next arrival already known, in seconds; None if none is known now."""

    def pop(self) -> Request:
        """Take that next request, its ``arrival_s`` set; IndexError if none is known."""

    def finished(self, index: int, now_s: float) -> None:
        """Told once for each request that leaves, finished or rejected; ``index`` counts the pops before."""


class OpenArrivals:
    """The arrivals of a trace, whatever becomes of the requests."""

    __slots__ = ("_arrivals", "_next", "_rest")

    def __init__(self, trace: Trace) -> None:
        arrivals = recorded(trace)
        if not np.all(np.isfinite(arrivals)) or np.any(np.diff(arrivals) < 0) or np.any(arrivals < 0):
            raise TraceError(f"{trace.name}: arrivals must be finite, 0 or later and in order; sort the trace first")
        # Lists once, not array scalars a million times.
        self._arrivals: list[float] = arrivals.tolist()
        self._rest = _Columns(trace)
        self._next = 0

    def peek_s(self) -> float | None:
        return self._arrivals[self._next] if self._next < len(self._arrivals) else None

    def pop(self) -> Request:
        index = self._next
        arrival_s = self._arrivals[index]
        self._next = index + 1
        return self._rest.request(index, arrival_s)

    def finished(self, index: int, now_s: float) -> None:
        """Nothing: users of an open system do not wait for each other."""


class _Columns:
    """A trace's columns as lists, from which single requests are made cheaply."""

    __slots__ = ("blocks", "ids", "outputs", "prompts", "sessions")

    def __init__(self, trace: Trace) -> None:
        self.prompts: list[int] = trace.prompt_tokens.tolist()
        self.outputs: list[int] = trace.output_tokens.tolist()
        self.ids, self.sessions, self.blocks = trace.request_ids, trace.session_ids, trace.block_hashes

    def request(self, index: int, arrival_s: float) -> Request:
        return Request(
            request_id=str(index) if self.ids is None else self.ids[index],
            arrival_s=arrival_s,
            prompt_tokens=self.prompts[index],
            output_tokens=self.outputs[index],
            session_id=None if self.sessions is None else self.sessions[index],
            block_hashes=() if self.blocks is None else self.blocks[index],
        )
