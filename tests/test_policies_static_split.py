"""The static split on a device where work takes time in inverse proportion to its SMs: shares stay, unless lent.

Ten SMs, prefill on 6 and decode on 4 where nothing else is said. A prompt token takes 0.1 SM-seconds, a decode step 1
SM-second: a token 1/60 s on 6 SMs and 10 ms on all, a step 0.25 s on 4 SMs and 0.1 s on all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import SLO, StaticSplit, Step
from profiler import roofline
from sim import PolicyError, RunResult
from tests.test_policies_bullet import DECODE, LATENCY, PREFILL, FakeLane, FakeView, Held, held
from tests.toys import serve, timeline, token_times, toy_latency

ROWS = [(0.0, 12, 4), (0.3, 30, 2)]


def steps(result: RunResult) -> list[tuple[float, float, str, int, int]]:
    """(start, end, lane, SMs, layers) of each step, in order of completion."""
    return timeline(result, "sms", "layers")


def test_each_phase_keeps_its_share_when_the_other_is_empty():
    """A (12 tokens, 4 out) at 0, B (30 tokens, 2 out) at 0.3.

    prefill  0.00-0.20 A   0.30-0.80 B
    decode   0.20-0.45-0.70-0.95 A, which at 0.80 is in its last step; then 0.95-1.20 B
    """
    result = serve(StaticSplit(decode_sms=4), ROWS, latency=LATENCY)
    assert steps(result) == [
        (0.0, 0.2, "prefill", 6, 4),
        (0.2, 0.45, "decode", 4, 4),
        (0.45, 0.7, "decode", 4, 4),
        (0.3, 0.8, "prefill", 6, 4),
        (0.7, 0.95, "decode", 4, 4),
        (0.95, 1.2, "decode", 4, 4),
    ]
    assert token_times(result) == [[0.2, 0.45, 0.7, 0.95], [0.8, 1.2]]


def test_lent_shares_come_back_with_the_next_launch():
    """The same with lend.

    prefill  0.00-0.12 A on 10   0.30-0.80 B on 6: decode has something to do, or its step is in flight
    decode   0.12-0.22-0.32 A on 10, the second step for B's first 0.02 s too; 0.32-0.57 A on 4; 0.80-0.90 B on 10
    """
    result = serve(StaticSplit(decode_sms=4, lend=True), ROWS, latency=LATENCY)
    assert steps(result) == [
        (0.0, 0.12, "prefill", 10, 4),
        (0.12, 0.22, "decode", 10, 4),
        (0.22, 0.32, "decode", 10, 4),
        (0.32, 0.57, "decode", 4, 4),
        (0.3, 0.8, "prefill", 6, 4),
        (0.8, 0.9, "decode", 10, 4),
    ]
    assert token_times(result) == [[0.12, 0.22, 0.32, 0.57], [0.8, 0.9]]


def test_a_quota_of_prefill_alone_leaves_decode_all_sms():
    """A (12 tokens, 2 out) at 0, B (30 tokens, 1 out) at 0.2: a token takes 20 ms on 5 SMs, a step 0.1 s on all.

    The toy device does not let overlapping shares wait for each other; that they take turns is the latency model's.
    """
    result = serve(StaticSplit(prefill_sms=5), [(0.0, 12, 2), (0.2, 30, 1)], latency=LATENCY)
    assert steps(result) == [
        (0.0, 0.24, "prefill", 5, 4),
        (0.24, 0.34, "decode", 10, 4),
        (0.24, 0.84, "prefill", 5, 4),
    ]
    assert token_times(result) == [[0.24, 0.34], [0.84]]


@pytest.mark.parametrize(("others", "named"), [({"lend": True}, "lend"), ({"decode_sms": 4}, "decode_sms")])
def test_a_quota_of_prefill_alone_excludes_what_contradicts_it(others: dict[str, int], named: str):
    with pytest.raises(ValueError, match=f"static-split: prefill_sms leaves decode all SMs; leave out {named}"):
        StaticSplit(prefill_sms=5, **others)


def test_prefill_by_layer_groups_when_set():
    """Three of four layers, then the last: 0.15 + 0.05 s on 6 SMs. Lent, the last group has all SMs: A has ended."""
    assert steps(serve(StaticSplit(decode_sms=4, layers_per_step=3), [(0.0, 12, 1)], latency=LATENCY)) == [
        (0.0, 0.15, "prefill", 6, 3),
        (0.15, 0.2, "prefill", 6, 1),
    ]
    rows = [(0.0, 6, 2), (0.1, 12, 1)]
    assert steps(serve(StaticSplit(decode_sms=4, layers_per_step=3, lend=True), rows, latency=LATENCY)) == [
        (0.0, 0.045, "prefill", 10, 3),
        (0.045, 0.06, "prefill", 10, 1),
        (0.06, 0.16, "decode", 10, 4),
        (0.1, 0.25, "prefill", 6, 3),
        (0.25, 0.28, "prefill", 10, 1),
    ]


def test_whole_prompts_are_batched_up_to_the_budget_in_order():
    """Budget 20: A and B (10 each), then C (30) alone, then D (5) and E (5), 60 tokens a second."""
    rows = [(0.0, tokens, 1) for tokens in (10, 10, 30, 5, 5)]
    result = serve(StaticSplit(decode_sms=4, batch_tokens=20), rows, latency=LATENCY)
    assert result.steps.prefill_tokens.tolist() == [20, 30, 10]
    assert token_times(result) == [[0.333333333]] * 2 + [[0.833333333]] + [[1.0]] * 2


def test_a_place_is_free_when_a_request_has_ended():
    """One resident: B (10 tokens) waits until A has its second token, at 0.35, though prefill is idle from 0.1."""
    result = serve(StaticSplit(decode_sms=4, max_resident=1), [(0.0, 6, 2), (0.0, 6, 1)], latency=LATENCY)
    assert token_times(result) == [[0.1, 0.35], [0.45]]


def test_the_latest_gives_way_when_kv_is_short():
    """Five blocks of 4 tokens, a prompt token 10 ms and a decode step 100 ms on any share.

    A (7 tokens, 6 out) and B (8, 4 out) fill four blocks by 0.15; B takes the fifth, and at 0.25 A needs one: B goes
    with two tokens and comes back when A has ended at 0.65, its 10 tokens prefilled again.
    """
    result = serve(StaticSplit(), [(0.0, 7, 6), (0.0, 8, 4)], blocks=5, block_tokens=4)
    assert token_times(result) == [[0.15, 0.25, 0.35, 0.45, 0.55, 0.65], [0.15, 0.25, 0.75, 0.85]]
    assert result.records.preemptions.tolist() == [0, 1]


def decided(view: FakeView) -> list[Step]:
    return list(StaticSplit(decode_sms=4).decide(view).steps)  # type: ignore[arg-type]


def test_room_made_by_pre_emption_is_not_for_the_queue():
    """Two decodes at a block's border and no block free: the later of them gives back 3, of which 1 is needed."""
    residents = [Held(index=i, prefilled_tokens=47, generated_tokens=1, first_token_s=0.0) for i in (1, 2)]
    waiting = held(Held(index=3))
    view = FakeView(slo=SLO(), decoding=held(*residents), waiting=waiting, free_blocks=0, decode_block_demand=2)
    (step,) = decided(view)
    assert (step.lane, step.sms, step.decode, step.preempt) == (DECODE, 4, True, (residents[1],))


