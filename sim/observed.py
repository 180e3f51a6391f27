"""The last finished steps of an instance, as a policy sees them."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from operator import sub, truediv
from typing import Final, NamedTuple, overload

from policies.api import Observation
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


def _errors_since(coasted: CoastedSteps, latest: Observation | None, most: int) -> tuple[list[float], bool]:
    """Measured over predicted seconds of the steps after ``latest``, no more than the last ``most``; and whether
    ``latest`` is one of them."""
    lane, _, _, _, contexts, predicted_s, times_s = coasted
    steps, met = len(contexts), False
    first = max(0, steps - most)
    if latest is not None and latest[0] == lane:
        ended = bisect_right(times_s, latest[7], first, steps + 1) - 1
        if ended > first and times_s[ended] == latest[7]:
            first, met = ended, True
    measured_s = map(sub, times_s[first + 1 : steps + 1], times_s[first:steps])
    return list(map(truediv, measured_s, predicted_s[first:steps])), met


class ObservedSteps(Sequence[Observation]):
    """The last finished steps, oldest first; what coasts have done becomes Observations only when somebody looks.

    ``_counted`` is the item that ends with the step ``_newest``, the last one that ``errors_since`` has counted.
    """

    __slots__ = ("_counted", "_finished", "_items", "_last_listed", "_newest", "add")

    def __init__(self) -> None:
        # Each item is one step or more, so that the last steps are always among them.
        self._items: deque[Item] = deque(maxlen=OBSERVED_STEPS)
        self._finished: deque[Observation] = deque(maxlen=OBSERVED_STEPS)
        self._last_listed: Item | None = None
        self._counted: Item | None = None
        self._newest: Observation | None = None
        self.add = self._items.append

    def errors_since(self, latest: Observation | None) -> tuple[Observation | None, list[tuple[bool, list[float]]]]:
        """See :func:`policies.recalibration.errors_since`: nothing becomes an Observation but the newest step."""
        # Who counts goes on from the newest step that it was told of, and nothing up to there is looked at again.
        counted = self._counted if latest is self._newest else None
        newest: Observation | None = None
        last_s, left = -1.0 if latest is None else latest[7], OBSERVED_STEPS
        found: list[tuple[bool, list[float]]] = []
        for item in reversed(self._items):
            if item is counted:
                break
            if isinstance(item, CoastedSteps):
                errors, met = _errors_since(item, latest, left)
                if errors:
                    newest = newest or _observation(item, len(item[4]) - 1)
                    found.append((False, errors))
                left -= len(errors)
            else:
                met = item[7] == last_s and item == latest
                if not met:
                    newest = newest or item
                    found.append((bool(item[1][0]), [item[6] / item[5]]))
                    left -= 1
            if met or not left:
                break
        if newest is not None:
            self._newest, self._counted = newest, self._items[-1]
        return newest or latest, found

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
