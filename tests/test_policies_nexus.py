"""Nexus's split and order on a device where work takes time in inverse proportion to its SMs.

Ten SMs. A decode step on n takes 1/n s: 1/9 s on the most it can have beside prefill.
"""

from __future__ import annotations

from typing import Any

import pytest

from policies import SLO, Decision, Nexus
from policies.nexus import Split
from policies.phases import DECODE, PREFILL
from profiler.work import Work
from tests.test_policies_bullet import LATENCY, FakeLane, FakeView, Held, decoding, held
from tests.toys import serve, timeline


def decided(policy: Nexus, **view: Any) -> dict[str, tuple[int, Any]]:
    decision: Decision = policy.decide(FakeView(slo=SLO(), **view))  # type: ignore[arg-type]
    return {
        step.lane: (step.sms, "decode" if step.decode else [(c.request.index, c.tokens) for c in step.prefill])
        for step in decision.steps
    }


@pytest.mark.parametrize(("slack", "sms"), [(1.3, 7), (2.0, 5), (4.0, 3), (10.0, 1)])
def test_prefill_first_leaves_decode_the_slack(slack: float, sms: int):
    """The fewest n with 1/n <= slack / 9."""
    steps = decided(Nexus(slack=slack, hysteresis=0), waiting=held(Held(index=0)), decoding=decoding())
    assert steps == {DECODE: (sms, "decode"), PREFILL: (10 - sms, [(0, 10)])}


def test_decode_first_once_kv_is_short():
    """The same with the phases exchanged: prefill keeps 3 SMs."""
    view = {"waiting": held(Held(index=0)), "decoding": decoding(), "free_blocks": 150}
    assert decided(Nexus(slack=4.0, hysteresis=0), **view)[DECODE] == (7, "decode")
    assert decided(Nexus(slack=4.0, hysteresis=0, kv_switch=0.9), **view)[DECODE] == (3, "decode")


@pytest.mark.parametrize(("hysteresis", "sms"), [(0.3, 5), (0.2, 3)])
def test_a_split_moves_only_by_as_much_as_the_hysteresis(hysteresis: float, sms: int):
    policy = Nexus(slack=4.0, hysteresis=hysteresis)
    view = {"waiting": held(Held(index=0)), "decoding": decoding(), "memo": Split(5)}
    assert decided(policy, **view)[DECODE] == (sms, "decode")


def test_the_search_starts_from_the_split_in_force_and_ends_alike():
    for start in range(1, 10):
        view = {"waiting": held(Held(index=0)), "decoding": decoding(), "memo": Split(start)}
        assert decided(Nexus(slack=2.0, hysteresis=0), **view)[DECODE] == (5, "decode")


def test_shortest_prompt_first_in_chunks_and_age_makes_shorter():
    waiting = held(*(Held(index=i, prompt_tokens=n) for i, n in enumerate((30, 10, 20))))
    assert decided(Nexus(batch_tokens=35), waiting=waiting) == {PREFILL: (10, [(1, 10), (2, 20), (0, 5)])}
    waiting[0].arrival_s = -2.0
    aged = Nexus(batch_tokens=35, age_tokens_per_s=15.0)
    assert decided(aged, waiting=waiting) == {PREFILL: (10, [(0, 30), (1, 5)])}


def test_decode_beside_a_prefill_in_flight_takes_its_part():
    lanes = {PREFILL: FakeLane(busy=True, work=Work(prefill=((20, 0),))), DECODE: FakeLane()}
    policy = Nexus(slack=2.0, hysteresis=0)
    assert decided(policy, decoding=decoding(), lanes=lanes) == {DECODE: (5, "decode")}


def test_a_timeline():
    """A decodes alone, then on 5 SMs beside B's 20 tokens on the other 5, which end with its second step.

    prefill  0.0-0.1 A   0.2-0.6 B on 5
    decode   0.1-0.2 A   0.2-0.4-0.6 A on 5   0.6-0.7 both on 10
    """
    rows = [(0.0, 10, 5), (0.2, 20, 2)]
    result = serve(Nexus(slack=2.0, hysteresis=0), rows, latency=LATENCY)
    assert timeline(result, "sms") == [
        (0.0, 0.1, "prefill", 10),
        (0.1, 0.2, "decode", 10),
        (0.2, 0.4, "decode", 5),
        (0.2, 0.6, "prefill", 5),
        (0.4, 0.6, "decode", 5),
        (0.6, 0.7, "decode", 10),
    ]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"slack": 0.9}, "nexus: slack is 0.9; it must be 1 or more"),
        ({"kv_switch": 1.1}, "nexus: kv_switch is 1.1; it must be 0 to 1"),
        ({"hysteresis": -0.1}, "nexus: hysteresis is -0.1; it must be 0 to 1"),
        ({"age_tokens_per_s": -1.0}, "nexus: age_tokens_per_s is -1.0; it must be 0 or more"),
        ({"batch_tokens": 0}, "nexus: batch_tokens is 0; it must be 1 or more"),
        ({"sm_step": 0}, "nexus: sm_step is 0; it must be 1 or more"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, complaint):
    with pytest.raises(ValueError, match=f"^{complaint}"):
        Nexus(**settings)
