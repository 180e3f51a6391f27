"""The virtual clock's two ways to find the first of the steps in flight give the same answers, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from policies.api import Policy
from policies.bullet import Bullet
from policies.chunked import ChunkedPrefill
from policies.disaggregation import Disaggregation
from policies.slo import SLO
from profiler import roofline
from sim import executor
from sim.records import RunResult
from tests.test_sim_loop import assert_same
from tests.toys import serve

POLICIES: list[tuple[Policy, int]] = [
    (ChunkedPrefill(), 2),
    (Bullet(), 1),
    (Bullet(), 2),
    (Disaggregation(), 2),
    (Disaggregation(prefill_instances=2, decode_instances=3), 5),
]


def run(policy: Policy, instances: int) -> RunResult:
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(0.1, 60)).tolist()
    rows = list(zip(arrivals, rng.integers(1, 3000, 60).tolist(), rng.integers(1, 80, 60).tolist(), strict=True))
    latency = roofline("Llama-3.1-8B", "A100-80G")
    slo = SLO(ttft_s=1.0, tpot_s=0.05)
    return serve(policy, rows, latency=latency, instances=instances, slo=slo, blocks=2000, check=False)


@pytest.mark.parametrize(("policy", "instances"), POLICIES, ids=lambda p: getattr(p, "name", p))
def test_scheduling_every_step_and_looking_at_all_of_them_agree(
    monkeypatch: pytest.MonkeyPatch, policy: Policy, instances: int
):
    usual = run(policy, instances)
    for few in (0, 1000):
        monkeypatch.setattr(executor, "FEW", few)
        assert_same(run(policy, instances), usual)
