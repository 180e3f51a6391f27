"""Whether a run keeps an SLO: the answer of the whole run, from as little of it as there must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.config import PolicySettings, RunConfig, SloSettings, WindowSettings
from sim.simulate import measure
from sim.verdict import judge, needed_of


def config(rate: float, **changes: object) -> RunConfig:
    return RunConfig(
        trace="workload:sharegpt",
        requests=60,
        rate=rate,
        policy=PolicySettings(name="chunked"),
        model="tiny",
        device="A100-80G",
        slo=SloSettings(ttft_s=0.0019, tpot_s=0.0009),
    ).model_copy(update=changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"window": WindowSettings(warmup_s=0.005, drain_s=0.002)},
        {"slo": SloSettings(ttft_s=0.0019)},
        {"slo": SloSettings(tpot_s=0.0009)},
        {"queue_limit": 1},
        {"until_s": 0.5},
        {"policy": PolicySettings(name="bullet")},
        {"policy": PolicySettings(name="disaggregation"), "instances": 2},
    ],
    ids=lambda changes: ", ".join(changes) or "plain",
)
def test_the_answer_is_that_of_the_whole_run(changes: dict[str, object]) -> None:
    kept = set()
    for rate in (20.0, 120.0, 400.0, 3000.0):
        asked = config(rate, **changes)
        attainment = measure(asked).attainment
        assert attainment is not None
        for target in (0.5, 0.9, attainment, 1.0):
            if target > 0:
                assert judge(asked, target).kept == (attainment >= target)
                kept.add(attainment >= target)
    assert kept == {True, False}


def test_an_overloaded_run_stops_when_too_many_have_missed() -> None:
    found = judge(config(3000.0, slo=SloSettings(ttft_s=0.001)), 0.9)
    assert (found.kept, found.judged, found.missed) == (False, 60, 7)
    assert found.stopped_s is not None


def test_a_run_stops_when_enough_have_met() -> None:
    found = judge(config(20.0, slo=SloSettings(ttft_s=10.0)), 0.9)
    assert (found.kept, found.met, found.missed) == (True, 54, 0)
    assert found.stopped_s is not None


def test_a_window_without_requests_is_refused() -> None:
    with pytest.raises(ValueError, match="of 60 requests none is judged"):
        judge(config(20.0, window=WindowSettings(warmup_s=100.0)), 0.9)


@given(st.integers(1, 5000), st.floats(0.001, 1.0))
def test_as_few_as_the_target_needs(count: int, target: float) -> None:
    needed = needed_of(count, target)
    assert needed / count >= target
    assert (needed - 1) / count < target
