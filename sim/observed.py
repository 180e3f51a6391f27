"""The last finished steps of an instance, as a policy sees them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

from policies.api import Observation
from profiler.work import Overlap, Work

OBSERVED_STEPS = 64

new = tuple.__new__
"""For what is made by the dozen: their own constructors take three times as long."""


class CoastedSteps(NamedTuple):
    """Decode steps alone, one after another: their contexts and predicted seconds, and ``times_s`` at which they ended.

    The first of ``times_s`` is when the first step began: one more than there are steps.
    """

    lane: str
    sms: int
    decodes: int
    overlap: Overlap | None
    contexts: range
    predicted_s: list[float]
    times_s: list[float]

    def observations(self) -> list[Observation]:
        """Each step, no more than are kept."""
        lane, sms, decodes, overlap, contexts, predicted_s, times_s = self
        steps = len(contexts)
        first = max(0, steps - OBSERVED_STEPS)
        starts_s, ends_s = times_s[first:steps], times_s[first + 1 : steps + 1]
        works = [new(Work, ((), decodes, context, None, True, 0, overlap)) for context in contexts[first:]]
        return [
            new(Observation, (lane, work, sms, None, 0, predicted, end_s - start_s))
            for work, predicted, start_s, end_s in zip(works, predicted_s[first:steps], starts_s, ends_s, strict=True)
        ]


class ObservedSteps(Sequence[Observation]):
    """The last finished steps, oldest first; what coasts have done becomes Observations only when somebody looks."""

    __slots__ = ("_finished", "_unseen", "add")

    def __init__(self) -> None:
        self._finished: deque[Observation] = deque(maxlen=OBSERVED_STEPS)
        # Each of these is one step or more, so that the last ones are always among them.
        self._unseen: deque[Observation | CoastedSteps] = deque(maxlen=OBSERVED_STEPS)
        self.add = self._unseen.append

    def _seen(self) -> deque[Observation]:
        finished, unseen = self._finished, self._unseen
        if unseen:
            for item in unseen:
                if isinstance(item, Observation):
                    finished.append(item)
                else:
                    finished.extend(item.observations())
            unseen.clear()
        return finished

    def __len__(self) -> int:
        return len(self._seen())

    def __reversed__(self) -> Iterator[Observation]:
        return reversed(self._seen())

    @overload
    def __getitem__(self, index: int) -> Observation: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Observation]: ...
    def __getitem__(self, index: int | slice) -> Observation | Sequence[Observation]:
        finished = self._seen()
        if isinstance(index, slice):
            return [finished[i] for i in range(*index.indices(len(finished)))]
        return finished[index]
