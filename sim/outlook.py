"""How many runs a search will take yet, as far as that can be told."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager


class Outlook:
    """``ahead``: runs that are still to come, ``least`` so many or about so many."""

    def __init__(self) -> None:
        self.ahead = 0
        self.least = False
        self._later = 0

    def foresee(self, runs: int, *, least: bool) -> None:
        """What is under way takes so many runs from now on, at ``least`` or about."""
        self.ahead, self.least = runs + self._later, least

    def ran(self) -> None:
        """One of them is over."""
        self.ahead = max(self._later, self.ahead - 1)

    @contextmanager
    def followed_by(self, runs: int) -> Iterator[None]:
        """What the block does is followed by so many runs or more."""
        self._later += runs
        try:
            yield
        finally:
            self._later -= runs


def halvings(ratio: float, width: float) -> int:
    """Steps of a bisection between two rates, one ``ratio`` times the other, until they are ``width`` times apart."""
    return math.ceil(math.log2(max(1.0, math.log(ratio) / math.log(width))))
