"""Instances that coast: what disturbs them and what does not, in which order steps end, and what is kept of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.api import Decision, Load, Observation, RequestProgress, Step, View
from policies.bullet import Bullet
from policies.chunked import ChunkedPrefill
from policies.disaggregation import Disaggregation
from policies.recalibration import errors_since
from policies.routing import PrefixAffine
from policies.slo import SLO
from profiler import fitted, roofline
from profiler.latency import LatencyModel
from profiler.pacer import Pacer
from profiler.work import Overlap, Work
from sim import PolicyError, columns, executor
from sim.columns import Columns, int_column, row_groups, write_groups
from sim.observed import OBSERVED_STEPS, CoastedSteps, ObservedSteps
from sim.prefixcache import HashedBlocks
from tests.test_sim_loop import Scripted, assert_same
from tests.test_sim_prefixcache import HASHED, SIZE, Row, hashed
from tests.toys import serve, toy_latency
from traces.arrivals import OpenArrivals

asked: Counter[str] = Counter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting(Disaggregation):
    def decide(self, view: View) -> Decision:
        asked[view.role] += 1
        return Disaggregation.decide(self, view)


@pytest.mark.parametrize("late", [0, 40])
def test_requests_that_wait_elsewhere_do_not_disturb_an_instance(late: int):
    """One request decodes for 5 s; meanwhile a long prompt is prefilled, and others come and queue behind it."""
    asked.clear()
    rows = [(0.0, 10, 51), (0.237, 400, 1), *((0.3 + 0.073 * place, 1, 1) for place in range(late))]
    result = serve(Counting(batch_tokens=10_000), rows, instances=2)
    assert result.steps.decode_requests.sum() == 50
    # At the offer, as the transfer ends, and when the only request has finished.
    assert asked["decode"] == 3
    assert result.token_times["0"] == pytest.approx([0.1 * place for place in range(1, 52)])


@pytest.mark.parametrize("few", [0, executor.FEW])
def test_steps_that_began_and_end_together_end_in_the_order_of_their_decisions(
    monkeypatch: pytest.MonkeyPatch, few: int
):
    """Both decode instances go on at one instant; only the second is touched before both of their steps end."""
    monkeypatch.setattr(executor, "FEW", few)
    rows = [(1.75, 8, 2), (1.75, 8, 3), (1.8, 1, 2), (2.0, 2, 2)]
    latency = toy_latency(prefill_token_s=0.005, transfer_token_s=0.005)
    policy = Disaggregation(decode_instances=2)
    ours, plain = (
        serve(policy, rows, latency=latency, instances=3, slo=SLO(), blocks=9, block_tokens=7, plain=plain)
        for plain in (False, True)
    )
    assert ours.steps.instance[-3:].tolist() == [1, 2, 2]
    assert_same(ours, plain)


def test_steps_that_end_together_end_in_the_order_in_which_they_began():
    """Two of three instances coast, their steps a last digit apart, until two ends round to one."""
    rows = [(0.3, 15, 9), (0.55, 29, 12), (1.15, 3, 23), (1.15, 15, 19), (1.7, 23, 12), (2.1, 12, 13), (2.1, 36, 19)]
    rows += [(2.4, 1, 5), (2.55, 16, 23)]
    latency = toy_latency(prefill_token_s=0.005)
    ours, plain = (
        serve(ChunkedPrefill(budget_tokens=20), rows, latency=latency, instances=3, block_tokens=7, plain=plain)
        for plain in (False, True)
    )
    ends_s, starts_s = ours.steps.end_s, ours.steps.start_s
    together = np.flatnonzero((ends_s[1:] == ends_s[:-1]) & (starts_s[1:] != starts_s[:-1]))
    assert len(together) > 0
    assert (starts_s[together] < starts_s[together + 1]).all()
    assert_same(ours, plain)


@dataclass(frozen=True, slots=True)
class MostFree:
    def route(self, request: RequestProgress, loads: Sequence[Load]) -> int:
        return max(loads, key=lambda load: (load.free_blocks, -load.instance)).instance


def test_routers_see_the_blocks_of_a_step_that_a_coasting_instance_is_in():
    """Blocks of one token: as the third request comes, the first instance has 11 and the second, prefilling, 10."""
    rows = [(0.0, 10, 5), (0.01, 10, 5), (0.105, 5, 3)]
    policy = ChunkedPrefill(router=MostFree())
    ours, plain = (serve(policy, rows, instances=2, block_tokens=1, plain=plain) for plain in (False, True))
    assert ours.records.instance.tolist() == [0, 1, 1]
    assert_same(ours, plain)


def test_routers_see_what_the_step_that_a_coasting_instance_is_in_leaves_of_the_cache():
    """Five blocks an instance. The first request leaves two in the cache, of which a step of the second takes one."""
    rows = [Row(0.0, 8, 1, (1,)), Row(0.1, 8, 8, ()), Row(0.6, 9, 1, (1,))]
    policy = ChunkedPrefill(router=PrefixAffine(least_share=0.5))
    ours, plain = (
        serve(
            policy,
            arrivals=OpenArrivals(hashed(rows)),
            instances=2,
            blocks=5,
            block_tokens=SIZE,
            plain=plain,
            prefixes=HashedBlocks(HASHED),
        )
        for plain in (False, True)
    )
    assert ours.records.instance.tolist() == [0, 0, 1]
    assert_same(ours, plain)


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("decode", [False, True])
def test_a_step_with_nothing_in_it_is_refused_whether_or_not_it_is_to_be_repeated(instances: int, decode: bool):
    step = Step("main", 1, decode=decode, again=True)
    with pytest.raises(PolicyError, match="a step with nothing in it on lane 'main'"):
        serve(Scripted(make=lambda view: step), [(0.0, 5, 1)], instances=instances)


@pytest.mark.parametrize("overlap", [None, Overlap(nano_batches=2)])
@pytest.mark.parametrize(
    "latency", [fitted("Llama-3.1-8B", "A100-80G"), roofline("Llama-3.1-8B", "A100-80G"), toy_latency()]
)
def test_the_pace_of_many_steps_is_the_estimate_of_each(latency: LatencyModel, overlap: Overlap | None):
    """Over contexts that span several pieces, and over a few that do not."""
    for contexts in (range(24, 200_000, 1600), range(8_000, 8_064, 8)):
        seconds, sources = Pacer(latency).decode_pace(8, 10, overlap)(contexts)
        estimates = [latency.estimate(Work((), 8, context, overlap=overlap), 10) for context in contexts]
        assert seconds == [estimate.seconds for estimate in estimates]
        assert sources == [estimate.source for estimate in estimates]


def test_of_a_long_coast_the_last_steps_are_observed():
    steps, times_s = 3 * OBSERVED_STEPS, np.arange(3 * OBSERVED_STEPS + 1).cumsum().tolist()
    observed = ObservedSteps()
    observed.add(CoastedSteps("decode", 10, 2, None, range(20, 20 + 2 * steps, 2), [0.5] * steps, times_s))
    assert len(observed) == OBSERVED_STEPS
    assert [seen.measured_s for seen in observed] == list(range(steps - OBSERVED_STEPS + 1, steps + 1))
    assert observed[-1].work == Work(decode_requests=2, decode_context_tokens=20 + 2 * (steps - 1))
    observed.add(CoastedSteps("decode", 10, 1, None, range(5, 6), [0.5], [7.0, 8.0]))
    assert [seen.measured_s for seen in observed[-2:]] == [steps, 1.0]


@given(st.lists(st.integers(0, 90), max_size=8), st.integers(0, 2**30))
def test_errors_are_those_of_the_observations(lengths: list[int], seed: int):
    """Whenever they are asked for: of coasts of so many steps, or a prefill for 0; few distinct times."""
    draw, observed, now_s, uncounted = random.Random(seed), ObservedSteps(), 1.0, 0
    latest: Hashable = None
    for steps in lengths:
        if steps:
            times_s = list(accumulate(draw.choices((0.25, 0.5), k=steps), initial=now_s))
            predicted_s = draw.choices((0.25, 0.75), k=steps)
            observed.add(CoastedSteps("decode", 10, 1, None, range(5, 5 + steps), predicted_s, times_s))
            now_s = times_s[-1]
        else:
            # As a prefill beside the decode steps that follow may end: no later than they began, or amid them.
            took_s = draw.choice((0.25, 0.5))
            observed.add(
                Observation("prefill", Work(((10, 0),)), 10, None, 0, 0.5, took_s, now_s + draw.choice((0, 0.5)))
            )
        uncounted += steps or 1
        if draw.random() < 0.3:
            continue
        fresh = list(observed)[-uncounted:] if uncounted else []
        latest, runs = errors_since(observed, latest)
        _, plain = errors_since(fresh, None)
        assert [(prefills, error) for prefills, errors in runs for error in reversed(errors)] == [
            (prefills, error) for prefills, (error,) in plain
        ]
        uncounted = 0
        assert errors_since(observed, latest) == (latest, [])


@pytest.mark.parametrize("rows", [0, 1, 10, 11])
def test_row_groups_together_are_the_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: int):
    monkeypatch.setattr(columns, "GROUP_ROWS", 5)
    values = np.arange(rows) ** 2
    write_groups(tmp_path / "some.parquet", ({"n": int_column(values[part])} for part in row_groups(rows)))
    assert Columns(tmp_path / "some.parquet").ints("n").tolist() == values.tolist()


def test_coasting_leaves_no_other_instance_behind():
    """Both decode steps end at one instant, again and again: neither instance may wait for the other's answer."""
    result = serve(ChunkedPrefill(), [(0.0, 10, 5), (0.0, 10, 8)], instances=2)
    assert result.token_times["0"].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_coasting_does_not_outlast_the_policys_word():
    """Requests that came during a decode step, seen by the other lane's decision, end what "again" promised."""
    rows = [(0, 17, 29), (0.0583, 28, 1), (0.1083, 53, 8), (0.1083, 15, 34), (0.1083, 20, 1), (0.1218, 21, 1)]
    latency = toy_latency(prefill_token_s=0.003, shared_slowdown=2.0)
    policy = Bullet(queue_horizon=2, percentile=0.1)
    runs = [
        serve(policy, rows, latency=latency, slo=SLO(ttft_s=0.3), blocks=9, block_tokens=7, plain=plain)
        for plain in (False, True)
    ]
    assert_same(*runs)
