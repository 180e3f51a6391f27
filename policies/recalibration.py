"""What a policy learns of its estimator as it goes: alpha of each phase, refreshed from the steps that have finished.

Bullet paper, section 3.2: predictions are multiplied by alpha = measured / predicted, which the server refreshes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from policies.api import Observation

WEIGHT: Final = 1 / 32
"""Of one step in the running mean: a layer group or decode step says little, and a device changes within seconds."""

Errors = list[tuple[bool, list[float]]]
"""From the newest to the oldest, steps of one kind that follow each other: whether they prefill, and measured over
predicted seconds of each, the oldest first."""


class Alphas:
    """Running means of measured over predicted seconds, of launches that prefill and of those that only decode.

    A prediction beside another step holds for the co-runner that it starts with; what comes and goes during a step
    moves its measured time both ways. ``latest`` stands for the newest step that has been counted.
    """

    __slots__ = ("decode", "latest", "prefill")

    def __init__(self, prefill: float = 1.0, decode: float = 1.0, latest: object = None) -> None:
        self.prefill = prefill
        self.decode = decode
        self.latest = latest


def refreshed(alphas: Alphas, observed: Sequence[Observation]) -> Alphas:
    """With the steps that have finished since; the same where there is none."""
    prefill, decode = alphas.prefill, alphas.decode
    newest, fresh = errors_since(observed, alphas.latest)
    if not fresh:
        return alphas
    for prefills, errors in reversed(fresh):
        if prefills:
            for error in errors:
                prefill += WEIGHT * (error - prefill)
        else:
            for error in errors:
                decode += WEIGHT * (error - decode)
    return Alphas(prefill, decode, newest)


def errors_since(observed: Sequence[Observation], latest: object) -> tuple[object, Errors]:
    """Of the steps after the one that ``latest`` stands for, and what stands for the newest of all.

    ``latest`` is what this answered before, and None at first. What has a method of this name answers without an
    Observation for each, by marks of its own.
    """
    own: Callable[[object], tuple[object, Errors]] | None = getattr(observed, "errors_since", None)
    if own is not None:
        return own(latest)
    fresh: Errors = []
    for seen in reversed(observed):
        if seen == latest:
            break
        fresh.append((bool(seen.work.prefill), [seen.measured_s / seen.predicted_s]))
    return observed[-1] if fresh else latest, fresh


UNCORRECTED = Alphas()
