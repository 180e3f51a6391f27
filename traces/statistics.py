"""What a trace is like, in numbers: rates, burstiness, silences, lengths. Numpy alone."""

from __future__ import annotations

import numpy as np

from traces.request import FloatColumn, IntColumn


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
