"""What whole layers take beyond the sum of their kernels, by SM share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

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
        every = np.arange(sms + 1)
        seconds, prefill, decode = (
            np.interp(every, [at for at, _ in curve], [value for _, value in curve]).tolist() if curve else nothing
            for curve, nothing in zip(self, ([0.0] * (sms + 1), [1.0] * (sms + 1), [1.0] * (sms + 1)), strict=True)
        )
        return list(zip(seconds, prefill, decode, strict=True))

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


def _at(curve: Curve, sms: list[int]) -> list[float]:
    if not curve:
        return [1.0] * len(sms)
    values: list[float] = np.interp(sms, [at for at, _ in curve], [value for _, value in curve]).tolist()
    return values


def _product(one: Curve, other: Curve) -> Curve:
    """Of two curves, at the points of either; an empty one is 1."""
    sms = sorted({at for at, _ in (*one, *other)})
    return tuple((at, a * b) for at, a, b in zip(sms, _at(one, sms), _at(other, sms), strict=True))
