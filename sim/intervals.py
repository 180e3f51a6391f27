"""Confidence intervals over independent replications."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and where the true one lies at ``confidence``; without bounds (infinite) for a single value."""

    mean: float
    half_width: float
    confidence: float
    count: int

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width


def interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Student's t interval of the mean of independent values; ValueError for none, or a confidence not in (0, 1)."""
    if not values:
        raise ValueError("an interval needs at least one value")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence:g}; it must be above 0 and below 1, such as 0.95")
    count = len(values)
    half = math.inf
    if count > 1:
        # scipy.stats would give the same and takes a second to import.
        from scipy.special import stdtrit

        half = float(stdtrit(count - 1, (1 + confidence) / 2)) * stdev(values) / math.sqrt(count)
    return Interval(mean=fmean(values), half_width=half, confidence=confidence, count=count)
