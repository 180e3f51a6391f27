"""Bullet's decisions one by one, on a device where work takes time in inverse proportion to its SMs.

Ten SMs. A prompt token takes 0.1 SM-seconds through all 4 layers, a decode step 1 SM-second whatever its batch: on all
SMs 10 ms a token and 100 ms a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import SLO, Bullet, Chunk, Decision
from policies.api import Observation, Outcome
from policies.bullet_eager import BulletEager
from policies.bulletterms import State
from policies.forecast import TtftForecast, fewest, missed, percentile
from policies.phases import DECODE, PREFILL
from policies.recalibration import UNCORRECTED, WEIGHT, refreshed
from profiler.constant import ConstantRateModel
from profiler.latency import Estimate
from profiler.work import Work
from sim.outcomes import Outcomes
from tests.toys import TOY_DEVICE, TOY_MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class InverseModel(ConstantRateModel):
    """The constant-rate model on all SMs, in inverse proportion on fewer."""

    def estimate(self, work: Work, sms: int, beside: Work | None = None, beside_sms: int = 0) -> Estimate:
        seconds, source = ConstantRateModel.estimate(self, work, sms, beside, beside_sms)
        return Estimate(seconds * self.device.sms / sms, source)

    def ceilings(self, sms: int) -> tuple[float, float]:
        """Half of the SMs draw all of the bandwidth."""
        return 1.0, min(1.0, sms / self.device.bandwidth_knee_sms)


LATENCY = InverseModel(model=TOY_MODEL, device=TOY_DEVICE, prefill_token_s=0.01, decode_step_s=0.1)


@dataclass(slots=True, kw_only=True)
class Held:
    """A request as a view shows it."""

    index: int
    prompt_tokens: int = 10
    arrival_s: float = 0.0
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    shared_blocks: int = 0
    generated_tokens: int = 0
    first_token_s: float | None = None

    @property
    def prefill_tokens(self) -> int:
        return self.prompt_tokens

    @property
    def context_tokens(self) -> int:
        return self.prefilled_tokens + self.generated_tokens


@dataclass(slots=True, kw_only=True)
class FakeLane:
    busy: bool = False
    sms: int = 10
    work: Work | None = None
    started_s: float = 0.0
    predicted_s: float = 0.0
    batch: tuple[Chunk, ...] = ()
    layers_done: int = 0
    suspended: tuple[Chunk, ...] = ()


@dataclass(slots=True, kw_only=True)
class FakeView:
    """A view made by hand; ``slack_s`` is what its decoding requests can bear."""

    slo: SLO
    now_s: float = 0.0
    waiting: dict[int, Held] = field(default_factory=dict)
    prefilling: dict[int, Held] = field(default_factory=dict)
    decoding: dict[int, Held] = field(default_factory=dict)
    lanes: dict[str, FakeLane] = field(default_factory=lambda: {PREFILL: FakeLane(), DECODE: FakeLane()})
    slack_s: float = 1.0
    memo: State | None = None
    outcomes: list[Any] = field(default_factory=list)
    observed: list[Observation] = field(default_factory=list)
    free_blocks: int = 1000
    sms: int = 10
    latency: ConstantRateModel = LATENCY
    decode_block_demand: int = 0
    block_tokens: int = 16
    total_blocks: int = 1000

    @property
    def decode_context_tokens(self) -> int:
        return 10 * len(self.decoding)

    def decode_slack_s(self, share: float) -> float:
        return self.slack_s


def held(*requests: Held) -> dict[int, Held]:
    return {request.index: request for request in requests}


def decoding(count: int = 1) -> dict[int, Held]:
    return held(
        *(Held(index=100 + i, prefilled_tokens=10, generated_tokens=1, first_token_s=0.0) for i in range(count))
    )


EAGER = BulletEager(layers_per_step=1, pause_decode=False)


def decide(view: FakeView, policy: Bullet | None = None) -> dict[str, tuple[int, Any]]:
    """{lane: (SMs, chunked requests or decode)} of what Bullet launches."""
    decision: Decision = (policy or Bullet(layers_per_step=1, pause_decode=False)).decide(view)  # type: ignore[arg-type]
    return {
        step.lane: (step.sms, "decode" if step.decode else [chunk.request.index for chunk in step.prefill])
        for step in decision.steps
    }


def test_alone_each_phase_has_all_sms():
    assert decide(FakeView(slo=SLO(ttft_s=1, tpot_s=1), waiting=held(Held(index=0)))) == {PREFILL: (10, [0])}
    assert decide(FakeView(slo=SLO(ttft_s=1, tpot_s=1), decoding=decoding())) == {DECODE: (10, "decode")}


def test_decode_gets_the_fewest_sms_that_hold_its_tpot():
    """A step on n SMs takes 1/n s; 0.3 s need 4. Two more requests wait, so prefill is not about to end."""
    queue = held(*(Held(index=i, prompt_tokens=500) for i in range(3)))
    view = FakeView(slo=SLO(ttft_s=100, tpot_s=0.3), waiting=queue, decoding=decoding())
    assert decide(view) == {DECODE: (4, "decode"), PREFILL: (6, [0])}


def test_slack_used_up_makes_the_limit_shorter_and_spare_slack_no_longer():
    queue = held(*(Held(index=i, prompt_tokens=500) for i in range(3)))
    short = FakeView(slo=SLO(ttft_s=100, tpot_s=0.3), waiting=queue, decoding=decoding(), slack_s=0.2)
    assert decide(short)[DECODE] == (5, "decode")
    spare = FakeView(slo=SLO(ttft_s=100, tpot_s=0.3), waiting=queue, decoding=decoding(), slack_s=9.0)
    assert decide(spare)[DECODE] == (4, "decode")


def test_tpot_lost_and_ttft_held_shrinks_prefill():
    """No step is short enough. A's 100 tokens need 10 SM-seconds: 4 SMs hold 2.5 s, and decode takes the other 6."""
    queue = held(Held(index=0, prompt_tokens=100))
    slo = SLO(ttft_s=2.5, tpot_s=0.3)
    view = FakeView(slo=slo, waiting=queue, decoding=decoding(), slack_s=-1.0)
    assert decide(view) == {DECODE: (6, "decode"), PREFILL: (4, [0])}


