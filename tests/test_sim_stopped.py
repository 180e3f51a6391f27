"""A run that is stopped before its end: what there is of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from policies import Bullet, ChunkedPrefill, Disaggregation, Policy
from sim import STATES, ServingLoop
from tests.test_sim_loop import a100_loop, a100_run, a100_trace
from traces.arrivals import OpenArrivals


class StopAfter(OpenArrivals):
    """Arrivals that stop the loop, as a signal would, once so many requests have left it."""

    loop: ServingLoop
    left = 0

    def finished(self, index: int, now_s: float) -> None:
        self.left += 1
        if self.left == 40:
            self.loop.stop()


@pytest.mark.parametrize(
    ("policy", "instances"),
    [(ChunkedPrefill(), 1), (ChunkedPrefill(), 2), (Bullet(), 1), (Disaggregation(), 2)],
    ids=["chunked", "2 chunked", "bullet", "1P1D"],
)
def test_a_run_that_is_stopped_is_the_beginning_of_the_whole_one(policy: Policy, instances: int) -> None:
    """Its steps are the first ones, and whoever finished did so alike, whatever was under way when it was stopped."""
    whole = a100_run(policy, instances, plain=False, blocks=2000)
    arrivals = StopAfter(a100_trace())
    arrivals.loop = a100_loop(policy, instances, arrivals, plain=False, blocks=2000)
    cut = arrivals.loop.run()
    assert (whole.interrupted, cut.interrupted) == (False, True)
    assert 0 < len(cut.steps) < len(whole.steps)
    assert cut.end_s >= cut.steps.end_s[-1]
    for column in dataclasses.fields(cut.steps):
        ours, theirs = getattr(cut.steps, column.name), getattr(whole.steps, column.name)
        assert list(ours) == list(theirs[: len(ours)]), column.name
    over = cut.records.state == STATES.index("finished")
    assert 40 <= over.sum() < len(whole.records)
    for name in ("request_id", "first_token_s", "last_token_s", "itl_mean_s", "itl_max_s", "generated_tokens"):
        ours, theirs = (np.array(getattr(run.records, name)) for run in (cut, whole))
        assert ours[over].tolist() == theirs[: len(over)][over].tolist(), name
    assert sum(map(len, cut.token_times.values())) == cut.records.generated_tokens.sum()
