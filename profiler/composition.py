"""What whole layers take beyond the sum of their kernels, by SM share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

Curve = tuple[tuple[int, float], ...]
"""(SMs, value), ascending; between them it is interpolated, outside it stays what it is at the end."""

Points = Sequence[Sequence[float]]


class LayerCosts(NamedTuple):
    """Layers on n SMs take the sum of their kernels times a factor, and some seconds for each layer.

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
        return cls(*(tuple((int(sms), float(value)) for sms, value in points) for points in curves))


NOTHING = LayerCosts()


def _at(curve: Curve, sms: int, nothing: float) -> float:
    """A curve's value; ``nothing`` of an empty one. Without numpy, which importing the profiler does not load."""
    if not curve:
        return nothing
    place = bisect_left(curve, sms, key=lambda point: point[0])
    if place in (0, len(curve)):
        return curve[min(place, len(curve) - 1)][1]
    (low, left), (high, right) = curve[place - 1 : place + 1]
    return left + (right - left) * (sms - low) / (high - low)


def _product(one: Curve, other: Curve) -> Curve:
    """Of two curves, at the points of either; an empty one is 1."""
    sms = sorted({at for at, _ in (*one, *other)})
    return tuple((at, _at(one, at, 1.0) * _at(other, at, 1.0)) for at in sms)
