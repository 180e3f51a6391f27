"""Long runs put away what they have finished with: records, steps and gaps are the same wherever a part ends."""

from __future__ import annotations

import numpy as np
import pytest

from policies.api import Policy
from policies.bullet import Bullet
from policies.chunked import ChunkedPrefill
from policies.disaggregation import Disaggregation
from policies.slo import SLO
from profiler import roofline
from sim import growing, requestlog, state, steprows, tally
from sim.executor import SimExecutor
from sim.limits import Limits
from sim.loop import ServingLoop
from sim.records import RunResult
from tests.test_sim_loop import assert_same
from tests.toys import trace_of
from traces import OpenArrivals


def loop_of(policy: Policy, instances: int) -> ServingLoop:
    rng = np.random.default_rng(4)
    arrivals = np.cumsum(rng.exponential(0.2, 80)).tolist()
    rows = list(zip(arrivals, rng.integers(1, 2000, 80).tolist(), rng.integers(1, 300, 80).tolist(), strict=True))
    latency = roofline("Llama-3.1-8B", "A100-80G")
    return ServingLoop(
        policy=policy,
        arrivals=OpenArrivals(trace_of(rows)),
        latency=latency,
        executor=SimExecutor(latency=latency),
        instances=instances,
        slo=SLO(ttft_s=1.0, tpot_s=0.05),
        limits=Limits(total_blocks=3000, context_tokens=1 << 17),
        keep_token_times=True,
    )


@pytest.mark.parametrize(
    ("policy", "instances"), [(ChunkedPrefill(), 1), (Bullet(), 1), (Disaggregation(), 2)], ids=["one", "two", "1P1D"]
)
def test_where_parts_end_changes_nothing(monkeypatch: pytest.MonkeyPatch, policy: Policy, instances: int):
    whole: RunResult = loop_of(policy, instances).run()
    monkeypatch.setattr(state, "KEPT_STEPS", 64)
    monkeypatch.setattr(requestlog, "FLUSH_ROWS", 7)
    monkeypatch.setattr(steprows, "FLUSH_STEPS", 10)
    monkeypatch.setattr(tally, "SPAN_STEPS", 100)
    monkeypatch.setattr(growing, "FIRST_ROWS", 5)
    loop = loop_of(policy, instances)
    parts = loop.run()
    assert_same(parts, whole)
    assert any(instance.cohort.noted > 64 for instance in loop._instances)
    assert parts.sm_seconds == pytest.approx(whole.sm_seconds, rel=1e-12)


def test_a_request_that_has_left_is_forgotten():
    loop = loop_of(ChunkedPrefill(), 1)
    result = loop.run()
    assert len(result.records) == 80
    assert not loop.requests
