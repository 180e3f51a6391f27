"""Built-in workloads: deterministic, near their sources whatever the seed, sound as distributions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traces
from traces import TraceError
from traces.workloads import Margin

# Mean, P50, P90 of prompt tokens, of output tokens, and rank correlation, of the sources.
SOURCES = {
    "code": (2047.85, 1469, 5187.6, 27.88, 13, 55, -0.021),
    "chat": (1154.70, 1020, 2734.5, 211.13, 129, 424, 0.073),
    "sharegpt": (311.66, 141, 750, 200.53, 128, 491, -0.356),
    "summary": (10041.0, 7958, 18488.8, 471.36, 332, 652.6, 0.705),
}


def measures(trace: traces.Trace) -> np.ndarray:
    columns = (trace.prompt_tokens, trace.output_tokens)
    lengths = [f for c in columns for f in (c.mean(), np.median(c), np.quantile(c, 0.9))]
    return np.array([*lengths, traces.rank_correlation(*columns)], float)


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_lengths_are_within_5_percent_and_correlation_within_0_05(name: str, seed: int) -> None:
    found, wanted = measures(traces.workload(name, 10_000, seed)), np.array(SOURCES[name])
    assert np.all(np.abs(found[:6] / wanted[:6] - 1) <= 0.05)
    assert abs(found[6] - wanted[6]) <= 0.05


@pytest.mark.parametrize("name", SOURCES)
def test_a_few_hundred_requests_have_the_mean_too(name: str) -> None:
    for seed in range(10):
        found, wanted = measures(traces.workload(name, 500, seed)), np.array(SOURCES[name])
        assert np.all(np.abs(found[:6] / wanted[:6] - 1) <= 0.15)


def test_equal_seeds_give_equal_bytes_and_others_do_not() -> None:
    first, again, other = (traces.workload("code", 100, seed) for seed in (1, 1, 2))
    assert first.prompt_tokens.tobytes() == again.prompt_tokens.tobytes()
    assert first.output_tokens.tobytes() == again.output_tokens.tobytes()
    assert first.prompt_tokens.tobytes() != other.prompt_tokens.tobytes()
    assert first.arrival_s is None


@pytest.mark.parametrize("name", SOURCES)
def test_one_request_is_a_workload(name: str) -> None:
    trace = traces.workload(name, 1)
    assert trace.prompt_tokens[0] >= 1
    assert trace.output_tokens[0] >= 1


def test_unknown_names_and_counts_are_refused() -> None:
    with pytest.raises(TraceError, match="unknown workload 'none'; built-in workloads: code, chat, sharegpt, summary"):
        traces.workload("none", 10)
    with pytest.raises(TraceError, match="0 requests"):
        traces.workload("code", 0)
    with pytest.raises(TraceError, match="10000000000 requests was asked for; ask for 100,000,000 at most"):
        traces.workload("code", 10_000_000_000)
    with pytest.raises(TraceError, match="seed is -1"):
        traces.workload("code", 10, -1)


def test_fitted_numbers_are_distributions() -> None:
    for fitted in traces.workloads().values():
        for margin in (fitted.prompt, fitted.output):
            assert np.all(np.diff(margin.tokens) > 0)
            assert np.all(np.diff(margin.shares) > 0)
            assert margin.tokens[0] >= 1
            assert margin.shares[-1] == 1
        assert len(fitted.sha256) == 64


@given(
    tokens=st.lists(st.integers(1, 10**6), min_size=1, max_size=8, unique=True).map(sorted),
    share=st.floats(0, 1, exclude_max=True),
    data=st.data(),
)
@settings(deadline=None)
def test_a_quantile_lies_in_its_knots(tokens: list[int], share: float, data: st.DataObject) -> None:
    shares = sorted(data.draw(st.lists(st.floats(0.01, 0.99), min_size=len(tokens), max_size=len(tokens), unique=True)))
    shares[-1] = 1.0
    drawn = int(Margin(tokens=tuple(tokens), shares=tuple(shares)).quantile(np.array([share]))[0])
    knot = next(i for i, limit in enumerate(shares) if share <= limit)
    assert (tokens[knot - 1] if knot else tokens[0] - 1) <= drawn <= tokens[knot]
    assert drawn >= 1


def test_a_value_between_two_knots_a_step_apart_comes_back_exactly() -> None:
    margin = Margin(tokens=(7, 8, 100), shares=(0.2, 0.6, 1.0))
    assert margin.quantile(np.array([0.2000001, 0.4, 0.6])).tolist() == [8, 8, 8]
