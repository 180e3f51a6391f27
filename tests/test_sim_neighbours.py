"""Instances that are parts of one device: what they lose to each other, by hand and against two lanes of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.main import run
from policies import ChunkedPrefill, StaticSplit
from policies.api import Chunk, Step
from profiler import Work, fitted
from profiler.latency import Estimate
from profiler.roofline import RooflineModel
from sim.config import RunConfig, checked
from sim.launch import Launch
from sim.neighbours import Neighbours
from sim.simulate import prepare
from tests.toys import PlainExecutor, serve, timeline, toy_latency

PREFILL, DECODE = Work(((2048, 0),)), Work((), 16, 16_000)


def launch(work: Work, sms: int, instance: int = 0) -> Launch:
    step = Step(lane="main", sms=sms, prefill=tuple(Chunk(0, new) for new, _ in work.prefill), decode=True)
    return Launch(0, instance, step, work, 0.0, None, 0, Estimate(0.0, "roofline"), MODEL, 0, 0)


MODEL = fitted("Llama-3.1-8B", "A100-80G")


def test_two_instances_slow_each_other_while_both_compute() -> None:
    """A prompt of ten tokens takes 0.1 s, and half as fast beside another. A comes at 0 and B, to the other, at 0.05.

    0.00-0.05  half of A
    0.05-0.15  the rest of A, and half of B
    0.15-0.20  the rest of B
    """
    rows = [(0.0, 10, 1), (0.05, 10, 1)]
    both = serve(ChunkedPrefill(budget_tokens=10), rows, instances=2, device=toy_latency(shared_slowdown=2.0))
    assert timeline(both) == [(0.0, 0.15, "main"), (0.05, 0.2, "main")]
    assert both.steps.predicted_s == pytest.approx([0.1, 0.1]), "a policy plans for its instance"
    apart = serve(ChunkedPrefill(budget_tokens=10), rows, instances=2)
    assert timeline(apart) == [(0.0, 0.1, "main"), (0.05, 0.15, "main")]


def test_lanes_of_an_instance_and_its_neighbours_add_up() -> None:
    """A and C are on the first instance, B on the other.

    0.00-0.10  A's prompt
    0.10-0.20  two thirds of A's decode step of 0.1 s, beside B's prompt: 1.5 times as long
    0.20-0.28  its last third, beside C's prompt too: as much again as its time alone, 2.5 times as long
    """
    rows = [(0.0, 10, 2), (0.1, 30, 1), (0.2, 10, 1)]
    result = serve(
        StaticSplit(decode_sms=5),
        rows,
        instances=2,
        latency=toy_latency(shared_slowdown=2.0),
        device=toy_latency(shared_slowdown=1.5),
    )
    lanes = {(start_s, lane): end_s for start_s, end_s, lane in timeline(result)}
    assert lanes[0.1, "decode"] == pytest.approx(0.2 + 2.5 * 0.1 / 3)


@given(st.integers(1, 53), st.integers(1, 54))
def test_two_instances_are_two_lanes_on_sms_of_their_own(sms: int, other: int) -> None:
    neighbours = Neighbours(MODEL)
    for work, beside in ((PREFILL, DECODE), (DECODE, PREFILL)):
        lost_s = neighbours.loss_s(launch(work, sms), [launch(beside, other, 1)])
        alone_s = MODEL.estimate(work, sms).seconds
        assert lost_s == MODEL.estimate(work, sms, beside, other).seconds - alone_s
    assert neighbours.loss_s(launch(DECODE, sms), []) == 0


@given(st.lists(st.sampled_from([PREFILL, DECODE]), min_size=1, max_size=4))
def test_several_neighbours_are_one_on_the_sms_of_all(works: list[Work]) -> None:
    """What they draw together is what counts; and none of the device's SMs is there twice."""
    found = Neighbours(MODEL).loss_s(launch(DECODE, 27), [launch(work, 40, 1 + i) for i, work in enumerate(works)])
    together = Work(
        tuple(chunk for work in works for chunk in work.prefill),
        sum(work.decode_requests for work in works),
        sum(work.decode_context_tokens for work in works),
    )
    beside_s = MODEL.estimate(DECODE, 27, together, min(40 * len(works), 81)).seconds
    assert found == beside_s - MODEL.estimate(DECODE, 27).seconds
    assert found >= 0


CONFIG: dict[str, Any] = {
    "trace": "workload:chat",
    "rate": 4.0,
    "requests": 30,
    "policy": "disaggregation",
    "instances": 2,
    "model": "Llama-3.1-8B",
    "device": "A100-80G",
    "instance_sms": 54,
    "kv_blocks": 4000,
}


def config(**changes: Any) -> RunConfig:
    return checked(RunConfig, CONFIG | changes, "test")


def test_halves_of_one_gpu_take_longer_than_halves_of_two() -> None:
    two, one = prepare(config()).run(), prepare(config(shared_device=True)).run()
    taken_s, apart_s = (float((run.steps.end_s - run.steps.start_s).sum()) for run in (one, two))
    assert taken_s > 1.001 * apart_s
    assert (one.records.generated_tokens == one.records.output_tokens).all()
    assert (config(shared_device=True).gpus, config().gpus) == (1, 2)


def test_no_step_is_left_out_where_others_slow_it() -> None:
    """With and without the executor's short cut over decode steps, to the bit."""
    ready = prepare(config(shared_device=True))
    plain = ready.loop(executor=PlainExecutor(ready.executor(ready.latency, ready.device))).run()
    assert ready.run().steps.end_s.tobytes() == plain.steps.end_s.tobytes()


def test_the_whole_device_has_the_settings_of_its_parts() -> None:
    ready = prepare(config(shared_device=True, latency={"model": "roofline", "gemm": 0.5}))
    whole = ready.device
    assert isinstance(whole, RooflineModel)
    assert (whole.device.sms, whole.efficiencies.gemm) == (108, 0.5)
    assert whole.on_part(54) == ready.latency
    assert prepare(config()).device is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--shared-device"],
            "error: options: shared_device is true and instance_sms is not set; give the SMs of each instance "
            "(--instance-sms)",
        ),
        (
            ["--shared-device", "--instance-sms", "54", "--instances", "3"],
            "error: shared_device is true, and 3 instances of 54 SMs are 162; A100-80G has 108; take fewer instances "
            "or SMs, or a device each",
        ),
    ],
)
def test_what_is_no_part_is_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = tmp_path / "config.json"
    plain = {name: value for name, value in CONFIG.items() if name not in ("instance_sms", "instances", "policy")}
    stored.write_text(json.dumps(plain | {"policy": "chunked"}))
    assert run(["simulate", "--config", str(stored), *options, "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.strip() == message