@pytest.mark.parametrize(("demand", "lanes"), [(1, [PREFILL]), (2, [])])
def test_a_prompt_leaves_the_next_decode_step_its_blocks(demand: int, lanes: list[str]):
    """Two blocks are free while a decode step runs; the prompt needs one."""
    view = FakeView(
        slo=SLO(),
        decoding=held(Held(index=1, prefilled_tokens=16, generated_tokens=0, first_token_s=0.0)),
        waiting=held(Held(index=3)),
        lanes={PREFILL: FakeLane(), DECODE: FakeLane(busy=True, sms=4)},
        free_blocks=2,
        decode_block_demand=demand,
    )
    assert [step.lane for step in decided(view)] == lanes


@pytest.mark.parametrize(
    ("sms", "granularity", "prefill", "decode"),
    [(10, 1, 5, 5), (132, 8, 68, 64), (11, 2, 7, 4), (10, 8, 5, 5), (2, 1, 1, 1)],
)
def test_half_is_rounded_to_what_the_device_grants(sms: int, granularity: int, prefill: int, decode: int):
    device = replace(LATENCY.device, sms=sms, sm_granularity=granularity, bandwidth_knee_sms=1)
    log = serve(StaticSplit(), [(0.0, 10, 2)], latency=replace(LATENCY, device=device)).steps
    assert log.sms.tolist() == [prefill, decode]