def test_prefill_gives_up_no_more_than_decode_can_use():
    """The same, with a decode step that no SMs beyond the third make shorter."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Saturating(InverseModel):
        def estimate(self, work: Work, sms: int, beside: Work | None = None, beside_sms: int = 0) -> Estimate:
            return InverseModel.estimate(self, work, min(sms, 3) if work.decode_requests else sms, beside, beside_sms)

    latency = Saturating(model=TOY_MODEL, device=TOY_DEVICE, prefill_token_s=0.01, decode_step_s=0.1)
    queue = held(Held(index=0, prompt_tokens=100))
    view = FakeView(slo=SLO(ttft_s=2.5, tpot_s=0.3), waiting=queue, decoding=decoding(), slack_s=-1.0, latency=latency)
    assert decide(view) == {DECODE: (3, "decode"), PREFILL: (7, [0])}


def test_neither_held_balances_what_can_still_be_changed():
    """TTFT is lost for A, which nine SMs could still save: 10 SM-seconds in 1.2 s of limit. TPOT's limit is 0.3 s.

    With n SMs for decode: TPOT ratio (1/n) / 0.3, TTFT ratio (10 / (10 - n)) / 1.2, at least 1. n = 1: 3.3 and 1;
    n = 2: 1.67 and 1.04; n = 3: 1.11 and 1.19; n = 4: 0.83 and 1.39. The least maximum is at 3.
    """
    queue = held(Held(index=0, prompt_tokens=100))
    view = FakeView(slo=SLO(ttft_s=1.2, tpot_s=0.3), waiting=queue, decoding=decoding(), slack_s=-1.0)
    view.memo = State(5, 5)
    assert decide(view) == {DECODE: (3, "decode"), PREFILL: (7, [0])}


def test_a_lost_ttft_does_not_starve_decode():
    """A waited past its limit already: nothing saves it, so TPOT to come is held (4 SMs for 0.3 s), not given up."""
    queue = held(Held(index=0, prompt_tokens=100, arrival_s=-50.0))
    view = FakeView(slo=SLO(ttft_s=1.2, tpot_s=0.3), waiting=queue, decoding=decoding(), slack_s=-1.0)
    view.memo = State(5, 5)
    assert decide(view) == {DECODE: (4, "decode"), PREFILL: (6, [0])}


def test_decode_pauses_while_a_ttft_is_in_danger_and_its_own_slack_allows_it():
    queue = held(Held(index=0, prompt_tokens=100))
    policy = Bullet(layers_per_step=1)
    rich = FakeView(slo=SLO(ttft_s=0.9, tpot_s=0.5), waiting=queue, decoding=decoding(), slack_s=5.0)
    assert decide(rich, policy) == {PREFILL: (10, [0])}
    # A layer of A takes 0.25 s on all SMs, and a step at least 0.5 s with the fewest SMs: 0.6 s of slack is too little.
    poor = FakeView(slo=SLO(ttft_s=0.9, tpot_s=0.5), waiting=queue, decoding=decoding(), slack_s=0.6)
    assert DECODE in decide(poor, policy)


def test_decode_pauses_for_a_queue_too_unless_told_otherwise():
    """Two of 100 tokens: the second follows the first's batch. A layer takes 0.25 s, a step at most 0.5 s."""
    queue = held(Held(index=0, prompt_tokens=100), Held(index=1, prompt_tokens=100))
    view = FakeView(slo=SLO(ttft_s=100, tpot_s=0.5), waiting=queue, decoding=decoding(), slack_s=5.0)
    assert decide(view, Bullet(layers_per_step=1)) == {PREFILL: (10, [0])}
    assert DECODE in decide(view, Bullet(layers_per_step=1, pause_on_queue=False))
    view.slack_s = 0.6
    assert DECODE in decide(view, Bullet(layers_per_step=1))


