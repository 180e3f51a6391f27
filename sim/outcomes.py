"""The last finished requests of an instance, and how many of them were too late."""

from __future__ import annotations

from collections import deque

from policies.api import Outcome
from policies.forecast import Missed

OBSERVED_OUTCOMES = 100


class Outcomes(deque[Outcome]):
    """Oldest first; counted as they come and go, since policies ask more often than requests finish."""

    def __init__(self) -> None:
        super().__init__(maxlen=OBSERVED_OUTCOMES)
        self._ttft = self._tpot = self._judged = 0

    def append(self, outcome: Outcome) -> None:
        if len(self) == OBSERVED_OUTCOMES:
            self._count(self[0], -1)
        super().append(outcome)
        self._count(outcome, 1)

    def missed(self) -> Missed:
        """See :func:`policies.forecast.missed`."""
        return Missed(self._ttft, self._tpot, self._judged)

    def _count(self, outcome: Outcome, by: int) -> None:
        ttft_ratio, tpot_ratio = outcome
        self._ttft += by * (ttft_ratio > 1)
        if tpot_ratio is not None:
            self._judged += by
            self._tpot += by * (tpot_ratio > 1)