@pytest.mark.parametrize(
    ("policy", "sms", "message"),
    [
        (StaticSplit(decode_sms=10), 10, "decode_sms is 10 of an instance's 10 SMs; leave one or more to each phase"),
        (StaticSplit(prefill_sms=11), 10, "prefill_sms is 11 and an instance has 10 SMs; give no more"),
        (StaticSplit(), 1, "an instance has 1 SM, and each phase needs one of its own; give it 2 or more"),
    ],
)
def test_shares_that_leave_a_phase_without_sms_are_refused(policy: StaticSplit, sms: int, message: str):
    device = replace(LATENCY.device, sms=sms, bandwidth_knee_sms=1)
    with pytest.raises(PolicyError, match=f"^policy static-split: decide raised ValueError: {message}"):
        serve(policy, ROWS, latency=replace(LATENCY, device=device))


rows = st.lists(
    st.tuples(st.integers(0, 400).map(lambda t: t / 100), st.integers(1, 60), st.integers(1, 25)),
    min_size=1,
    max_size=14,
).map(sorted)
policies = st.builds(
    StaticSplit,
    decode_sms=st.one_of(st.none(), st.integers(1, 9)),
    batch_tokens=st.integers(1, 100),
    layers_per_step=st.one_of(st.none(), st.integers(1, 6)),
    lend=st.booleans(),
    max_resident=st.integers(1, 8),
)


@settings(max_examples=120, deadline=None)
@given(rows, policies, st.integers(22, 60), st.booleans())
def test_shares_and_order_hold_for_any_traffic(trace, policy, blocks, reuse):
    """Every token is made; shares are the two set ones or, lent, all; prompts begin in order."""
    latency = toy_latency(shared_slowdown=1.5)
    result = serve(policy, trace, latency=latency, blocks=blocks, block_tokens=4, reuse_preempted=reuse)
    assert result.records.generated_tokens.tolist() == [output for *_, output in trace]
    share = policy.decode_sms or 5
    prefill = result.steps.prefill_tokens > 0
    own = np.where(prefill, 10 - share, share)
    assert ((result.steps.sms == own) | (policy.lend & (result.steps.sms == 10))).all()
    assert not (prefill & (result.steps.decode_requests > 0)).any()
    assert result.steps.decode_requests.max(initial=0) <= policy.max_resident
    assert (np.diff(result.records.scheduled_s) >= 0).all()
    assert result.steps.layers[prefill].max() == min(4, policy.layers_per_step or 4)


def test_what_a_lone_request_loses_to_a_share_is_lent():
    """On the A100 model a lone prompt takes longer on a share, and no longer when the rest is lent."""
    latency, row = roofline("Llama-3.1-8B", "A100-80G"), [(0.0, 4000, 20)]
    kept, lent = (serve(StaticSplit(lend=lend), row, latency=latency, blocks=2000) for lend in (False, True))
    assert lent.records.first_token_s[0] < 0.6 * kept.records.first_token_s[0]
    assert lent.records.last_token_s[0] < kept.records.last_token_s[0]
