"""Arrival processes and sources: sorted, counted, at their rate, reproducible; the closed loop by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traces
from traces import ClosedLoop, OpenArrivals, Provenance, Trace, TraceError


def trace_of(requests: int, arrivals: list[float] | None = None) -> Trace:
    return Trace(
        provenance=Provenance(source="here", format="test"),
        prompt_tokens=np.arange(1, requests + 1),
        output_tokens=np.full(requests, 7),
        arrival_s=None if arrivals is None else np.array(arrivals, float),
    )


PROCESSES: dict[str, Callable[[Trace, float, int], Trace]] = {
    "poisson": lambda trace, rate, seed: traces.poisson(trace, rate, seed),
    "gamma": lambda trace, rate, seed: traces.gamma(trace, rate, 2.0, seed),
    "on_off": lambda trace, rate, seed: traces.on_off(trace, rate, 3.0, 2.0, seed),
    "on_off exponential": lambda trace, rate, seed: traces.on_off(trace, rate, 3.0, 2.0, seed, periods="exponential"),
    "constant": lambda trace, rate, seed: traces.constant(trace, rate),
}


def mean_rate(trace: Trace) -> float:
    assert trace.arrival_s is not None
    return (len(trace) - 1) / float(trace.arrival_s[-1] - trace.arrival_s[0])


@pytest.mark.parametrize("process", PROCESSES)
@given(requests=st.integers(1, 60), rate=st.floats(1e-3, 1e3), seed=st.integers(0, 2**40))
@settings(max_examples=40, deadline=None)
def test_arrivals_are_sorted_from_0_and_reproducible(process: str, requests: int, rate: float, seed: int) -> None:
    given_arrivals = PROCESSES[process](trace_of(requests), rate, seed)
    again = PROCESSES[process](trace_of(requests), rate, seed)
    arrivals = given_arrivals.arrival_s
    assert arrivals is not None
    assert again.arrival_s is not None
    assert arrivals.tobytes() == again.arrival_s.tobytes()
    assert arrivals.shape == (requests,)
    assert arrivals[0] == 0
    assert np.all(np.diff(arrivals) >= 0)
    assert np.all(np.isfinite(arrivals))
    assert given_arrivals.prompt_tokens.tolist() == list(range(1, requests + 1))
    assert len(given_arrivals.provenance.notes) == 1


@pytest.mark.parametrize("process", PROCESSES)
def test_mean_rate_is_the_one_asked_for(process: str) -> None:
    requests, rate = 40_000, 4.0
    found = [mean_rate(PROCESSES[process](trace_of(requests), rate, seed)) for seed in range(4)]
    # The standard error of a mean gap is cv / sqrt(n): 1 % at cv 2; bursts of on and off add to it.
    assert np.mean(found) == pytest.approx(rate, rel=0.02)


@pytest.mark.parametrize("cv", [0.3, 1.0, 3.0])
def test_gamma_gaps_have_the_cv_asked_for(cv: float) -> None:
    arrivals = traces.gamma(trace_of(50_000), 4, cv, seed=1).arrival_s
    assert arrivals is not None
    gaps = np.diff(arrivals)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_poisson_arrivals_look_poisson() -> None:
    arrivals = traces.summarise(traces.poisson(trace_of(50_000), 4, seed=1)).arrivals
    assert arrivals is not None
    assert arrivals.gap_cv == pytest.approx(1, abs=0.02)
    assert arrivals.dispersion == pytest.approx(1, abs=0.15)


def test_twice_the_rate_is_the_same_arrivals_in_half_the_time() -> None:
    for process in ("poisson", "gamma"):
        slow, fast = (PROCESSES[process](trace_of(100), rate, 5).arrival_s for rate in (2.0, 4.0))
        assert slow is not None
        assert fast is not None
        assert np.array_equal(slow, 2 * fast)


def test_a_longer_trace_begins_with_the_same_arrivals() -> None:
    for process in PROCESSES.values():
        short, long = (process(trace_of(requests), 2.0, 5).arrival_s for requests in (50, 500))
        assert short is not None
        assert long is not None
        assert np.array_equal(short, long[:50])


def test_nothing_arrives_while_off() -> None:
    arrivals = traces.on_off(trace_of(5_000), 4, on_s=3, off_s=2, seed=2).arrival_s
    assert arrivals is not None
    assert np.all(arrivals % 5 <= 3)
    assert arrivals[-1] > 1000


@given(
    arrivals=st.lists(st.floats(0, 1e5), min_size=2, max_size=40).map(sorted).filter(lambda a: a[-1] - a[0] > 1e-3),
    rate=st.floats(1e-2, 1e2),
)
def test_rescaling_keeps_proportions_and_sets_the_rate(arrivals: list[float], rate: float) -> None:
    scaled = traces.rescaled(trace_of(len(arrivals), arrivals), rate)
    assert scaled.arrival_s is not None
    assert mean_rate(scaled) == pytest.approx(rate)
    recorded = np.array(arrivals) - arrivals[0]
    factor = scaled.arrival_s[-1] / recorded[-1]
    assert scaled.arrival_s == pytest.approx(recorded * factor, rel=1e-9, abs=1e-9)


def test_bins_are_spread_within_themselves_and_in_order() -> None:
    binned = trace_of(7, [0, 0, 0, 3, 3, 9, 9])
    spread = traces.spread_bins(binned, seed=4)
    assert spread.arrival_s is not None
    assert spread.arrival_s[0] == 0
    assert np.all(np.diff(spread.arrival_s) >= 0)
    shifted = spread.arrival_s + 3  # the first offset is below one bin, here the smallest step, 3 s
    assert np.all(np.abs(shifted - np.array([0, 0, 0, 3, 3, 9, 9]) - 1.5) <= 3)
    assert "bins of 3 s" in spread.provenance.notes[-1]
    assert traces.spread_bins(trace_of(2, [1, 1]), 2.0).arrival_s is not None
    with pytest.raises(TraceError, match="share one stamp"):
        traces.spread_bins(trace_of(2, [1, 1]))


def test_slices_count_from_their_start() -> None:
    cut = traces.between(trace_of(5, [0, 1, 2, 3, 4]), 1, 3)
    assert cut.arrival_s is not None
    assert cut.arrival_s.tolist() == [0, 1]
    assert cut.request_ids == ("1", "2")
    assert len(traces.between(trace_of(5, [0, 1, 2, 3, 4]), 2.5)) == 2
    with pytest.raises(TraceError, match="nothing arrives between"):
        traces.between(trace_of(2, [0, 1]), 5, 6)
    with pytest.raises(TraceError, match="is empty"):
        traces.between(trace_of(2, [0, 1]), 5, 5)


def test_shrunk_lengths_are_rounded_up() -> None:
    short = traces.shrunk(trace_of(9, [0, 1, 2, 3, 4, 5, 6, 7, 8]), 4)
    assert short.prompt_tokens.tolist() == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert short.output_tokens.tolist() == [2] * 9
    assert short.arrival_s is not None
    assert short.arrival_s.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert short.provenance.notes == ("prompts and answers divided by 4, rounded up to whole tokens",)


def test_shrinking_drops_block_hashes_and_says_so() -> None:
    hashed = replace(
        trace_of(2, [0, 1]),
        session_ids=("a", "a"),
        request_ids=("x", "y"),
        block_hashes=((1,), (1, 2)),
        block_tokens=512,
    )
    short = traces.shrunk(hashed, 2)
    assert (short.block_hashes, short.block_tokens) == (None, None)
    assert (short.session_ids, short.request_ids) == (("a", "a"), ("x", "y"))
    assert short.provenance.notes[-1].endswith("; block hashes dropped, as they are of longer prompts")
    assert traces.shrunk(hashed, 1) is hashed
    for factor in (0, -8):
        with pytest.raises(TraceError, match=f"lengths divided by {factor}; give a whole number of 1 or more"):
            traces.shrunk(hashed, factor)


@settings(deadline=None)
@given(st.lists(st.integers(1, 2**31 - 1), min_size=1), st.integers(1, 2**31), st.integers(1, 1000))
def test_shrinking_twice_is_shrinking_by_the_product(tokens: list[int], one: int, two: int) -> None:
    """And every length is the least that, made longer again, is no shorter than it was."""
    long = replace(trace_of(len(tokens)), prompt_tokens=np.array(tokens))
    short = traces.shrunk(long, one)
    assert all(
        n >= 1 and n * one >= t > (n - 1) * one for n, t in zip(short.prompt_tokens.tolist(), tokens, strict=True)
    )
    twice = traces.shrunk(short, two)
    assert twice.prompt_tokens.tolist() == traces.shrunk(long, one * two).prompt_tokens.tolist()
    assert twice.output_tokens.tolist() == traces.shrunk(long, one * two).output_tokens.tolist()


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("process", [*PROCESSES, "rescaled"])
def test_a_rate_must_be_a_number_above_0(process: str, rate: float) -> None:
    make = {**PROCESSES, "rescaled": lambda trace, rate, seed: traces.rescaled(trace, rate)}[process]
    with pytest.raises(TraceError, match=r"rate is .*; give requests per second, above 0"):
        make(trace_of(2, [0, 1]), rate, 0)


def test_other_settings_are_checked() -> None:
    lengths = trace_of(3)
    for call, message in (
        (lambda: traces.gamma(lengths, 1, 0), "cv is 0"),
        (lambda: traces.on_off(lengths, 1, 0, 1), "on is 0"),
        (lambda: traces.on_off(lengths, 1, 1, -1), "off is -1"),
        (lambda: traces.on_off(lengths, 1, 1, 1, periods="odd"), "periods is 'odd'"),
        (lambda: traces.poisson(lengths, 1, seed=-1), "seed is -1"),
        (lambda: traces.rescaled(lengths, 1), "without arrival times"),
        (lambda: traces.rescaled(trace_of(2, [1, 1]), 1), "arrive at once"),
        (lambda: traces.poisson(trace_of(0), 1), "without requests"),
        (lambda: traces.first(lengths, 0), "0 requests"),
        (lambda: ClosedLoop(lengths, 0, 1), "users is 0"),
        (lambda: ClosedLoop(lengths, 1, -1), "think is -1"),
        (lambda: ClosedLoop(lengths, 1, 1, think="odd"), "think is 'odd'"),
    ):
        with pytest.raises(TraceError, match=message):
            call()


def test_open_arrivals_hand_out_the_trace_in_order() -> None:
    source = OpenArrivals(trace_of(3, [0.0, 0.0, 2.5]))
    assert source.peek_s() == 0.0
    taken = [source.pop() for _ in range(3)]
    assert [(r.request_id, r.arrival_s, r.prompt_tokens) for r in taken] == [
        ("0", 0.0, 1),
        ("1", 0.0, 2),
        ("2", 2.5, 3),
    ]
    assert taken == list(trace_of(3, [0.0, 0.0, 2.5]))
    assert source.peek_s() is None
    with pytest.raises(IndexError):
        source.pop()


@pytest.mark.parametrize("arrivals", [[1.0, 0.0], [-1.0, 0.0], [0.0, math.nan]])
def test_open_arrivals_refuse_disorder(arrivals: list[float]) -> None:
    with pytest.raises(TraceError, match="in order"):
        OpenArrivals(trace_of(2, arrivals))
    with pytest.raises(TraceError, match="without arrival times"):
        OpenArrivals(trace_of(2))


def test_closed_loop_timeline() -> None:
    loop = ClosedLoop(trace_of(5), users=2, think_s=1.0, think="constant")
    assert loop.peek_s() == 1.0
    first, second = loop.pop(), loop.pop()
    assert [(r.request_id, r.arrival_s) for r in (first, second)] == [("0", 1.0), ("1", 1.0)]
    assert loop.peek_s() is None  # both users wait
    with pytest.raises(IndexError):
        loop.pop()
    loop.finished(1, 4.0)
    assert loop.peek_s() == 5.0
    assert loop.pop().arrival_s == 5.0
    # Rejected at once: the user thinks again all the same.
    loop.finished(2, 5.0)
    loop.finished(0, 5.0)
    assert [loop.pop().arrival_s, loop.pop().arrival_s] == [6.0, 6.0]
    loop.finished(3, 7.0)
    assert loop.peek_s() is None  # the trace is at its end
    with pytest.raises(IndexError):
        loop.pop()
    with pytest.raises(KeyError):
        loop.finished(3, 8.0)


@given(users=st.integers(1, 5), seed=st.integers(0, 100), service=st.lists(st.floats(0, 3), min_size=12, max_size=12))
@settings(deadline=None)
def test_closed_loop_never_has_more_under_way_than_users(users: int, seed: int, service: list[float]) -> None:
    loop = ClosedLoop(trace_of(12), users=users, think_s=1.0, seed=seed)
    under_way: list[tuple[float, int]] = []
    popped, last_s = 0, 0.0
    while popped < 12 or under_way:
        next_s = loop.peek_s()
        if next_s is not None and (not under_way or next_s <= min(under_way)[0]):
            request = loop.pop()
            assert request.arrival_s == next_s >= last_s
            last_s = next_s
            under_way.append((next_s + service[popped], popped))
            popped += 1
            assert len(under_way) <= users
        else:
            done = min(under_way)
            under_way.remove(done)
            loop.finished(done[1], done[0])
    assert popped == 12


def test_think_times_belong_to_requests_and_not_to_the_order_of_leaving() -> None:
    def ready(order: tuple[int, int]) -> list[float]:
        loop = ClosedLoop(trace_of(4), users=2, think_s=1.0, seed=3)
        loop.pop()
        loop.pop()
        for index in order:
            loop.finished(index, 10.0)
        return [loop.pop().arrival_s, loop.pop().arrival_s]

    assert ready((0, 1)) == ready((1, 0))


@pytest.mark.parametrize(
    "text",
    [
        "recorded",
        "rescale:4",
        "poisson:4",
        "gamma:4,cv=3",
        "onoff:4,on=10,off=20",
        "onoff:4,on=10,off=20,periods=exponential",
        "constant:4",
        "spread",
        "spread:1",
        "closed:2,think=1.5",
        "closed:2",
        "closed:2,think=0,thinking=constant",
    ],
)
def test_specs_are_parsed_and_written_back(text: str) -> None:
    spec = traces.parse_arrivals(text)
    assert str(spec) == text
    source = spec.source(trace_of(3, [0, 1, 5]), seed=1)
    assert source.peek_s() is not None
    if not spec.closed:
        applied = spec.apply(trace_of(3, [0, 1, 5]), seed=1)
        assert applied.arrival_s is not None


def test_a_spec_is_the_process_that_it_names() -> None:
    recorded = trace_of(3, [0, 1, 5])
    for text, wanted in (
        ("poisson:4", traces.poisson(recorded, 4, 9)),
        ("gamma:4,cv=3", traces.gamma(recorded, 4, 3, 9)),
        ("onoff:4,on=1,off=2", traces.on_off(recorded, 4, 1, 2, 9)),
        ("constant:4", traces.constant(recorded, 4)),
        ("rescale:4", traces.rescaled(recorded, 4)),
        ("spread:2", traces.spread_bins(recorded, 2, 9)),
    ):
        applied = traces.parse_arrivals(text).apply(recorded, 9)
        assert applied.arrival_s is not None
        assert wanted.arrival_s is not None
        assert np.array_equal(applied.arrival_s, wanted.arrival_s)
        assert applied.provenance == wanted.provenance
    assert traces.parse_arrivals("recorded").apply(recorded) is recorded
    assert str(traces.parse_arrivals("recorded").at_rate(3)) == "rescale:3"
    assert str(traces.parse_arrivals("gamma:4,cv=3").at_rate(2)) == "gamma:2,cv=3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no form is called ''"),
        ("poison:4", "no form is called 'poison'"),
        ("poisson", "poisson needs a number"),
        ("poisson:x", "'x' is no number"),
        ("poisson:4,cv=3", "poisson has no setting 'cv=3'"),
        ("gamma:4", "gamma needs cv="),
        ("gamma:4,cv=x", "'x' is no number"),
        ("gamma:4,cv=0", "cv is 0"),
        ("poisson:0", "rate is 0"),
        ("poisson:nan", "rate is nan"),
        ("closed:0,think=1", "users is 0"),
        ("closed:2,think=-1", "think is -1"),
        ("onoff:4,on=1", "onoff needs off="),
        ("onoff:4,on=1,off=1,periods=odd", "periods is 'odd'"),
        ("recorded:4", "recorded takes no number"),
    ],
)
def test_bad_specs_are_refused(text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        traces.parse_arrivals(text)


def test_closed_specs_cannot_be_applied_or_given_a_rate() -> None:
    spec = traces.parse_arrivals("closed:2,think=1")
    with pytest.raises(TraceError, match="depend on when requests finish"):
        spec.apply(trace_of(2))
    with pytest.raises(TraceError, match="no rate to set"):
        spec.at_rate(2)
    with pytest.raises(TraceError, match="whole number"):
        traces.parse_arrivals("closed:2.5").source(trace_of(2))


def test_sessions_and_blocks_go_with_their_requests() -> None:
    trace = replace(trace_of(2, [0, 1]), session_ids=("s", None), block_hashes=((1, 2), (3,)), block_tokens=1)
    source = OpenArrivals(trace)
    assert [source.pop(), source.pop()] == list(trace)
