"""DuetServe's iterations on a device where work takes time in inverse proportion to its SMs.

Ten SMs. On all of them a prompt token takes 10 ms and a decode step 0.1 s; a batch of both takes their sum.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from policies import SLO, DuetServe
from tests.test_policies_bullet import LATENCY
from tests.toys import serve, timeline

ROWS = [(0.0, 10, 8), (0.05, 20, 2)]


def test_within_the_slo_it_is_chunked_prefill():
    """B's 20 tokens and a step of A take 0.3 s together."""
    result = serve(DuetServe(), ROWS, latency=LATENCY, slo=SLO(tpot_s=0.31))
    assert timeline(result, "sms", "prefill_tokens", "decode_requests")[:3] == [
        (0.0, 0.1, "prefill", 10, 10, 0),
        (0.1, 0.4, "prefill", 10, 20, 1),
        (0.4, 0.5, "prefill", 10, 0, 2),
    ]


def test_an_iteration_over_the_slo_is_split_for_the_most_tokens():
    """0.3 s are over 0.15 s. A step keeps it on 7, 8 or 9 SMs; tokens a second beside B's 20 on the rest:

    7: steps of 1/7 s, prefill 2/3 s, 4 steps: 24 tokens in 2/3 s = 36.   8: 1/8 s, 1 s, 8 steps: 28.   9: 38 in 2 s.
    After the four steps decode waits for the prefill, and both decode together.
    """
    result = serve(DuetServe(), ROWS, latency=LATENCY, slo=SLO(tpot_s=0.15))
    ends = [round(0.1 + step / 7, 9) for step in range(5)]
    assert timeline(result, "sms", "prefill_tokens", "decode_requests")[:7] == [
        (0.0, 0.1, "prefill", 10, 10, 0),
        *((start, end, "decode", 7, 0, 1) for start, end in pairwise(ends)),
        (0.1, round(0.1 + 2 / 3, 9), "prefill", 3, 20, 0),
        (round(0.1 + 2 / 3, 9), round(0.2 + 2 / 3, 9), "prefill", 10, 0, 2),
    ]


def test_where_no_split_holds_the_slo_it_stays_one_batch():
    result = serve(DuetServe(), ROWS, latency=LATENCY, slo=SLO(tpot_s=0.105))
    assert timeline(result, "sms", "prefill_tokens", "decode_requests")[1] == (0.1, 0.4, "prefill", 10, 20, 1)


def test_decodes_count_in_the_budget():
    """Two requests decode: of a budget of 8 tokens 6 are left for C's prompt."""
    rows = [(0.0, 4, 30), (0.0, 4, 30), (0.05, 12, 1)]
    result = serve(DuetServe(budget_tokens=8), rows, latency=LATENCY)
    assert result.steps.prefill_tokens.tolist()[:4] == [8, 6, 6, 0]


def test_steps_ahead_end_where_kv_is_short():
    """Five blocks of 4 tokens hold neither B beside the end of A nor all steps ahead; both get their tokens."""
    rows = [(0.0, 7, 10), (0.05, 8, 1)]
    result = serve(DuetServe(), rows, latency=LATENCY, slo=SLO(tpot_s=0.15), blocks=5, block_tokens=4)
    assert result.records.generated_tokens.tolist() == [10, 1]


@pytest.mark.parametrize("name", ["budget_tokens", "sm_step", "max_resident"])
def test_settings_that_mean_nothing_are_refused(name):
    with pytest.raises(ValueError, match=f"^duetserve: {name} is 0; it must be 1 or more"):
        DuetServe(**{name: 0})
