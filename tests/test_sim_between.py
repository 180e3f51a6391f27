"""What the host takes between steps, by hand: a prompt token takes 10 ms, a decode step 100 ms, whatever the shares."""

from __future__ import annotations

import pytest

from policies import ChunkedPrefill, StaticSplit
from sim import RunResult
from sim.between import BetweenSteps
from sim.config import LatencySettings
from tests.toys import serve, timeline, token_times

ROWS = [(0.0, 10, 3), (0.15, 10, 2)]


def run(between: BetweenSteps) -> RunResult:
    return serve(StaticSplit(decode_sms=5, lend=True), ROWS, between=between)


def test_a_changed_share_and_requests_from_the_other_lane_make_a_launch_late():
    """A change of share takes 20 ms, a hand-over 30 ms. Each lane's first launch changes nothing.

    0.00-0.10  A's prompt on all SMs
    0.10-0.23  A's first decode: handed over
    0.15-0.27  B's prompt on half of the SMs: changed
    0.23-0.35  A's second decode on half: changed
    0.35-0.50  B's decode, handed over, on all again
    """
    result = run(BetweenSteps(repartition_s=0.02, handover_s=0.03))
    assert timeline(result, "sms") == [
        (0.0, 0.1, "prefill", 10),
        (0.1, 0.23, "decode", 10),
        (0.15, 0.27, "prefill", 5),
        (0.23, 0.35, "decode", 5),
        (0.35, 0.5, "decode", 10),
    ]
    assert token_times(result) == [[0.1, 0.23, 0.35], [0.27, 0.5]]


def test_what_is_known_beforehand_is_predicted():
    log = run(BetweenSteps(repartition_s=0.02, handover_s=0.03)).steps
    assert log.predicted_s == pytest.approx(log.end_s - log.start_s)


def test_a_late_launch_is_slowed_only_while_it_runs():
    """Beside another, launches take twice as long. B's prompt comes at 0.15 and begins to run at 0.18.

    A's decode from 0.10: alone until the prompt is launched, half of it done; the rest at half the pace, to 0.25.
    The prompt loses nothing before 0.18; then 0.07 s at half the pace, 0.035 of its 0.1 s; A's next decode is late too,
    and slows it from its launch on.
    """
    from tests.toys import toy_latency

    latency = toy_latency(shared_slowdown=2.0)
    result = serve(
        StaticSplit(decode_sms=5, lend=True), ROWS, latency=latency, between=BetweenSteps(repartition_s=0.03)
    )
    assert timeline(result)[:2] == [(0.0, 0.1, "prefill"), (0.1, 0.25, "decode")]
    prompt = next(row for row in timeline(result) if row[:1] == (0.15,))
    assert prompt[1] == pytest.approx(0.38)


def test_one_lane_hands_nothing_over():
    late = serve(ChunkedPrefill(budget_tokens=10), ROWS, between=BetweenSteps(handover_s=0.5))
    assert token_times(late) == token_times(serve(ChunkedPrefill(budget_tokens=10), ROWS))


def test_settings_name_both():
    assert LatencySettings(handover_s=2e-4).between() == BetweenSteps(0.0, 2e-4)
    assert LatencySettings().between() == BetweenSteps()
