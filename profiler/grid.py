"""Numbers on a grid of sizes, linear between knots in the logarithms of sizes, held at the ends."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from math import log1p

from profiler.latency import Source


class Axis:
    """Knots along one size, and the logarithms between which to interpolate."""

    __slots__ = ("first", "knots", "last", "logs")

    def __init__(self, knots: Sequence[float]) -> None:
        # Whole sizes are asked for, and whole numbers compare faster with each other than with floats.
        self.knots = [int(knot) if knot == int(knot) else knot for knot in knots]
        self.logs = [log1p(knot) for knot in knots]
        self.first, self.last = float(knots[0]), float(knots[-1])

    def holds(self, value: float) -> bool:
        """Whether it is no less than the first knot and no more than the last."""
        return self.first <= value <= self.last

    def place(self, value: float) -> tuple[int, float]:
        """(index of the knot below, share of the way to the next): held at both ends."""
        knots = self.knots
        low = bisect_right(knots, value) - 1
        if low < 0:
            return 0, 0.0
        if low >= len(knots) - 1 or knots[low] == value:
            return low, 0.0
        log = self.logs[low]
        return low, (log1p(value) - log) / (self.logs[low + 1] - log)


class Grid:
    """log alpha of an op at each combination of knots: nested as the axes are, one number for each SM share."""

    __slots__ = ("_single", "_varying", "axes", "sources", "strides", "values")

    def __init__(self, axes: Sequence[Axis], values: list[tuple[float, ...]], sources: list[Source]) -> None:
        self.axes = tuple(axes)
        sizes = [len(axis.knots) for axis in axes]
        self.strides = tuple(math.prod(sizes[place + 1 :]) for place in range(len(sizes)))
        self.values = values
        self.sources = sources
        self._varying = [
            (place, axis, stride)
            for place, (axis, stride) in enumerate(zip(self.axes, self.strides, strict=True))
            if len(axis.knots) > 1
        ]
        self._single = [row[0] for row in values] if len(values[0]) == 1 else None

    def alphas(self, at: tuple[float, ...]) -> tuple[tuple[float, ...], Source]:
        """(alphas, source) between the knots around ``at``; a knot's own where it is one, extrapolated beyond them."""
        if self._single is not None and len(self._varying) == 1:
            alphas, source = self._on_line(self._single, at)
            if len(self.axes) == 1:
                return alphas, source
        else:
            alphas, source = self._between(at)
        for axis, value in zip(self.axes, at, strict=True):
            if not axis.holds(value):
                return alphas, "extrapolated"
        return alphas, source

    def _on_line(self, logs: list[float], at: tuple[float, ...]) -> tuple[tuple[float, ...], Source]:
        """:meth:`alphas` of the usual grid: one axis varies, and each of its knots has one number."""
        place, axis, _ = self._varying[0]
        value, sources = at[place], self.sources
        low, share = axis.place(value)
        log, source = logs[low], sources[low]
        if share:
            log += share * (logs[low + 1] - log)
            if source != "extrapolated":
                source = "extrapolated" if sources[low + 1] == "extrapolated" else "interpolated"
        elif not axis.holds(value):
            source = "extrapolated"
        return (math.exp(log),), source

    def _between(self, at: tuple[float, ...]) -> tuple[tuple[float, ...], Source]:
        """As ``alphas``, held at the borders."""
        single, sources = self._single, self.sources
        corners, weights = [0], [1.0]
        for place, axis, stride in self._varying:
            low, share = axis.place(at[place])
            start = low * stride
            if share:
                rest = 1 - share
                corners = [index + start for index in corners] + [index + start + stride for index in corners]
                weights = [weight * rest for weight in weights] + [weight * share for weight in weights]
            elif start:
                corners = [index + start for index in corners]
        source = sources[corners[0]]
        if len(corners) > 1 and source != "extrapolated":
            source = "extrapolated" if sources[corners[-1]] == "extrapolated" else "interpolated"
        if single is not None:
            log = 0.0
            for place, index in enumerate(corners):
                log += weights[place] * single[index]
            return (math.exp(log),), source
        weighed, shares = list(zip(corners, weights, strict=True)), range(len(self.values[0]))
        logs = [sum([weight * self.values[index][share] for index, weight in weighed]) for share in shares]
        return tuple(map(math.exp, logs)), source

    def across(self, first: float, columns: Sequence[int]) -> list[tuple[float, Source]]:
        """(the one alpha, source) at knots of the second axis and ``first`` of the first; there are two axes."""
        logs, axis, stride = self._single, self.axes[0], self.strides[0]
        assert logs is not None
        low, share = axis.place(first)
        outside = not axis.holds(first)
        found: list[tuple[float, Source]] = []
        for column in columns:
            place = low * stride + column
            log, source = logs[place], self.sources[place]
            if share:
                log = (1 - share) * log + share * logs[place + stride]
                if source != "extrapolated":
                    source = "extrapolated" if self.sources[place + stride] == "extrapolated" else "interpolated"
            found.append((math.exp(log), "extrapolated" if outside else source))
        return found

    def line(self, first: float) -> Grid:
        """The grid along its second axis, at the knot of the first nearest to ``first``; of others at their first."""
        knots = self.axes[0].knots
        start = min(range(len(knots)), key=lambda index: abs(knots[index] - first)) * self.strides[0]
        places = range(start, start + self.strides[0], self.strides[1])
        return Grid([self.axes[1]], [self.values[place] for place in places], [self.sources[place] for place in places])
