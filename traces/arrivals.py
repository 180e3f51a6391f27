"""When requests arrive: processes that give a trace new arrival times, and the sources that a loop consumes.

Conventions. The first request arrives at 0 and the mean rate of n requests is (n - 1) / span, span being
the time from the first arrival to the last. Gaps are drawn at rate 1 and divided by the rate: with one
seed, twice the rate is the same Poisson or gamma arrivals at half the times, so a sweep over rates changes
nothing else.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

import numpy as np

from traces.chance import generator
from traces.errors import TraceError
from traces.request import MAX_ARRIVAL_S, FloatColumn, Request, Trace

new: Final = tuple.__new__

_RATE = "requests per second, above 0"


def positive(name: str, value: float, remedy: str) -> float:
    """``value``, or TraceError if it is not a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise TraceError(f"{name} is {value:g}; give {remedy}")
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
    positive("rate", rate, _RATE)
    arrivals = recorded(trace)
    span = float(arrivals[-1] - arrivals[0])
    if span == 0:
        raise TraceError(f"{trace.name}: all requests arrive at once, so no rate can be set; use poisson:{rate:g}")
    factor = _gaps(trace) / span / rate
    note = f"arrivals stretched by {factor:.6g} to {rate:g} requests/s"
    return _placed(trace, (arrivals - arrivals[0]) * factor, note)


def poisson(trace: Trace, rate: float, seed: int = 0) -> Trace:
    """Independent exponential gaps with mean 1 / ``rate`` seconds."""
    positive("rate", rate, _RATE)
    gaps = generator(seed, "arrivals").standard_exponential(_gaps(trace))
    return _arriving(trace, gaps / rate, f"arrivals: Poisson, {rate:g} requests/s, seed {seed}")


def gamma(trace: Trace, rate: float, cv: float, seed: int = 0) -> Trace:
    """Independent gamma gaps with mean 1 / ``rate`` and coefficient of variation ``cv`` (1 is Poisson)."""
    positive("rate", rate, _RATE)
    positive("cv", cv, "a coefficient of variation above 0, such as 3 for bursts")
    if not 1e-3 <= cv <= 1e3:
        raise TraceError(f"cv is {cv:g}; give 0.001 to 1000 (constant has none)")
    shape = 1 / cv**2
    gaps = generator(seed, "arrivals").standard_gamma(shape, _gaps(trace)) / shape
    return _arriving(trace, gaps / rate, f"arrivals: gamma, {rate:g} requests/s, CV {cv:g}, seed {seed}")


def constant(trace: Trace, rate: float) -> Trace:
    """One request every 1 / ``rate`` seconds."""
    positive("rate", rate, _RATE)
    return _arriving(
        trace, np.full(len(trace) - 1, 1 / rate), f"arrivals: one every {1 / rate:g} s ({rate:g} requests/s)"
    )


def on_off(trace: Trace, rate: float, on_s: float, off_s: float, seed: int = 0, *, periods: str = "constant") -> Trace:
    """Poisson arrivals for ``on_s`` seconds, none for ``off_s``, and so on; ``rate`` is the mean over both.

    While on, the rate is ``rate`` * (on_s + off_s) / on_s. ``periods`` is "constant" or "exponential": the
    lengths of the periods, or their means.
    """
    positive("rate", rate, _RATE)
    positive("on", on_s, "the length of a busy period in seconds, above 0")
    positive("off", off_s, "the length of a silence in seconds, above 0 (poisson has none)")
    if periods not in ("constant", "exponential"):
        raise TraceError(f"periods is {periods!r}; known: constant, exponential")
    gaps = generator(seed, "arrivals").standard_exponential(_gaps(trace))
    busy = np.concatenate(([0.0], np.cumsum(gaps * on_s / (rate * (on_s + off_s)))))
    # Time spent busy becomes time on the clock by adding the silences gone through until then.
    if periods == "constant":
        arrivals = busy + np.floor(busy / on_s) * off_s
    else:
        ends, silences = _random_periods(float(busy[-1]), on_s, off_s, seed)
        arrivals = busy + silences[np.searchsorted(ends, busy, side="right")]
    note = f"arrivals: on {on_s:g} s, off {off_s:g} s ({periods} periods), {rate:g} requests/s, seed {seed}"
    return _placed(trace, arrivals, note)