def test_without_partition_both_have_all_sms():
    queue = held(Held(index=0, prompt_tokens=100))
    view = FakeView(slo=SLO(ttft_s=100, tpot_s=0.3), waiting=queue, decoding=decoding())
    naive = Bullet(layers_per_step=1, partition=False, reorder=False, pause_decode=False)
    assert decide(view, naive) == {DECODE: (10, "decode"), PREFILL: (10, [0])}


def test_a_step_that_outlasts_prefill_gets_more_sms():
    """The last layer of A is about to run (0.25 SM-s a token-layer), nobody waits: decode ends about when it does."""
    request = Held(index=0, prompt_tokens=100)
    lanes = {PREFILL: FakeLane(batch=(Chunk(request, 100),), layers_done=3), DECODE: FakeLane()}
    follows = held(Held(index=1), Held(index=2))
    slo = SLO(ttft_s=100, tpot_s=1.0)
    alone = FakeView(slo=slo, prefilling=held(request), decoding=decoding(), lanes=lanes)
    crowded = FakeView(slo=slo, prefilling=held(request), decoding=decoding(), lanes=lanes, waiting=follows)
    assert decide(crowded)[DECODE][0] == 1
    assert decide(alone)[DECODE][0] > 1


def test_decode_lasts_no_longer_than_the_prefill_it_makes_room_for():
    """B's 10 tokens wait behind A's last layer: 0.25 and 1 SM-second. A step of the SLO's 9 s would outlast them."""
    request = Held(index=0, prompt_tokens=100)
    lanes = {PREFILL: FakeLane(batch=(Chunk(request, 100),), layers_done=3), DECODE: FakeLane()}
    slo = SLO(ttft_s=100, tpot_s=9.0)
    short = FakeView(slo=slo, prefilling=held(request), decoding=decoding(), lanes=lanes, waiting=held(Held(index=1)))
    short.memo = State(10, 10)
    # The queue takes 0.25 + 0.1 s on all SMs, so 3 SMs (0.33 s a step); a long one lets the step take its time.
    assert decide(short, EAGER)[DECODE] == (3, "decode")
    assert decide(short)[DECODE] == (1, "decode")
    long = FakeView(slo=slo, prefilling=held(request), decoding=decoding(), lanes=lanes)
    long.waiting = held(Held(index=1, prompt_tokens=2000))
    long.slack_s, long.memo = 100.0, State(10, 10)
    assert decide(long, EAGER)[DECODE] == (1, "decode")


