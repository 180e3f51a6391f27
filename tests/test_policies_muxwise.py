"""MuxWise on a device where work takes time in inverse proportion to its SMs, and suspended batches in the loop.

Ten SMs, shares of 2, 4, 6 and 8. A prompt token takes 0.1 SM-seconds through 4 layers, a decode step 1 SM-second.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from policies import SLO, Chunk, Decision, MuxWise, Step
from policies.muxwise import fitted
from policies.phases import DECODE, PREFILL
from policies.twolanes import TwoLanes
from profiler import roofline
from profiler.work import Work
from real.serving import check_policy
from sim import PolicyError
from tests.test_policies_bullet import LATENCY, FakeLane, FakeView, Held, decoding, held
from tests.toys import serve, timeline

POLICY = MuxWise(sm_step=2)


def decided(policy: MuxWise = POLICY, **view: Any) -> dict[str, tuple[int, Any, int | None]]:
    """{lane: (SMs, chunked requests or decode, layers)}."""
    decision: Decision = policy.decide(FakeView(**view))  # type: ignore[arg-type]
    return {
        step.lane: (step.sms, "decode" if step.decode else [chunk.request.index for chunk in step.prefill], step.layers)
        for step in decision.steps
    }


@pytest.mark.parametrize(("tpot_s", "sms"), [(0.61, 2), (0.59, 4), (0.25, 6), (0.151, 8), (0.1, 8)])
def test_decode_gets_the_fewest_sms_that_hold_its_slo_at_worst(tpot_s: float, sms: int):
    """A step on n takes 1/n s, 1.2/n with the device's slowdown of 20 %; 8 is the most it can have."""
    view = {"slo": SLO(tpot_s=tpot_s), "waiting": held(Held(index=0, prompt_tokens=36)), "decoding": decoding()}
    steps = decided(**view)
    assert steps[DECODE] == (sms, "decode", None)
    assert steps[PREFILL][0] == 10 - sms
    calm = decided(MuxWise(sm_step=2, slowdown=0.0), **{**view, "slo": SLO(tpot_s=0.51)})
    assert calm[DECODE][0] == 2


@pytest.mark.parametrize(("tokens", "layers"), [(36, 2), (90, 1), (10, 4), (1, 4)])
def test_so_many_layers_as_a_decode_step_hides(tokens: int, layers: int):
    """On 4 SMs a step takes 0.25 s; 36 tokens on 6 take 0.6 s: ceil(0.25 * 4 / 0.6) of 4 layers."""
    waiting = held(Held(index=0, prompt_tokens=tokens))
    steps = decided(slo=SLO(tpot_s=0.35), waiting=waiting, decoding=decoding())
    assert steps[PREFILL] == (6, [0], layers)


def test_a_group_that_ends_early_is_followed_by_one_for_the_rest_of_the_step():
    """0.15 of 0.25 s are left, and a layer takes 0.15 s."""
    request = Held(index=0, prompt_tokens=36)
    lane = FakeLane(batch=(Chunk(request, 36),), layers_done=1)
    lanes = {PREFILL: lane, DECODE: FakeLane(busy=True, sms=4, started_s=0.0, predicted_s=0.25)}
    view = {"slo": SLO(tpot_s=0.35), "prefilling": held(request), "decoding": decoding(), "lanes": lanes}
    memo = POLICY.decide(FakeView(slo=SLO(tpot_s=0.35), waiting=held(request), decoding=decoding())).memo  # type: ignore[arg-type]
    assert decided(**view, now_s=0.101, memo=memo) == {PREFILL: (6, [0], 1)}
    assert decided(**view, now_s=0.0, memo=memo) == {PREFILL: (6, [0], 2)}


ROWS = [(0.0, 4, 6), (0.05, 60, 1), (0.35, 3, 1), (0.58, 2, 1)]