def _random_periods(busy_s: float, on_s: float, off_s: float, seed: int) -> tuple[FloatColumn, FloatColumn]:
    """Ends of exponential busy periods in busy time (k,), past ``busy_s``, and the silences before each (k + 1,)."""
    rng = generator(seed, "on-off periods")
    lengths: list[FloatColumn] = []
    covered = 0.0
    while covered <= busy_s:
        # One chunk size whatever the span, so that a longer trace begins with the same periods.
        lengths.append(rng.standard_exponential((256, 2)) * (on_s, off_s))
        covered += float(lengths[-1][:, 0].sum())
    both = np.concatenate(lengths)
    return np.cumsum(both[:, 0]), np.concatenate(([0.0], np.cumsum(both[:, 1])))


def spread_bins(trace: Trace, bin_s: float | None = None, seed: int = 0) -> Trace:
    """Binned arrivals spread uniformly over their bins of ``bin_s`` seconds, order kept, the first at 0.

    Without ``bin_s`` the bin is the smallest step between two stamps. A stamp is taken as its bin's start.
    """
    arrivals = recorded(trace)
    steps = np.diff(np.unique(arrivals))
    if bin_s is None and len(steps) == 0:
        raise TraceError(f"{trace.name}: all requests share one stamp; give the bin's length in seconds")
    width_s = positive("bin", float(steps.min()) if bin_s is None else bin_s, "a bin's length in seconds")
    offsets = generator(seed, "bins").random(len(trace)) * width_s
    spread = np.sort(arrivals + offsets)
    note = f"arrivals spread over bins of {width_s:g} s, seed {seed}"
    return _placed(trace, spread - spread[0], note)


def between(trace: Trace, start_s: float, end_s: float | None = None) -> Trace:
    """The requests that arrive in [start_s, end_s), their times counted from ``start_s``."""
    arrivals = recorded(trace)
    until_s = math.inf if end_s is None else end_s
    if not 0 <= start_s < until_s:
        raise TraceError(f"slice from {start_s:g} s to {until_s:g} s is empty; give a start before its end")
    chosen = trace.select((arrivals >= start_s) & (arrivals < until_s))
    if not len(chosen):
        last = float(arrivals[-1])
        raise TraceError(
            f"{trace.name}: nothing arrives between {start_s:g} s and {until_s:g} s; the last request is at {last:g} s"
        )
    end = "the end" if end_s is None else f"{end_s:g} s"
    return _placed(chosen, recorded(chosen) - start_s, f"slice from {start_s:g} s to {end}")


def first(trace: Trace, requests: int) -> Trace:
    """The first ``requests`` requests; TraceError if that is below 1."""
    if requests < 1:
        raise TraceError(f"a trace of {requests} requests was asked for; ask for 1 or more")
    if requests >= len(trace):
        return trace
    chosen = trace[:requests]
    note = f"first {requests} of {len(trace)} requests"
    return replace(chosen, provenance=trace.provenance.noting(note))


