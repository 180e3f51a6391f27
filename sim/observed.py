"""The last finished steps of an instance, as a policy sees them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from operator import sub, truediv
from typing import Final, NamedTuple, overload

from policies.api import Observation
from policies.recalibration import Errors
from profiler.work import Overlap, Work

OBSERVED_STEPS: Final = 64

new: Final = tuple.__new__
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


Item = Observation | CoastedSteps
"""A finished step, or some one after another."""


# Functions: compiled, a named tuple's methods are called as slowly as Python's own.
def _observation(coasted: CoastedSteps, place: int) -> Observation:
    """One step."""
    lane, sms, decodes, overlap, contexts, predicted_s, times_s = coasted
    work = new(Work, ((), decodes, contexts[place], None, True, 0, overlap))
    finish_s = times_s[place + 1]
    return new(Observation, (lane, work, sms, None, 0, predicted_s[place], finish_s - times_s[place], finish_s))


def _observations(coasted: CoastedSteps) -> list[Observation]:
    """Each step, no more than are kept."""
    steps = len(coasted.contexts)
    return [_observation(coasted, place) for place in range(max(0, steps - OBSERVED_STEPS), steps)]


def _errors(coasted: CoastedSteps, most: int) -> list[float]:
    """Measured over predicted seconds of the steps, no more than the last ``most``."""
    _, _, _, _, contexts, predicted_s, times_s = coasted
    first = max(0, len(contexts) - most)
    measured_s = map(sub, times_s[first + 1 :], times_s[first:-1])
    return list(map(truediv, measured_s, predicted_s[first:]))


class ObservedSteps(Sequence[Observation]):
    """The last finished steps, oldest first; what coasts have done becomes Observations only when somebody looks."""

    __slots__ = ("_finished", "_items", "_last_listed", "add")

    def __init__(self) -> None:
        # Each item is one step or more, so that the last steps are always among them.
        self._items: deque[Item] = deque(maxlen=OBSERVED_STEPS)
        self._finished: deque[Observation] = deque(maxlen=OBSERVED_STEPS)
        self._last_listed: Item | None = None
        self.add = self._items.append

    def errors_since(self, latest: object) -> tuple[object, Errors]:
        """See :func:`policies.recalibration.errors_since`: an item stands for its last step."""
        found: Errors = []
        items, left = self._items, OBSERVED_STEPS
        place = len(items)
        while place and left:
            place -= 1
            item = items[place]
            if item is latest:
                break
            if isinstance(item, CoastedSteps):
                errors = _errors(item, left)
                found.append((False, errors))
                left -= len(errors)
            else:
                found.append((bool(item[1][0]), [item[6] / item[5]]))
                left -= 1
        return items[-1] if found else latest, found

    def _listed(self) -> deque[Observation]:
        last, fresh = self._last_listed, []
        for item in reversed(self._items):
            if item is last:
                break
            fresh.append(item)
        if fresh:
            self._last_listed = fresh[0]
            for item in reversed(fresh):
                if isinstance(item, Observation):
                    self._finished.append(item)
                else:
                    self._finished.extend(_observations(item))
        return self._finished

    def __len__(self) -> int:
        return len(self._listed())

    def __reversed__(self) -> Iterator[Observation]:
        return reversed(self._listed())

    @overload
    def __getitem__(self, index: int) -> Observation: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Observation]: ...
    def __getitem__(self, index: int | slice) -> Observation | Sequence[Observation]:
        finished = self._listed()
        if isinstance(index, slice):
            return [finished[i] for i in range(*index.indices(len(finished)))]
        return finished[index]
