"""What the host takes between steps, by hand: a prompt token takes 10 ms, a decode step 100 ms, whatever the shares."""

from __future__ import annotations

import pytest

from policies import ChunkedPrefill, StaticSplit
from sim import RunResult
from sim.between import RESTED_S, BetweenSteps
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


def test_a_lane_that_rested_has_to_wake():
    """Waking takes 30 ms, and a lane rests once it has computed nothing for 20 ms; only launches that prefill wake it.

    0.00-0.13   A's prompt: nothing has run on the lane yet
    0.13-0.23   A's first decode, which wakes nothing
    0.14-0.24   B's prompt, 10 ms after A's: at once
    0.23-0.33   A's second decode
    0.33-0.43   B's decode
    0.40-0.53   C's prompt, 160 ms after B's
    """
    rows = [(0.0, 10, 3), (0.14, 10, 2), (0.4, 10, 1)]
    result = serve(StaticSplit(decode_sms=5), rows, between=BetweenSteps(wake_s=0.03))
    assert sorted(timeline(result)) == [
        (0.0, 0.13, "prefill"),
        (0.13, 0.23, "decode"),
        (0.14, 0.24, "prefill"),
        (0.23, 0.33, "decode"),
        (0.33, 0.43, "decode"),
        (0.4, 0.53, "prefill"),
    ]
    assert result.steps.predicted_s == pytest.approx(result.steps.end_s - result.steps.start_s)


@pytest.mark.parametrize("gap_s", [0.01, 0.03])
def test_steps_that_nobody_launched_are_no_rest(gap_s: float) -> None:
    """A, whose lane woke first, decodes from 0.15 to 1.05 without a launch for each; B's prompt comes so long after."""
    rows = [(0.0, 10, 10), (1.05 + gap_s, 10, 1)]
    result = serve(ChunkedPrefill(budget_tokens=20), rows, between=BetweenSteps(wake_s=0.05))
    slept = 0.05 if gap_s >= RESTED_S else 0.0
    assert token_times(result)[0][-1] == pytest.approx(1.05)
    assert token_times(result)[1] == pytest.approx([1.05 + gap_s + slept + 0.1])


def test_one_lane_hands_nothing_over():
    late = serve(ChunkedPrefill(budget_tokens=10), ROWS, between=BetweenSteps(handover_s=0.5))
    assert token_times(late) == token_times(serve(ChunkedPrefill(budget_tokens=10), ROWS))


def test_settings_name_all():
    assert LatencySettings(handover_s=2e-4).between() == BetweenSteps(0.0, 2e-4)
    assert LatencySettings(wake_s=2e-3).between() == BetweenSteps(0.0, 0.0, 2e-3)
    assert LatencySettings().between() == BetweenSteps()
