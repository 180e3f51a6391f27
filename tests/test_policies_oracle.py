"""The oracle: its look ahead and order against hand counts and brute force, its choices one by one, and that it leads.

Ten SMs on which work takes time in inverse proportion to them: a prompt token 10 ms and a decode step 100 ms on all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import SLO, Decision, Oracle
from policies.forecast import most_on_time
from policies.phases import DECODE, PREFILL
from policies.rollout import Decodes, PromptBatch, Rollout
from profiler.work import Work
from real.serving import check_policy
from sim.config import PolicySettings, RunConfig
from sim.scenarios import PAPER_SLOS
from sim.simulate import measure
from tests.test_policies_bullet import FakeLane, FakeView, Held, held
from tests.toys import serve, token_times


@st.composite
def jobs(draw: st.DrawFn) -> list[tuple[float, float]]:
    return draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 25)), max_size=6))


def on_time(order: Sequence[tuple[float, float]]) -> int:
    ends = accumulate(seconds for seconds, _ in order)
    return sum(end <= due for end, (_, due) in zip(ends, order, strict=True))


@settings(max_examples=150, deadline=None)
@given(jobs())
def test_no_order_gets_more_jobs_done_in_time(traffic):
    order = most_on_time(traffic)
    assert sorted(order) == list(range(len(traffic)))
    assert on_time([traffic[place] for place in order]) == max(on_time(other) for other in permutations(traffic))


def array(*values: float) -> Any:
    return np.array(values, dtype=np.float64)


def decodes(*rows: tuple[float, float]) -> Decodes:
    """Of (steps left, due) rows, each with ten tokens of context."""
    steps, due_s = (array(*column) for column in zip(*rows, strict=True))
    return Decodes(steps, due_s, steps, np.full(len(rows), 10.0))


def batch(whole_s: float, first_due_s: float, steps: float, spell_s: float, tokens: float = 10.0) -> PromptBatch:
    one = array(steps)
    return PromptBatch(whole_s, array(first_due_s), one, one, array(tokens), array(spell_s), array(1e9))


def rollout(*batches: PromptBatch, free_tokens: float = 1000.0) -> Rollout:
    """Steps of 0.1 s on a share and of 0.05 s alone."""
    return Rollout(batches, free_tokens, lambda requests, context, share: 0.05 if share is None else 0.1)


def test_a_look_ahead_counts_whole_steps():
    """Three steps beside a prefill of 0.25 s, until 0.3; then steps of 0.05 s.

    Of those decoding: 2 steps by 0.2 held, by 0.19 not; 5 steps are over at 0.4. The one that joins at 0.25 waits for
    the third step and has its next token at 0.35.
    """
    running = decodes((2, 0.21), (2, 0.19), (5, 0.41), (5, 0.39))
    assert rollout(batch(0.25, 0.3, 1, 0.11)).met(running, 4, 1.0, 0.0, 0.0) == 3
    assert rollout(batch(0.25, 0.3, 1, 0.09)).met(running, 4, 1.0, 0.0, 0.0) == 2
    assert rollout(batch(0.25, 0.2, 1, 0.11)).met(running, 4, 1.0, 0.0, 0.0) == 2
    assert rollout(batch(0.25, 0.3, 0, 0.0)).met(running, 4, 1.0, 0.0, 0.0) == 3


def test_pace_and_offsets_move_both_phases():
    """Prefill twice as slow, from 0.1: 0.6. Decode from 0.2: four steps to 0.6."""
    running = decodes((4, 0.61), (4, 0.59))
    assert rollout(batch(0.25, 0.61, 0, 0.0)).met(running, 4, 2.0, 0.1, 0.2) == 2
    assert rollout(batch(0.25, 0.59, 0, 0.0)).met(running, 4, 2.0, 0.1, 0.2) == 1


def test_a_batch_without_kv_waits_for_answers_to_end():
    """100 tokens are free once the first batch runs, the second needs 105: one decode of 10 gives them back.

    It has 4 steps left: one beside the first batch until 0.1, three alone until 0.25. The second ends at 0.35.
    """
    running = decodes((4, 1.0))
    for due_s, met in ((0.36, 3), (0.34, 2)):
        ahead = rollout(batch(0.1, 1.0, 0, 0.0), batch(0.1, due_s, 0, 0.0, tokens=105.0), free_tokens=100.0)
        assert ahead.met(running, 4, 1.0, 0.0, 0.0) == met


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 20), st.floats(0, 2)), min_size=1, max_size=6), st.floats(0.01, 1))
def test_no_way_on_meets_more_than_the_bound(rows, whole_s):
    ahead, running = rollout(batch(whole_s, 0.5, 3, 0.3)), decodes(*rows)
    assert ahead.met(running, 4, 1.0, 0.0, 0.0) <= ahead.bound(running)


@dataclass(slots=True, kw_only=True)
class TrueFakeView(FakeView):
    """``answers`` are the true lengths, of ten tokens where nothing is said."""

    answers: dict[int, int] = field(default_factory=dict)

    def output_tokens(self, request: Held) -> int:
        return self.answers.get(request.index, 10)


def decided(policy: Oracle, **view: Any) -> dict[str, int]:
    """{lane: SMs}."""
    decision: Decision = policy.decide(TrueFakeView(**view))  # type: ignore[arg-type]
    return {step.lane: step.sms for step in decision.steps}


WAITING = held(Held(index=0, prompt_tokens=100))
EXACT = Oracle(margin=1.0, layers_per_step=1)


def running(tokens: int = 1) -> dict[int, Held]:
    return held(Held(index=9, prefilled_tokens=10, generated_tokens=tokens, first_token_s=0.0))


def test_alone_each_phase_has_all_sms():
    slo = SLO(ttft_s=1.0, tpot_s=0.2)
    assert decided(EXACT, slo=slo, waiting=WAITING) == {PREFILL: 10}
    assert decided(EXACT, slo=slo, decoding=running()) == {DECODE: 10}


def test_decode_pauses_for_a_first_token_that_is_due():
    """1 s of prefill is due in 1.02 s; nine steps of 0.1 s are due in 2.7 s. Side by side one misses."""
    view = {"slo": SLO(ttft_s=1.02, tpot_s=0.3), "waiting": WAITING, "decoding": running()}
    assert decided(EXACT, **view) == {PREFILL: 10}
    assert set(decided(Oracle(margin=1.0, layers_per_step=1, pause=False), **view)) == {DECODE, PREFILL}


def test_prefill_pauses_for_a_last_token_that_is_due():
    """One step is due in 0.11 s and takes that on nine SMs, 0.1 s on ten; the prompt has time."""
    view = {"slo": SLO(ttft_s=9.0, tpot_s=0.105), "waiting": WAITING, "decoding": running(), "answers": {9: 2}}
    assert decided(EXACT, **view) == {DECODE: 10}


def test_a_step_known_to_be_the_last_but_many_may_be_slow():
    """Both are met with any share that lets nine steps end in 9 s and the prompt in 2 s: decode has some, not most."""
    view = {"slo": SLO(ttft_s=2.0, tpot_s=1.0), "waiting": WAITING, "decoding": running()}
    shares = decided(EXACT, **view)
    assert shares.get(PREFILL, 0) >= 5


def test_an_answer_too_short_to_wait_begins_after_the_step_in_flight():
    """0.2 s are left of the step; a second token is due 0.15 s after the first. Ten tokens have 1.35 s."""
    busy = FakeLane(busy=True, sms=5, work=Work((), 1, 11), started_s=0.0, predicted_s=0.2)
    lanes = {PREFILL: FakeLane(), DECODE: busy}
    view = {"slo": SLO(ttft_s=9.0, tpot_s=0.15), "decoding": running(), "lanes": lanes}
    waiting = held(Held(index=0, prompt_tokens=2))
    assert decided(EXACT, **view, waiting=waiting, answers={0: 2}) == {}
    assert set(decided(EXACT, **view, waiting=waiting, answers={0: 10})) == {PREFILL}
    assert set(decided(Oracle(lengths=False), **view, waiting=waiting, answers={0: 2})) == {PREFILL}


def test_the_hopeless_wait_until_the_others_are_through():
    """Two prompts of 1 s due at 0.9 and 1.1 s: the second goes first, and meets its limit."""
    rows = [(0.0, 100, 1), (0.0, 99, 1)]
    result = serve(Oracle(batch_tokens=1), rows, slo=SLO(ttft_s=1.0 - 1e-9))
    assert token_times(result) == [[1.99], [0.99]]
    assert token_times(serve(Oracle(batch_tokens=1, order=False), rows, slo=SLO(ttft_s=0.9999)))[0] == [1.0]


def attainment(workload: str, rate: float, requests: int, policy: str, **settings: Any) -> float:
    config = RunConfig(
        trace=f"workload:{workload}",
        rate=rate,
        requests=requests,
        policy=PolicySettings(name=policy, settings=settings),
        model="Llama-3.1-8B",
        device="A100-80G",
        slo=PAPER_SLOS[workload],
    )
    found = measure(config).attainment
    assert found is not None
    return found


@pytest.mark.parametrize(("workload", "rate", "requests"), [("sharegpt", 34.0, 250), ("code", 7.5, 120)])
def test_it_leads_bullet_and_every_fixed_split(workload: str, rate: float, requests: int):
    best = attainment(workload, rate, requests, "oracle")
    assert best >= attainment(workload, rate, requests, "bullet")
    for decode_sms in (12, 36, 60, 84):
        for lend in (False, True):
            assert best >= attainment(workload, rate, requests, "static-split", decode_sms=decode_sms, lend=lend)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"horizon": 0}, "oracle: horizon is 0; it must be 1 or more"),
        ({"decode_sms": 0}, "oracle: decode_sms is 0; it must be 1 or more"),
        ({"margin": 1.2}, "oracle: margin is 1.2; it must be above 0 and at most 1"),
        ({"margin": math.nan}, "oracle: margin is nan; it must be above 0 and at most 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, complaint):
    with pytest.raises(ValueError, match=f"^{complaint}"):
        Oracle(**settings)


def test_a_share_of_all_sms_is_refused():
    with pytest.raises(ValueError, match="decode_sms is 10 of an instance's 10 SMs; leave one or more to each phase"):
        serve(Oracle(decode_sms=10), [(0.0, 5, 2)])


def test_a_device_refuses_it():
    with pytest.raises(ValueError, match="policy oracle needs to know how long answers will be, which a device cannot"):
        check_policy(Oracle())
