"""What whole layers take beyond the sum of their kernels, by SM share, and what products take in them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Self, TypeVar

Curve = tuple[tuple[int, float], ...]
"""(SMs or rows, value), ascending; between them it is interpolated, outside it stays what it is at the end."""

Points = Sequence[Sequence[float]]


class LayerCosts(NamedTuple):
    """Launches on n SMs take the sum of their kernels times a factor, and some seconds for each layer.

    A kernel that follows another finds other data in the caches and its threads asleep, which the same kernel timed
    over and over does not: a cost of each, whatever its size. What grows with their size is in the factors, ``prefill``
    for launches that prefill and ``decode`` for others. Nothing where a curve is empty.
    """

    seconds: Curve = ()
    prefill: Curve = ()
    decode: Curve = ()

    def by_sms(self, sms: int) -> list[tuple[float, float, float]] | None:
        """(seconds, prefill factor, decode factor) on 0 (unused) to ``sms`` SMs; None where there is nothing to add."""
        if not any(self):
            return None
        return [
            (_at(self.seconds, at, 0.0), _at(self.prefill, at, 1.0), _at(self.decode, at, 1.0)) for at in range(sms + 1)
        ]

    def outside_layers(self, sms: int) -> list[float] | None:
        """By SMs, 0 (unused) to ``sms``: what takes the factor of launches that only decode out of a time again, for
        kernels that are in no layer; in launches that prefill, not exactly. None where there is none.

        Of the costs as measured, so that a pace on top of them holds for these kernels too.
        """
        return [1 / _at(self.decode, at, 1.0) for at in range(sms + 1)] if self.decode else None

    def at_pace(self, prefill: Curve, decode: Curve) -> LayerCosts:
        """The costs on a device that takes so many times as long, for launches that prefill and for others.

        A time for each layer goes with decode, whose layers have little else.
        """
        seconds, of_prefill, of_decode = self
        return LayerCosts(
            _product(seconds, decode) if seconds else (),
            _product(of_prefill, prefill),
            _product(of_decode, decode),
        )

    def document(self) -> dict[str, list[list[float]]]:
        """JSON types; :meth:`read` makes it again."""
        return {name: [list(point) for point in curve] for name, curve in self._asdict().items()}

    @classmethod
    def read(cls, document: Mapping[str, Points]) -> Self:
        return cls.of(*(document.get(name, ()) for name in cls._fields))

    @classmethod
    def of(cls, *curves: Points) -> Self:
        """Of the three curves, their points as any sequences."""
        return cls(*map(_curve, curves))


class ProductFactors(NamedTuple):
    """How many times as long products take in a layer as the same products alone, over and over: by SMs, then by rows.

    ``by_sms``: (SMs, ((rows, factor), ...)), both ascending. Rows are the tokens of a launch. Between rows the
    factor is linear in their logarithm, between shares its logarithm in that of SMs; beyond the ends it stays. 1 where
    there are none.
    """

    by_sms: tuple[tuple[int, Curve], ...] = ()

    def at(self, rows: float, sms: int) -> float:
        """The factor on products of so many rows on ``sms`` SMs."""
        if not self.by_sms:
            return 1.0
        (_, below), (_, above), way = _around(self.by_sms, sms)
        one, two = _on_logs(below, rows), _on_logs(above, rows)
        return float(one * (two / one) ** way)

    def rows(self) -> set[int]:
        """Between these rows, on any share, the factor is as said."""
        return {rows for _, curve in self.by_sms for rows, _ in curve}

    def times(self, other: ProductFactors) -> ProductFactors:
        """The product of both, at the shares and rows of either."""
        shares = sorted({sms for sms, _ in chain(self.by_sms, other.by_sms)})
        rows = sorted(self.rows() | other.rows())
        return ProductFactors(
            tuple((sms, tuple((at, self.at(at, sms) * other.at(at, sms)) for at in rows)) for sms in shares)
        )

    def document(self) -> list[list[Any]]:
        """JSON types; :meth:`read` makes it again."""
        return [[sms, [list(point) for point in curve]] for sms, curve in self.by_sms]

    @classmethod
    def read(cls, document: Iterable[Sequence[Any]]) -> Self:
        return cls(tuple((int(sms), _curve(points)) for sms, points in document))


NOTHING = LayerCosts()
AS_ALONE = ProductFactors()


def _curve(points: Points) -> Curve:
    return tuple((int(at), float(value)) for at, value in points)


def _at(curve: Curve, sms: int, nothing: float) -> float:
    """A curve's value; ``nothing`` of an empty one. Without numpy, which importing the profiler does not load."""
    if not curve:
        return nothing
    place = bisect_left(curve, sms, key=lambda point: point[0])
    if place in (0, len(curve)):
        return curve[min(place, len(curve) - 1)][1]
    (low, left), (high, right) = curve[place - 1 : place + 1]
    return left + (right - left) * (sms - low) / (high - low)


Value = TypeVar("Value")


def _around(points: Sequence[tuple[int, Value]], at: float) -> tuple[tuple[int, Value], tuple[int, Value], float]:
    """The points around ``at`` and how far it is from the first, by logarithms; one twice at a point and beyond all."""
    place = bisect_left(points, at, key=lambda point: point[0])
    low, high = points[max(0, place - 1)], points[min(place, len(points) - 1)]
    if place == 0 or high[0] <= at:
        return high, high, 0.0
    return low, high, math.log(at / low[0]) / math.log(high[0] / low[0])


def _on_logs(curve: Curve, at: float) -> float:
    (_, left), (_, right), way = _around(curve, at)
    return left + (right - left) * way


def _product(one: Curve, other: Curve) -> Curve:
    """Of two curves, at the points of either; an empty one is 1."""
    sms = sorted({at for at, _ in (*one, *other)})
    return tuple((at, _at(one, at, 1.0) * _at(other, at, 1.0)) for at in sms)