def test_a_shorter_prompt_goes_before_a_longer_one_once():
    """TPOT 0.35 s: 4 SMs to decode, steps of 0.25 s; prefill has 6, 16.7 ms a token.

    decode   0.04-0.14 A alone, then 0.14-0.39-0.64-0.89-1.14
    prefill  0.00-0.04 A   0.05-0.30-0.55 two of four layers of B   0.55-0.60 C, before B's others
             0.60-0.85-1.10 those others, though D is shorter still   1.10-1.13 D
    """
    result = serve(POLICY, ROWS, latency=LATENCY, slo=SLO(tpot_s=0.35))
    prefills = [row for row in timeline(result, "sms", "layers", "prefill_tokens") if row[2] == PREFILL]
    assert prefills == [
        (0.0, 0.04, PREFILL, 10, 4, 4),
        (0.05, 0.3, PREFILL, 6, 1, 60),
        (0.3, 0.55, PREFILL, 6, 1, 60),
        (0.55, 0.6, PREFILL, 6, 4, 3),
        (0.6, 0.85, PREFILL, 6, 1, 60),
        (0.85, 1.1, PREFILL, 6, 1, 60),
        (1.1, 1.133333333, PREFILL, 6, 4, 2),
    ]
    decodes = [(start, end, sms) for start, end, lane, sms in timeline(result, "sms") if lane == DECODE]
    ends = [0.14, 0.39, 0.64, 0.89, 1.14]
    assert decodes == [(0.04, 0.14, 10), *((start, end, 4) for start, end in pairwise(ends))]
    plain = serve(MuxWise(sm_step=2, preempt=False), ROWS, latency=LATENCY, slo=SLO(tpot_s=0.35))
    assert plain.records.first_token_s[1] == pytest.approx(1.05)


@pytest.mark.parametrize("sms", [14, 54, 94])
def test_the_forms_fit_the_latency_model(sms: int):
    """On the A100 model, between the points of the grid: within a third, and a fifth on average."""
    latency = roofline("Llama-3.1-8B", "A100-80G")
    fit, errors = fitted(latency, sms), []
    for shape in ((512, 0), (2000, 0), (8000, 0), (700, 3000), (2000, 6000)):
        truth = latency.estimate(Work(prefill=(shape,)), sms).seconds
        errors.append(abs(fit.prefill_s((shape,)) / truth - 1))
    for requests, context in ((4, 500), (16, 2000), (64, 1500), (100, 400)):
        work = Work(decode_requests=requests, decode_context_tokens=requests * context)
        errors.append(abs(fit.decode_s(work) / latency.estimate(work, sms).seconds - 1))
    assert max(errors) < 1 / 3
    assert sum(errors) / len(errors) < 1 / 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspends(TwoLanes):
    """Begins request 0, then suspends whatever is in progress for the next waiting request, if there is one."""

    name: ClassVar[str] = "suspends"
    router: Any = None

    def decide(self, view: Any) -> Decision:
        lane = view.lanes[PREFILL]
        if lane.busy:
            return Decision()
        waiting = next(iter(view.waiting.values()), None)
        if waiting is None and not lane.batch:
            return Decision()
        chunks = lane.batch if waiting is None else (Chunk(waiting, waiting.prefill_tokens),)
        return Decision((Step(PREFILL, 10, chunks, 1, suspend=waiting is not None and waiting.index > 0),))


def test_a_suspended_batch_keeps_its_layers():
    """A (8 tokens) has one of four layers done at 0.02; B (4) takes four of 0.01 s; A's other three follow."""
    result = serve(Suspends(), [(0.0, 8, 1), (0.01, 4, 1)], latency=LATENCY)
    assert timeline(result, "prefill_tokens") == [
        (0.0, 0.02, "prefill", 8),
        *((round(0.02 + 0.01 * i, 9), round(0.03 + 0.01 * i, 9), "prefill", 4) for i in range(4)),
        *((round(0.06 + 0.02 * i, 9), round(0.08 + 0.02 * i, 9), "prefill", 8) for i in range(3)),
    ]


@pytest.mark.parametrize("rows", [[(0.0, 8, 1), (0.01, 4, 1), (0.025, 2, 1)], [(0.0, 8, 1), (0.5, 4, 1)]])
def test_only_a_batch_in_progress_is_suspended_and_only_one(rows):
    with pytest.raises(
        PolicyError, match="nothing to suspend on lane 'prefill', or a batch is suspended there already"
    ):
        serve(Suspends(), rows, latency=LATENCY)


def test_a_device_refuses_to_put_a_batch_aside():
    with pytest.raises(
        ValueError, match="muxwise is simulated only: no device runner here puts a batch aside; set pre"
    ):
        check_policy(MuxWise())
    check_policy(MuxWise(preempt=False))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"sm_step": 0}, "muxwise: sm_step is 0; it must be 1 or more"),
        ({"batch_tokens": 0}, "muxwise: batch_tokens is 0; it must be 1 or more"),
        ({"slowdown": -0.1}, "muxwise: slowdown is -0.1; it must be 0 or more, or None for the device's"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, complaint):
    with pytest.raises(ValueError, match=f"^{complaint}"):
        MuxWise(**settings)