def shrunk(trace: Trace, factor: int) -> Trace:
    """Prompts and answers a ``factor``-th as long, rounded up, for a device too small for the real ones.

    Arrivals and sessions stay. Hashed prefix blocks are dropped: a hash stands for whole blocks of the long prompt.
    TraceError for a factor below 1, or above all lengths.
    """
    if not 1 <= factor < 1 << 63:
        raise TraceError(f"lengths divided by {factor}; give a whole number of 1 or more, such as 8")
    if factor == 1:
        return trace
    note = f"prompts and answers divided by {factor}, rounded up to whole tokens"
    if trace.block_hashes is not None:
        note += "; block hashes dropped, as they are of longer prompts"
    return replace(
        trace,
        prompt_tokens=-(-trace.prompt_tokens // factor),
        output_tokens=-(-trace.output_tokens // factor),
        block_hashes=None,
        block_tokens=None,
        provenance=trace.provenance.noting(note),
    )


def _gaps(trace: Trace) -> int:
    if len(trace) == 0:
        raise TraceError(f"{trace.name}: a trace without requests; give one with at least one")
    return len(trace) - 1


def _arriving(trace: Trace, gaps: FloatColumn, note: str) -> Trace:
    return _placed(trace, np.concatenate(([0.0], np.cumsum(gaps))), note)


def _placed(trace: Trace, arrivals: FloatColumn, note: str) -> Trace:
    last_s = float(arrivals[-1])
    if not last_s <= MAX_ARRIVAL_S:
        raise TraceError(f"{note}: the last is at {last_s:g} s, beyond {MAX_ARRIVAL_S:g} s; raise the rate")
    return replace(trace, arrival_s=arrivals, provenance=trace.provenance.noting(note))


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

    __slots__ = ("_arrivals", "_next", "_requests")

    def __init__(self, trace: Trace) -> None:
        arrivals = recorded(trace)
        if not np.all((arrivals >= 0) & (arrivals <= MAX_ARRIVAL_S)) or np.any(np.diff(arrivals) < 0):
            raise TraceError(
                f"{trace.name}: arrivals must be 0 to {MAX_ARRIVAL_S:g} s and in order; sort the trace first"
            )
        self._arrivals = array("d", arrivals.astype(np.float64).tobytes())
        self._requests = RequestColumns(trace)
        self._next = 0

    def peek_s(self) -> float | None:
        return self._arrivals[self._next] if self._next < len(self._arrivals) else None

    def pop(self) -> Request:
        index = self._next
        arrival_s = self._arrivals[index]
        self._next = index + 1
        return self._requests.make(index, arrival_s)

    def finished(self, index: int, now_s: float) -> None:
        """Nothing: users of an open system do not wait for each other."""


class ClosedLoop:
    """``users`` users, each of whom thinks, sends the next request of the trace, waits for it to leave, and so on.

    Thinking takes ``think_s`` seconds, exactly ("constant") or as the mean of an exponential; everyone
    begins by thinking. The time thought after request i is drawn with i and not when it leaves, so that
    two policies meet the same thoughts. Users who are ready at one instant send in the order in which
    they became known. Recorded arrivals are not used.
    """

    __slots__ = ("_next", "_ready", "_requests", "_sent", "_thinks", "_total", "_waiting")

    def __init__(self, trace: Trace, users: int, think_s: float, seed: int = 0, *, think: str = "exponential") -> None:
        if users < 1:
            raise TraceError(f"users is {users}; give a closed loop 1 user or more")
        if not (math.isfinite(think_s) and think_s >= 0):
            raise TraceError(f"think is {think_s:g}; give a think time in seconds, 0 or more")
        if think not in ("exponential", "constant"):
            raise TraceError(f"think is {think!r}; known: exponential, constant")
        rng = generator(seed, "think times")
        count = users + len(trace)
        draws = rng.standard_exponential(count) if think == "exponential" else np.ones(count)
        thinks: list[float] = (draws * think_s).tolist()
        self._thinks = thinks[users:]
        # (time ready, order of becoming known): one entry for each user who is thinking.
        self._ready = [(ready_s, order) for order, ready_s in enumerate(thinks[:users])]
        heapify(self._ready)
        self._requests, self._total = RequestColumns(trace), len(trace)
        self._next, self._sent = 0, users
        self._waiting: set[int] = set()

    def peek_s(self) -> float | None:
        return self._ready[0][0] if self._ready and self._next < self._total else None

    def pop(self) -> Request:
        index = self._next
        if index >= self._total:
            raise IndexError("no request is left")
        ready_s, _ = heappop(self._ready)
        self._next = index + 1
        self._waiting.add(index)
        return self._requests.make(index, ready_s)

    def finished(self, index: int, now_s: float) -> None:
        """The user of that request begins to think; KeyError if the request is not under way."""
        self._waiting.remove(index)
        heappush(self._ready, (now_s + self._thinks[index], self._sent))
        self._sent += 1


class RequestColumns:
    """A trace's columns such that a million single requests are made cheaply, without a million numbers at hand."""

    __slots__ = ("_blocks", "_ids", "_outputs", "_prompts", "_sessions")

    def __init__(self, trace: Trace) -> None:
        self._prompts = array("q", trace.prompt_tokens.astype(np.int64).tobytes())
        self._outputs = array("q", trace.output_tokens.astype(np.int64).tobytes())
        self._ids, self._sessions, self._blocks = trace.request_ids, trace.session_ids, trace.block_hashes

    def make(self, index: int, arrival_s: float) -> Request:
        row = (
            str(index) if self._ids is None else self._ids[index],
            arrival_s,
            self._prompts[index],
            self._outputs[index],
            None if self._sessions is None else self._sessions[index],
            () if self._blocks is None else self._blocks[index],
        )
        return new(Request, row)
