"""What launches on SMs of their own lose to each other: fitted to how many times as long as alone they took."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.optimize import lsq_linear

from profiler.kernelsum import KernelSumModel
from profiler.work import Work


class CoRun(NamedTuple):
    """``work`` on ``sms`` SMs took ``slowdown`` times as long beside ``other`` on ``other_sms`` SMs as alone."""

    work: Work
    sms: int
    other: Work
    other_sms: int
    slowdown: float


class Losses(NamedTuple):
    """Of launches of a kind: to any co-runner, and of DRAM-bound work to one that draws all of the bandwidth."""

    anyway: float = 0.0
    ceiling: float = 0.0


def losses(model: KernelSumModel, runs: Iterable[CoRun]) -> Losses:
    """Those that best explain ``runs``, all of a kind, by least squares; both 0 to 1, and 0 where there are none.

    Extra time over (share of DRAM that the other draws x DRAM-bound time). Two that share DRAM fairly take at most
    twice as long, so neither loss is above 1. Co-runs on cores in common are another matter
    (:mod:`profiler.commoncores`).
    """
    device = model.device
    pairs = [
        (model.dram_share(run.other, run.other_sms) * model.dram_bound_share(run.work, run.sms), run.slowdown - 1)
        for run in runs
        if not (device.in_step and run.sms + run.other_sms > device.sms)
    ]
    if not pairs:
        return Losses()
    drawn, slowdown = np.array(pairs).T
    found = lsq_linear(np.column_stack([np.ones(len(drawn)), drawn]), slowdown, bounds=(0.0, 1.0))
    return Losses(*found.x.tolist())