def test_decode_hurries_while_somebody_waits_for_kv():
    """Nothing is gained by slowing decode for a prefill that cannot start: five SMs draw all the bandwidth here."""
    request = Held(index=0, prompt_tokens=2000)
    lanes = {PREFILL: FakeLane(batch=(Chunk(request, 2000),), layers_done=1), DECODE: FakeLane()}
    waiting = held(Held(index=1, prompt_tokens=2000))
    view = FakeView(slo=SLO(ttft_s=1e3, tpot_s=1.0), prefilling=held(request), decoding=decoding(), lanes=lanes)
    view.waiting, view.memo = waiting, State(5, 5)
    assert decide(view, EAGER)[DECODE] == (1, "decode")
    view.free_blocks = 10
    assert decide(view, EAGER)[DECODE] == (5, "decode")
    assert decide(view)[DECODE] == (1, "decode")


def test_an_unreachable_tpot_does_not_leave_prefill_a_granule():
    """Decode gets no shorter beyond three SMs and never reaches 1 ms: prefill keeps the other seven."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Saturating(InverseModel):
        def estimate(self, work: Work, sms: int, beside: Work | None = None, beside_sms: int = 0) -> Estimate:
            return InverseModel.estimate(self, work, min(sms, 3) if work.decode_requests else sms, beside, beside_sms)

    latency = Saturating(model=TOY_MODEL, device=TOY_DEVICE, prefill_token_s=0.01, decode_step_s=0.1)
    queue = held(Held(index=0, prompt_tokens=100, arrival_s=-50.0))
    slo = SLO(ttft_s=1.2, tpot_s=0.001)
    view = FakeView(slo=slo, waiting=queue, decoding=decoding(), slack_s=-1.0, latency=latency)
    assert decide(view) == {DECODE: (3, "decode"), PREFILL: (7, [0])}


def test_without_slos_nobody_overtakes_and_decode_never_pauses():
    queue = held(Held(index=0, prompt_tokens=100), Held(index=1, prompt_tokens=1))
    policy = Bullet(layers_per_step=1, batch_fill=0.01)
    assert decide(FakeView(slo=SLO(tpot_s=1), waiting=queue), policy) == {PREFILL: (10, [0])}
    assert decide(FakeView(slo=SLO(ttft_s=100, tpot_s=1), waiting=queue), policy) == {PREFILL: (10, [1])}
    view = FakeView(slo=SLO(ttft_s=0.01), waiting=queue, decoding=decoding(), slack_s=float("inf"))
    assert DECODE in decide(view, policy)


def test_a_batch_in_progress_goes_on_before_anybody_else_starts():
    request = Held(index=0, prompt_tokens=100)
    lanes = {PREFILL: FakeLane(batch=(Chunk(request, 100),), layers_done=2), DECODE: FakeLane()}
    view = FakeView(
        slo=SLO(ttft_s=1, tpot_s=1), prefilling=held(request), waiting=held(Held(index=1, prompt_tokens=1)), lanes=lanes
    )
    assert decide(view) == {PREFILL: (10, [0])}


def test_while_a_decode_step_runs_prefill_takes_what_it_leaves():
    lanes = {PREFILL: FakeLane(), DECODE: FakeLane(busy=True, sms=2)}
    view = FakeView(slo=SLO(ttft_s=100, tpot_s=0.3), waiting=held(Held(index=0)), decoding=decoding(), lanes=lanes)
    assert decide(view) == {PREFILL: (8, [0])}


def test_prompts_wait_for_kv_and_for_places():
    queue = held(Held(index=0, prompt_tokens=40), Held(index=1, prompt_tokens=10))
    slo = SLO(ttft_s=100, tpot_s=1)
    policy = Bullet(batch_fill=1.0, reorder=False)
    # A constant rate attains the same FLOP/s at any size, so a batch is one request.
    assert decide(FakeView(slo=slo, waiting=queue, free_blocks=3), policy) == {PREFILL: (10, [0])}
    assert decide(FakeView(slo=slo, waiting=queue, free_blocks=2), policy) == {}
    full = Bullet(max_resident=1)
    assert decide(FakeView(slo=slo, waiting=queue, decoding=decoding()), full) == {DECODE: (10, "decode")}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"layers_per_step": 0}, "layers_per_step is 0"),
        ({"percentile": 1.5}, "percentile is 1.5"),
        ({"batch_fill": 0.0}, "batch_fill is 0.0"),
        ({"sm_step": 0}, "sm_step is 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], complaint: str):
    with pytest.raises(ValueError, match=complaint):
        Bullet(**settings)


@given(st.integers(1, 9), st.integers(1, 60), st.integers(1, 7), st.integers(-5, 80), st.integers(0, 80))
def test_fewest_is_what_a_scan_finds(lowest: int, span: int, step: int, threshold: int, guess: int):
    """Whatever the guess, the smallest candidate that is enough, or None."""
    highest = lowest + span
    candidates = range(lowest, highest + 1, step)
    expected = next((value for value in candidates if value >= threshold), None)
    assert fewest(lowest, highest, step, lambda value: value >= threshold, guess) == expected


def observation(finish_s: float, measured_s: float, *, prefill: bool = False) -> Observation:
    work = Work(prefill=((10, 0),)) if prefill else Work(decode_requests=1, decode_context_tokens=1)
    return Observation("lane", work, 10, None, 0, 1.0, measured_s, finish_s)


def test_alphas_count_each_finished_step_once():
    """By hand: 1 + w (1.5 - 1), then + w (2 - that), each phase by itself; also of steps that took equally long."""
    first = [observation(1.0, 1.5), observation(2.0, 3.0, prefill=True)]
    once = refreshed(UNCORRECTED, first)
    assert (once.prefill, once.decode) == (1 + 2 * WEIGHT, 1 + 0.5 * WEIGHT)
    assert refreshed(once, first) is once
    more = [*first, observation(3.0, 2.0), observation(4.0, 3.0, prefill=True)]
    prefill, decode = once.prefill + WEIGHT * (3.0 - once.prefill), once.decode + WEIGHT * (2.0 - once.decode)
    twice = refreshed(once, more)
    assert (twice.prefill, twice.decode, twice.latest) == (prefill, decode, more[-1])


def test_an_estimator_that_is_wrong_by_a_factor_is_corrected():
    """Steps take twice as long as predicted: 0.3 s need 7 SMs instead of 4, once alpha is near 2."""
    queue = held(*(Held(index=i, prompt_tokens=500) for i in range(3)))
    view = FakeView(slo=SLO(ttft_s=100, tpot_s=0.3), waiting=queue, decoding=decoding())
    view.observed = [observation(2.0 * i, 2.0) for i in range(1, 401)]
    assert decide(view)[DECODE] == (7, "decode")
    blind = Bullet(layers_per_step=1, pause_decode=False, recalibrate=False)
    assert decide(view, blind)[DECODE] == (4, "decode")


def test_percentile_is_the_nearest_rank():
    assert percentile([3, 1, 2], 0.9) == 3
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(1, 11), 0.9) == 9
    assert percentile([], 0.9) == float("-inf")


@given(st.lists(st.floats(0, 2) | st.just(1.0), max_size=30), st.lists(st.booleans(), max_size=9), st.floats(0.01, 1))
def test_a_limit_is_held_where_the_percentile_is_within_it(pending: list[float], settled: list[bool], share: float):
    """Counting those beyond the limit says the same as the percentile, which needs them in order."""
    forecast = TtftForecast(tuple((ratio, 0.0, 1.0) for ratio in pending), len(settled), sum(settled))
    ratios = [*pending, *(2.0 if missed else 0.0 for missed in settled)]
    assert forecast.held(share) == (percentile(ratios, share) <= 1)


@given(st.lists(st.tuples(st.floats(0, 2), st.none() | st.floats(0, 2)), max_size=250))
def test_what_has_been_missed_is_counted_as_it_comes_and_goes(ratios: list[tuple[float, float | None]]):
    outcomes = Outcomes()
    for ratio in ratios:
        outcomes.append(Outcome(*ratio))
    assert missed(outcomes) == missed(list(outcomes)) == missed([Outcome(*ratio) for ratio in ratios[-100:]])
