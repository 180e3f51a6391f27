"""NanoFlow, POD and streams without shares: on the toy device an overlap takes the longer of the two phases."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import Mock

import numpy as np
import pytest

from benchmarks import overlap
from policies import (
    ChunkedPrefill,
    Decision,
    NanoFlow,
    Pod,
    Policy,
    Step,
    UncappedStreams,
    View,
    load,
)
from profiler import Overlap, Work, fitted, roofline
from real.executor import DeviceExecutor
from real.lanes import Lanes
from real.residents import Residents
from real.serving import check_policy
from sim import Launch, PolicyError, RunResult
from sim.config import PolicySettings, RunConfig
from sim.metrics import Metrics
from sim.simulate import measure
from tests.toys import serve, timeline, token_times, toy_latency

TWO = Overlap(nano_batches=2)

ROWS = [(0.0, 5, 4), (0.1, 20, 1)]
"""A (5 tokens, 4 out) at 0, B (20, 1 out) at 0.1. A prompt token takes 10 ms, a decode step 100 ms."""


def steps(result: RunResult) -> list[tuple[float, float, int, int]]:
    """(start, end, prefill tokens, decoding requests) of each step."""
    return [(start, end, *rest) for start, end, _, *rest in timeline(result, "prefill_tokens", "decode_requests")]


@pytest.mark.parametrize("policy", [NanoFlow(budget_tokens=10), Pod(budget_tokens=10)], ids=lambda p: p.name)
def test_batches_are_those_of_chunked_prefill_and_end_sooner(policy: Policy):
    """9 tokens of B beside A's decode take 0.1 s, where chunked prefill takes 0.19; one phase alone gains nothing."""
    result = serve(policy, ROWS)
    assert steps(result) == [
        (0.0, 0.05, 5, 0),
        (0.05, 0.15, 0, 1),
        (0.15, 0.25, 9, 1),
        (0.25, 0.35, 9, 1),
        (0.35, 0.37, 2, 0),
    ]
    assert token_times(result) == [[0.05, 0.15, 0.25, 0.35], [0.37]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(NanoFlow):
    """NanoFlow that says in its memo what it has cut."""

    def decide(self, view: View) -> Decision:
        steps, _ = NanoFlow.decide(self, view)
        if steps:
            tokens = sum(chunk.tokens for chunk in steps[0].prefill)
            CUT[tokens, len(view.decoding)] = steps[0].overlap
        return Decision(steps)


CUT: dict[tuple[int, int], Overlap | None] = {}


def test_only_iterations_that_are_shorter_so_are_cut():
    """On an A100 a full iteration with many decodes is cut in two; a prompt alone, or a few decodes, is not."""
    CUT.clear()
    rows = [(0.001 * i, 500, 150) for i in range(300)] + [(60.0, 1000, 40)]
    serve(Noted(), rows, latency=fitted("Llama-3.1-8B", "A100-80G"), blocks=20_000, check=False)
    full = {overlap for (prefill, decodes), overlap in CUT.items() if prefill + decodes == 1024 and decodes > 100}
    assert full == {TWO}
    assert {overlap for (_, decodes), overlap in CUT.items() if decodes <= 1} == {None}


@pytest.mark.parametrize("name", ["nanoflow", "pod", "uncapped-streams"])
def test_repeated_decode_steps_are_those_of_asking_each_time(name: str):
    """The executor's short cut changes nothing, to the bit."""
    rows = [(0.02 * i, 40 + 37 * i % 900, 5 + 11 * i % 60) for i in range(40)]
    policy, latency = load(name), roofline("Llama-3.1-8B", "A100-80G")
    fast, plain = (serve(policy, rows, latency=latency, blocks=400, plain=plain) for plain in (False, True))
    assert fast.steps.end_s.tobytes() == plain.steps.end_s.tobytes()
    assert fast.records.preemptions.tolist() == plain.records.preemptions.tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlwaysCut(ChunkedPrefill):
    """Every step has an ``overlap``, also those that may be repeated; it does not say that devices cannot serve it."""

    name: ClassVar[str] = "always-cut"

    overlap: Any = TWO

    def decide(self, view: View) -> Decision:
        steps, memo = ChunkedPrefill.decide(self, view)
        return Decision(tuple(step._replace(overlap=self.overlap) for step in steps), memo)


def test_steps_that_the_loop_repeats_keep_their_overlap():
    """Eight requests decode by fours, and each half reads all weights: some 1.6 times as long."""
    latency, rows = roofline("Llama-3.1-8B", "A100-80G"), [(0.0, 60, 50)] * 8
    fast, plain = (serve(AlwaysCut(), rows, latency=latency, plain=plain) for plain in (False, True))
    uncut = serve(ChunkedPrefill(), rows, latency=latency)
    assert fast.steps.end_s.tobytes() == plain.steps.end_s.tobytes()
    assert (np.diff(fast.steps.end_s) > 1.5 * np.diff(uncut.steps.end_s)).all()


def test_an_overlap_that_is_none_is_refused():
    with pytest.raises(PolicyError, match=r"an overlap of 2; it is a profiler\.Overlap, or None"):
        serve(AlwaysCut(overlap=2), ROWS)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (NanoFlow(), "policy nanoflow is simulated only: no device runner here overlaps the kernels of nano-batches"),
        (Pod(), "policy pod is simulated only: no device runner here has its fused attention kernel"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_device_refuses_them(policy: Policy, reason: str):
    with pytest.raises(ValueError, match=f"^{reason}; take another policy$"):
        check_policy(policy)
    for served in ("prefill-first", "vllm-chunked", "sglang-chunked", "uncapped-streams"):
        check_policy(load(served))


def test_a_device_refuses_the_launch_of_a_policy_that_does_not_say_so():
    check_policy(AlwaysCut())
    latency, work = toy_latency(), Work((), 4, 40, overlap=TWO)
    step = Step("main", 10, decode=True, overlap=TWO)
    launch = Launch(0, 0, step, work, 0.0, None, 0, latency.estimate(work, 10), latency, 0, 0)
    residents = Residents(instances=1, slots=1, vocab=2, seed=0)
    executor = DeviceExecutor(Mock(spec=Lanes), residents, layers=4)
    with pytest.raises(PolicyError, match="a step whose kernels overlap, which no device here can launch; simulate"):
        executor.start(launch)


def test_both_streams_have_the_whole_device_and_slow_each_other():
    """A (12 tokens, 4 out) at 0, B (30, 2 out) at 0.3. Two that run together halve each other's pace.

    prefill  0.00-0.12 A                 0.30-0.72 B: 0.12 of its 0.3 s by 0.54, the rest alone
    decode   0.12-0.22-0.34 A, 0.02 s of it beside B; 0.34-0.54 A; 0.72-0.82 B
    """
    result = serve(UncappedStreams(), [(0.0, 12, 4), (0.3, 30, 2)], latency=toy_latency(shared_slowdown=2.0))
    assert timeline(result, "sms") == [
        (0.0, 0.12, "prefill", 10),
        (0.12, 0.22, "decode", 10),
        (0.22, 0.34, "decode", 10),
        (0.34, 0.54, "decode", 10),
        (0.3, 0.72, "prefill", 10),
        (0.72, 0.82, "decode", 10),
    ]


@pytest.mark.parametrize(
    ("name", "settings", "complaint"),
    [
        ("nanoflow", {"nano_batches": 9, "budget_tokens": 8}, "nano_batches is 9; it must be 2 or more, and no more"),
        ("nanoflow", {"nano_batches": 1}, "nanoflow: nano_batches is 1; it must be 2 or more"),
        ("nanoflow", {"budget_tokens": 0}, "nanoflow: budget_tokens is 0 and max_resident 1024; both must be 1 or"),
        ("pod", {"max_resident": 0}, "pod: budget_tokens is 1024 and max_resident 0; both must be 1 or more"),
        ("pod", {"nano_batches": 2}, "pod has no setting 'nano_batches'; known: budget_tokens, prompt_share"),
        ("uncapped-streams", {"batch_tokens": 0}, "uncapped-streams: batch_tokens is 0; it must be 1 or more"),
        ("uncapped-streams", {"decode_sms": 4}, "uncapped-streams has no setting 'decode_sms'"),
    ],
)
def test_settings_are_refused_in_one_line(name: str, settings: dict[str, object], complaint: str):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        load(name, settings)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def measured(policy: str, rate: float) -> Metrics:
    return measure(
        RunConfig(
            trace="workload:sharegpt",
            rate=rate,
            requests=250,
            policy=PolicySettings(name=policy),
            model="Llama-3.1-8B",
            device="A100-80G",
            slo={"ttft_s": 1.0, "tpot_s": 0.06},  # type: ignore[arg-type]
        )
    )


@pytest.mark.parametrize(("policy", "least", "most"), [("nanoflow", 1.02, 1.15), ("pod", 1.0, 1.1)])
def test_overlap_serves_more_tokens_when_all_come_at_once(policy: str, least: float, most: float):
    """NanoFlow's gain over the same batches uncut is modest on one GPU, where no link waits; POD's is attention's."""
    chunked, found = (overlap.tokens_per_s(name, "chat", 500) for name in ("chunked", policy))
    assert least < found / chunked < most


@pytest.mark.parametrize("rate", [20.0, 28.0])
def test_streams_without_shares_attain_no_more_than_lock_step(rate: float):
    """The negative control, under load: by the rule for shares that overlap they are halves that lend."""
    chunked, streams, halves = (measured(name, rate) for name in ("chunked", "uncapped-streams", "static-split"))
    assert streams.attainment is not None
    assert chunked.attainment is not None
    assert streams.attainment <= chunked.attainment
    assert streams.ttft_s.mean >= chunked.ttft_s.mean
    assert halves.attainment is not None
    assert streams.attainment >= halves.attainment


def test_the_benchmark_prints_three_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["overlap.py", "--requests", "60"])
    assert overlap.main() == 0
    out = capsys.readouterr().out
    assert out.count("|---") >= 3
    assert "| paper | 1.28 |  | 1.59 |" in out
