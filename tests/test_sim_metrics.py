"""Metrics against values worked out by hand."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim.metrics
from policies.slo import SLO
from sim.metrics import (
    Knee,
    Window,
    attaining,
    attainment,
    distribution,
    knee,
    repeated_distribution,
    summarise,
    ttft_limits_s,
)
from sim.records import STATES, Records, RunResult, StepLog

NAN = float("nan")


def made_records(rows: list[tuple[float, int, int, float, float, float, str]]) -> Records:
    """Records from (arrival, prompt, generated tokens, scheduled, first, last, state)."""
    arrival, prompt, tokens, scheduled, first, last, state = zip(*rows, strict=True)
    n = len(rows)
    zeros = np.zeros(n, np.int64)
    return Records(
        request_id=tuple(str(i) for i in range(n)),
        arrival_s=np.array(arrival, float),
        prompt_tokens=np.array(prompt, np.int64),
        output_tokens=np.maximum(np.array(tokens, np.int64), 1),
        generated_tokens=np.array(tokens, np.int64),
        scheduled_s=np.array(scheduled, float),
        first_token_s=np.array(first, float),
        last_token_s=np.array(last, float),
        itl_mean_s=np.full(n, NAN),
        itl_max_s=np.full(n, NAN),
        preemptions=zeros,
        cached_tokens=zeros,
        instance=zeros,
        state=np.array([STATES.index(s) for s in state], np.int8),
        reason=tuple("queue full" if s == "rejected" else "" for s in state),
    )


def no_steps() -> StepLog:
    ints, floats = np.zeros(0, np.int64), np.zeros(0)
    return StepLog(
        lane_names=("mixed",),
        start_s=floats,
        end_s=floats,
        instance=ints,
        lane=np.zeros(0, np.int8),
        sms=ints,
        prefill_tokens=ints,
        prefill_requests=ints,
        decode_requests=ints,
        context_tokens=ints,
        layers=ints,
        predicted_s=floats,
        waiting=ints,
        free_blocks=ints,
    )


def made_result(records: Records) -> RunResult:
    return RunResult(
        records=records,
        steps=no_steps(),
        itl_s=np.array([0.2, 0.1]),
        itl_count=np.array([1, 3]),
        source_s={"roofline": 3.0, "measured": 1.0},
        end_s=11.0,
        sm_seconds=540.0,
        instances=1,
        sms=108,
    )


# Five arrivals from 1 s to 5 s. TTFTs 0.5, 1.0, 0.5, 2.0; TPOTs 0.1 and 0.5; request 2 has one token.
ROWS = [
    (1.0, 100, 5, 1.2, 1.5, 1.9, "finished"),
    (2.0, 1000, 3, 2.5, 3.0, 4.0, "finished"),
    (3.0, 100, 1, 3.1, 3.5, 3.5, "finished"),
    (4.0, 100, 2, 5.0, 6.0, 6.5, "running"),
    (5.0, 100, 0, NAN, NAN, NAN, "rejected"),
]
SLO_BOTH = SLO(ttft_per_token_s=0.001, ttft_floor_s=0.5, tpot_s=0.2)


def test_hand_worked_run() -> None:
    metrics = summarise(made_result(made_records(ROWS)), SLO_BOTH, gpus=2)

    assert metrics.arrived == 5
    assert metrics.states == {"finished": 3, "rejected": 1, "running": 1, "waiting": 0}
    assert metrics.reject_reasons == {"queue full": 1}
    assert metrics.ttft_s is not None
    assert metrics.ttft_s.count == 4
    assert metrics.ttft_s.mean == pytest.approx(1.0)
    assert metrics.ttft_s.p50 == pytest.approx(0.75)
    assert metrics.ttft_s.p90 == pytest.approx(1.7)  # h = 0.9 * 3 = 2.7 between 1.0 and 2.0
    assert metrics.tpot_s is not None
    assert metrics.tpot_s.count == 2
    assert metrics.tpot_s.mean == pytest.approx(0.3)
    assert metrics.e2e_s is not None
    assert metrics.e2e_s.mean == pytest.approx((0.9 + 2.0 + 0.5) / 3)
    assert metrics.normalised_s is not None
    assert metrics.normalised_s.mean == pytest.approx((0.9 / 5 + 2.0 / 3 + 0.5) / 3)
    assert metrics.queueing_s is not None
    assert metrics.queueing_s.p50 == pytest.approx(0.35)  # of 0.1, 0.2, 0.5, 1.0
    assert metrics.makespan_s == pytest.approx(5.5)  # 1.0 to 6.5
    assert metrics.requests_per_s_per_gpu == pytest.approx(3 / 5.5 / 2)
    assert metrics.tokens_per_s_per_gpu == pytest.approx(11 / 5.5 / 2)
    # Request 0 meets both, 1 misses TPOT, 2 has one token and is judged on TTFT, 3 and 4 never finished.
    assert metrics.attainment == pytest.approx(2 / 5)
    assert metrics.ttft_attainment == pytest.approx(3 / 5)
    assert metrics.tpot_attainment == pytest.approx(2 / 5)
    assert metrics.goodput_per_s_per_gpu == pytest.approx(2 / 5.5 / 2)
    assert metrics.utilisation == pytest.approx(540 / (108 * 10.0))
    assert metrics.source_share == {"measured": 0.25, "roofline": 0.75}
    assert metrics.itl_s is not None
    assert metrics.itl_s.count == 4
    assert metrics.itl_s.mean == pytest.approx(0.125)
    assert metrics.itl_s.p90 == pytest.approx(0.1 + 0.7 * 0.1)


def test_an_slo_met_with_equality_is_met() -> None:
    records = made_records([(0.0, 500, 2, 0.0, 0.5, 0.75, "finished")])
    assert attainment(records, SLO(ttft_per_token_s=0.001, tpot_s=0.25)) == 1.0


def test_no_slo_is_met_by_all_that_finish() -> None:
    assert attaining(made_records(ROWS), SLO()).tolist() == [True, True, True, False, False]


def test_ttft_limits_grow_with_the_prompt_above_the_floor() -> None:
    assert ttft_limits_s(made_records(ROWS), SLO_BOTH).tolist() == [0.5, 1.0, 0.5, 0.5, 0.5]


def test_window_cuts_by_arrival() -> None:
    metrics = summarise(made_result(made_records(ROWS)), SLO_BOTH, 1, Window(warmup_s=1.0, drain_s=1.0))
    assert metrics.arrived == 3
    assert metrics.makespan_s == pytest.approx(4.5)  # 2.0 to 6.5
    assert metrics.attainment == pytest.approx(1 / 3)


def test_window_that_cuts_everything_measures_nothing() -> None:
    metrics = summarise(made_result(made_records(ROWS)), SLO_BOTH, 1, Window(warmup_s=100.0))
    assert metrics.arrived == 0
    assert metrics.attainment is None
    assert metrics.ttft_s is None


def test_nothing_finished_gives_null_not_nan() -> None:
    records = made_records([(0.0, 10, 0, NAN, NAN, NAN, "waiting")])
    text = json.dumps(summarise(made_result(records), SLO_BOTH, 1).to_dict(), allow_nan=False)
    assert json.loads(text)["requests_per_s_per_gpu"] is None
    assert json.loads(text)["attainment"] == 0.0


def test_bad_arguments_name_the_value() -> None:
    with pytest.raises(ValueError, match="gpus is 0"):
        summarise(made_result(made_records(ROWS)), SLO_BOTH, 0)
    with pytest.raises(ValueError, match="warmup_s is -1"):
        Window(warmup_s=-1)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 6)), min_size=1, max_size=20, unique_by=lambda p: p[0]))
def test_repeated_quantiles_are_numpys_on_the_expanded_sample(points: list[tuple[float, int]]) -> None:
    values, counts = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    found = repeated_distribution(values, counts)
    expanded = np.repeat(values, counts)
    assert found is not None
    expected = np.quantile(expanded, [0.5, 0.9, 0.95, 0.99])
    np.testing.assert_allclose([found.p50, found.p90, found.p95, found.p99], expected, rtol=1e-9, atol=1e-12)
    assert found.mean == pytest.approx(expanded.mean())


def test_no_sum_depends_on_the_threads_of_a_library() -> None:
    """A BLAS product differs in its last digit with the number of threads: --jobs 1 and --jobs 2 would differ."""
    tree = ast.parse(Path(sim.metrics.__file__).read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.MatMult)]
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not called & {"dot", "vdot", "inner", "matmul", "einsum", "tensordot", "linalg"}
    rng = np.random.default_rng(0)
    values, counts = rng.random(20_001), rng.integers(1, 50, 20_001)
    found = repeated_distribution(values, counts)
    assert found is not None
    assert found.mean == math.fsum(v * c for v, c in zip(values.tolist(), counts.tolist(), strict=True)) / counts.sum()


@pytest.mark.parametrize(
    ("slo", "present"),
    [
        (SLO(), set()),
        (SLO(tpot_s=0.2), {"attainment", "goodput_per_s_per_gpu", "tpot_attainment"}),
        (SLO(ttft_s=1.0), {"attainment", "goodput_per_s_per_gpu", "ttft_attainment"}),
    ],
)
def test_what_has_no_limit_has_no_attainment(slo: SLO, present: set[str]) -> None:
    metrics = summarise(made_result(made_records(ROWS)), slo, 1).to_dict()
    names = ("attainment", "goodput_per_s_per_gpu", "ttft_attainment", "tpot_attainment")
    assert {name for name in names if metrics[name] is not None} == present
    assert (attainment(made_records(ROWS), slo) is None) == (not present)


@pytest.mark.parametrize(
    ("rate", "text"), [(0.5, "0.500"), (2.0, "2.00"), (21.0, "21.0"), (99.96, "100"), (1234.5, "1234")]
)
def test_knees_have_three_digits(rate: float, text: str) -> None:
    assert str(Knee(rate=rate, kind="crossing", tested=(0.1, 2000.0))) == text


def test_distribution_ignores_what_is_absent() -> None:
    found = distribution(np.array([1.0, NAN, 3.0]))
    assert found is not None
    assert (found.count, found.mean) == (2, 2.0)
    assert distribution(np.array([NAN])) is None


def test_knee_interpolates_the_last_crossing() -> None:
    found = knee([1, 2, 3, 4], [1.0, 0.95, 0.85, 0.2])
    assert found.kind == "crossing"
    assert found.rate == pytest.approx(2.5)
    assert knee([4, 3, 2, 1], [0.2, 0.85, 0.95, 1.0]) == found
    assert knee([1, 2, 3, 4], [0.95, 0.8, 0.95, 0.85]).rate == pytest.approx(3.5)


def test_knee_says_when_it_lies_outside_the_tested_rates() -> None:
    always, never = knee([1, 2], [1.0, 0.9]), knee([1, 2], [0.89, 0.5])
    assert (always.rate, always.kind, str(always)) == (2, "always", ">= 2.00")
    assert (never.rate, never.kind, str(never)) == (None, "never", "< 1.00")


@pytest.mark.parametrize(
    ("rates", "values", "message"),
    [([], [], "at least one"), ([1, 1], [0.9, 0.8], "given twice"), ([1], [NAN], "finite")],
)
def test_knee_refuses(rates: list[float], values: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        knee(rates, values)
