"""semi-PD's feedback on a device where work takes time in inverse proportion to its SMs.

Ten SMs. A prompt token takes 0.1 SM-seconds, a decode step 1 SM-second: on half of the SMs 20 ms and 0.2 s.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import SLO, SemiPD
from tests.test_policies_bullet import LATENCY
from tests.toys import serve, timeline, toy_latency


def test_a_phase_that_misses_gets_more_after_the_window():
    """A's 50 tokens take 1 s on 5 SMs, more than 0.3 s: B, at 1.5, finds prefill with 70 %, 14 tokens in 0.2 s."""
    policy = SemiPD(window_s=1.0, percent_step=20)
    result = serve(policy, [(0.0, 50, 1), (1.5, 14, 1)], latency=LATENCY, slo=SLO(ttft_s=0.3, tpot_s=1.0))
    assert timeline(result, "sms") == [(0.0, 1.0, "prefill", 5), (1.5, 1.7, "prefill", 7)]


def test_within_the_window_nothing_moves():
    policy = SemiPD(window_s=2.0, percent_step=20)
    result = serve(policy, [(0.0, 50, 1), (1.5, 10, 1)], latency=LATENCY, slo=SLO(ttft_s=0.3, tpot_s=1.0))
    assert timeline(result, "sms") == [(0.0, 1.0, "prefill", 5), (1.5, 1.7, "prefill", 5)]


def test_decode_gets_more_where_it_misses_by_more():
    """A's TTFT is 0.1 s of 0.05, its TPOT 0.2 s of 0.05. B decodes on 7 SMs: its two steps take 1/7 s each."""
    policy = SemiPD(window_s=0.2, percent_step=20)
    slo = SLO(ttft_s=0.05, tpot_s=0.05)
    result = serve(policy, [(0.0, 5, 2), (0.5, 3, 3)], latency=LATENCY, slo=slo)
    assert timeline(result, "sms") == [
        (0.0, 0.1, "prefill", 5),
        (0.1, 0.3, "decode", 5),
        (0.5, 0.6, "prefill", 3),
        (0.6, round(0.6 + 1 / 7, 9), "decode", 7),
        (round(0.6 + 1 / 7, 9), round(0.6 + 2 / 7, 9), "decode", 7),
    ]


def test_each_look_counts_only_what_finished_in_its_window():
    """A missed TTFT and moved the split once, by 10 points; B met it: the third window leaves the split at 60 %."""
    rows = [(0.0, 50, 1), (1.5, 3, 1), (3.0, 3, 1)]
    result = serve(SemiPD(window_s=1.0), rows, latency=LATENCY, slo=SLO(ttft_s=0.3))
    assert result.steps.sms.tolist() == [5, 6, 6]


def test_either_phase_keeps_its_least():
    rows = [(2.0 * i, 50, 1) for i in range(8)]
    result = serve(SemiPD(window_s=1.0, percent_least=20), rows, latency=LATENCY, slo=SLO(ttft_s=0.01))
    assert result.steps.sms.tolist() == [5, 6, 7, 8, 8, 8, 8, 8]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"window_s": 0.0}, "semi-pd: window_s is 0.0; it must be above 0"),
        ({"percentile": 1.5}, "semi-pd: percentile is 1.5; it must be above 0 and at most 1"),
        ({"percent_step": 0}, "semi-pd: percent_step is 0; it must be 1 or more"),
        ({"prefill_percent": 95}, "semi-pd: prefill_percent is 95 and percent_least 10"),
        ({"percent_least": 60}, "semi-pd: prefill_percent is 50 and percent_least 60"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, complaint):
    with pytest.raises(ValueError, match=f"^{complaint}"):
        SemiPD(**settings)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 400).map(lambda t: t / 100), st.integers(1, 60), st.integers(1, 25)), min_size=1),
    st.floats(0.05, 2.0),
)
def test_shares_add_up_and_move_by_one_step_a_window(trace, window_s):
    policy = SemiPD(window_s=window_s)
    slo = SLO(ttft_s=0.3, tpot_s=0.1)
    result = serve(policy, sorted(trace), latency=toy_latency(shared_slowdown=1.5), slo=slo, blocks=400)
    log = result.steps
    order = np.argsort(log.start_s, kind="stable")
    prefill = np.where(log.prefill_tokens > 0, log.sms, 10 - log.sms)[order]
    assert set(prefill) <= set(range(1, 10))
    starts = log.start_s[order]
    for (start, sms), (later, after) in pairwise(zip(starts, prefill, strict=True)):
        assert abs(int(after) - int(sms)) <= 1 + (later - start) / window_s
