"""A run over time, in bins: what its lanes held and what it had waiting, as figures and pages draw it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.records import Counts, StepLog

Floats = NDArray[np.float64]

BINS = 240
MOST_INSTANCES = 4


def rows_of(steps: StepLog, instance: int) -> NDArray[np.intp]:
    """The steps of an instance by start."""
    here = np.flatnonzero(steps.instance == instance)
    return here[np.argsort(steps.start_s[here], kind="stable")]


def held(edges: Floats, start_s: Floats, end_s: Floats, value: Floats) -> Floats:
    """Mean over each bin, shape (bins,), of a value held from start to end of steps that do not overlap, else 0.

    Steps are in order; all of shape (n,), ``edges`` (bins + 1,).
    """
    if not len(start_s):
        return np.zeros(len(edges) - 1)
    times = np.column_stack((start_s, end_s)).ravel()
    after = np.cumsum(value * (end_s - start_s))
    before = np.concatenate(([0.0], after[:-1]))
    integral = np.interp(edges, times, np.column_stack((before, after)).ravel())
    means: Floats = np.diff(integral) / np.diff(edges)
    return means


def shares(steps: StepLog, here: NDArray[np.intp], edges: Floats, sms: int) -> dict[str, Floats]:
    """Percent of a device's ``sms`` that each lane held, shape (bins,), of the steps ``here``.

    Overlapping steps are each logged with all the SMs that they take turns on: a lane gets what those before it in the
    log leave of 100 %.
    """
    found: dict[str, Floats] = {}
    for lane, name in enumerate(steps.lane_names):
        rows = here[(steps.lane[here] == lane) & (steps.sms[here] > 0)]
        if len(rows):
            share = held(edges, steps.start_s[rows], steps.end_s[rows], 100.0 * steps.sms[rows] / sms)
            found[name] = np.minimum(share, np.maximum(100.0 - sum(found.values(), np.zeros(len(share))), 0.0))
    return found


def in_flight(steps: StepLog, here: NDArray[np.intp], edges: Floats, column: Counts) -> Floats:
    """Mean over each bin, shape (bins,), of ``column`` of the steps that ran, lanes added up."""
    total = np.zeros(len(edges) - 1)
    for lane in range(len(steps.lane_names)):
        rows = here[(steps.lane[here] == lane) & (column[here] > 0)]
        total += held(edges, steps.start_s[rows], steps.end_s[rows], column[rows].astype(np.float64))
    return total


def level(edges: Floats, sampled_s: Floats, values: Floats) -> Floats:
    """Mean over each bin, shape (bins,), of what is known when steps are launched.

    Each of the ``values``, shape (n,) with n of 1 or more, holds until the next, the first from the start.
    """
    sampled_s = np.concatenate(([min(edges[0], sampled_s[0])], sampled_s[1:]))
    until = np.concatenate((sampled_s[1:], [max(edges[-1], sampled_s[-1])]))
    return held(edges, sampled_s, until, values)
