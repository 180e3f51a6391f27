"""What a trace is like, in numbers: rate, burstiness, silences, lengths. Numpy alone.

With arrivals t_1 <= ... <= t_n, gaps g_i = t_(i+1) - t_i, span = t_n - t_1 and N_j the arrivals in the j-th
of the whole windows of w seconds from t_1 on:

- rate = (n - 1) / span
- CV of gaps = std(g) / mean(g): 0 for a clock, 1 for Poisson arrivals, more for bursts
- peak to mean = max_j N_j / mean_j N_j
- index of dispersion = var_j N_j / mean_j N_j (1 for Poisson arrivals; also called the Fano factor)
- a silence is a gap longer than 10 s
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from traces.request import FloatColumn, IntColumn, Trace

SILENCE_S = 10.0
WINDOW_S = 10.0
LEAST_WINDOWS = 20
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Token counts of a column; quantiles interpolate linearly between order statistics."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Formulas above; None where a number is not defined (one request, all at once, under two windows)."""

    span_s: float
    rate: float | None
    gap_cv: float | None
    window_s: float | None
    peak_to_mean: float | None
    dispersion: float | None
    silences: int
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Of one trace; ``arrivals`` is None for lengths alone, ``rank_correlation`` is of prompt and output."""

    requests: int
    prompt_tokens: Lengths
    output_tokens: Lengths
    rank_correlation: float | None
    arrivals: Arrivals | None

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return asdict(self)


def summarise(trace: Trace) -> Statistics:
    """The statistics of a trace with one request or more."""
    return Statistics(
        requests=len(trace),
        prompt_tokens=_lengths(trace.prompt_tokens),
        output_tokens=_lengths(trace.output_tokens),
        rank_correlation=rank_correlation(trace.prompt_tokens, trace.output_tokens),
        arrivals=None if trace.arrival_s is None else _arrivals(trace.arrival_s),
    )


def window_counts(arrivals: FloatColumn, window_s: float) -> IntColumn:
    """Arrivals in each whole window of ``window_s`` seconds from the first arrival on, shape (windows,)."""
    since = arrivals - arrivals[0]
    whole = int(since[-1] / window_s)
    return np.bincount((since / window_s).astype(np.int64), minlength=whole)[:whole].astype(np.int64)


def rank_correlation(first: IntColumn, second: IntColumn) -> float | None:
    """Spearman's rank correlation of columns of shape (n,), ties at their mean rank; None if one is constant."""
    ranks = [_mean_ranks(column) for column in (first, second)]
    deviations = [column - column.mean() for column in ranks]
    scale = float(np.sqrt(np.dot(deviations[0], deviations[0]) * np.dot(deviations[1], deviations[1])))
    return float(np.dot(deviations[0], deviations[1])) / scale if scale else None


def _mean_ranks(column: IntColumn) -> FloatColumn:
    _, inverse, counts = np.unique(column, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: FloatColumn = (last - (counts - 1) / 2)[inverse]
    return ranks


def _lengths(column: IntColumn) -> Lengths:
    quantiles = np.quantile(column, list(QUANTILES.values()))
    return Lengths(
        mean=float(column.mean()),
        max=int(column.max()),
        total=int(column.sum()),
        **dict(zip(QUANTILES, quantiles.tolist(), strict=True)),
    )


def _arrivals(arrivals: FloatColumn) -> Arrivals:
    gaps = np.diff(arrivals)
    span_s = float(arrivals[-1] - arrivals[0])
    if span_s == 0:
        return Arrivals(
            span_s=0.0,
            rate=None,
            gap_cv=None,
            window_s=None,
            peak_to_mean=None,
            dispersion=None,
            silences=0,
            silent_s=0.0,
        )
    # A short trace gets shorter windows: too few of them say nothing.
    window_s = min(WINDOW_S, span_s / LEAST_WINDOWS)
    counts = window_counts(arrivals, window_s)
    mean = float(counts.mean())
    silent = gaps[gaps > SILENCE_S]
    return Arrivals(
        span_s=span_s,
        rate=len(gaps) / span_s,
        gap_cv=float(gaps.std() / gaps.mean()),
        window_s=window_s,
        peak_to_mean=float(counts.max()) / mean if mean else None,
        dispersion=float(counts.var()) / mean if mean else None,
        silences=len(silent),
        silent_s=float(silent.sum()),
    )
