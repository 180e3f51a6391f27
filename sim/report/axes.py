"""Axes of charts: where a value lies, and which numbers stand beside."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """From ``low`` to ``high``, linear or logarithmic; ``scale`` is a factor on the numbers beside it."""

    label: str
    low: float
    high: float
    log: bool = False
    scale: float = 1.0

    def share(self, value: float) -> float:
        """Where a value lies, 0 at low and 1 at high; no further out than a third of the axis."""
        if self.log:
            value, low, high = (math.log(max(x, 1e-12)) for x in (value, self.low, self.high))
        else:
            low, high = self.low, self.high
        return min(max((value - low) / (high - low), -0.33), 1.33)

    def ticks(self) -> list[tuple[float, str]]:
        """Some five values and their numbers."""
        low, high = self.low * self.scale, self.high * self.scale
        found = _log_ticks(low, high) if self.log else _linear_ticks(low, high)
        return [(value / self.scale, f"{value:.12g}") for value in found]


def fitted(
    label: str, values: Iterable[float], *, log: bool = False, scale: float = 1.0, top: float | None = None
) -> Axis:
    """An axis that holds the ``values`` that are finite, and ``top``; a linear one begins at 0."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    known += [top] if top is not None else []
    if log:
        low, high = min(known, default=1.0), max(known, default=10.0)
        return Axis(label=label, low=low / 1.15, high=max(high * 1.15, low * 2), log=True, scale=scale)
    return Axis(label=label, low=0.0, high=1.06 * max(known, default=1.0) or 1.0, scale=scale)


def _linear_ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / 5.5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [place * step for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), tuple(map(float, range(1, 10)))):
        found = [factor * 10.0**power for power in decades for factor in factors]
        found = [value for value in found if low <= value <= high]
        if len(found) >= 4:
            return found[:: -(-len(found) // 8)]
    return found
