"""Instances that are parts of devices: as the whole device on as many SMs, and refused where there are fewer."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.main import run
from profiler import DEVICES, RooflineModel, Work, fitted, roofline
from profiler.cpu import cpu_device
from profiler.kernelsum import KernelSumModel
from profiler.presets import device as device_preset
from profiler.specs import DeviceSpec, part
from sim.config import RunConfig
from sim.latencies import latency_model
from sim.plots.series import panels
from sim.results import load_results
from sim.simulate import measure_together, prepare
from sim.sweep import run_sweep
from sim.sweep_cells import cells
from sim.sweep_spec import SweepSpec
from tests.test_fitted import tiny
from tests.toys import TOY_DEVICE

CPU = cpu_device(4, bandwidth_knee_cores=2)
ROOFLINES = (*DEVICES, CPU)
FITTED = ("A100-80G", "H100", "H200", "RTX-4090", "measured shares")


@cache
def model_of(name: str | int) -> KernelSumModel:
    """A roofline by the number of its device, a fitted model by name."""
    if isinstance(name, int):
        return roofline("Llama-3.1-8B" if name % 2 else "Qwen3-235B-A22B", ROOFLINES[name], 8)
    if name == "measured shares":
        return tiny()
    return fitted("Llama-3.1-8B", name)


NAMES = st.one_of(st.integers(0, len(ROOFLINES) - 1), st.sampled_from(FITTED))
SHARES = st.floats(0.001, 1.0)


@st.composite
def works(draw: st.DrawFn) -> Work:
    chunks = draw(st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 9000)), max_size=3).map(tuple))
    requests = draw(st.integers(0 if chunks else 1, 200))
    context = requests * draw(st.integers(1, 9000))
    return Work(chunks, requests, context, draw(st.sampled_from([None, 1, 4])), draw(st.booleans()))


def share_of(sms: int, share: float) -> int:
    return max(1, round(share * sms))


@settings(deadline=None)
@given(NAMES, works(), SHARES, SHARES)
def test_a_part_is_the_whole_on_as_many_sms(name: str | int, work: Work, size: float, share: float) -> None:
    model = model_of(name)
    slice_ = model.on_part(share_of(model.device.sms, size))
    sms = share_of(slice_.device.sms, share)
    assert slice_.estimate(work, sms) == model.estimate(work, sms)
    assert slice_.breakdown(work, sms) == model.breakdown(work, sms)
    assert slice_.cost(work) == model.cost(work)
    assert slice_.ceilings(sms) == pytest.approx(model.ceilings(sms), rel=1e-12)
    transfer = Work(kv_transfer_tokens=1000)
    assert slice_.estimate(transfer, 1) == model.estimate(transfer, 1)


@settings(deadline=None)
@given(NAMES, works(), works(), SHARES, SHARES, SHARES)
def test_two_lanes_in_a_part_are_two_lanes_of_the_whole(
    name: str | int, work: Work, beside: Work, size: float, first: float, second: float
) -> None:
    """On disjoint SMs as they are; where they overlap they take turns on the part's SMs, not on the device's.

    In step both take twice as long, on however many SMs each is.
    """
    model = model_of(name)
    slice_ = model.on_part(share_of(model.device.sms, size))
    total = slice_.device.sms
    one, two = share_of(total, first), share_of(total, second)
    found = slice_.estimate(work, one, beside, two)
    if one + two > total and model.device.in_step:
        assert found.seconds == pytest.approx(2 * slice_.estimate(work, one).seconds - slice_.host_seconds(work))
        return
    if one + two > total:
        one, two = one * total // (one + two) or 1, two * total // (one + two) or 1
    if one + two <= model.device.sms:  # a single SM is taken in turns, and not divided
        assert found == model.estimate(work, one, beside, two)


def test_contention_is_there_to_be_compared() -> None:
    model = roofline("Llama-3.1-8B", "A100-80G").on_part(54)
    decode, prefill = Work((), 32, 32_000), Work(((2048, 0),))
    assert model.estimate(decode, 20, prefill, 34).seconds > model.estimate(decode, 20).seconds
    assert model.estimate(decode, 54, prefill, 54) == model.estimate(decode, 27, prefill, 27)


def test_memory_is_not_divided() -> None:
    model = roofline("Llama-3.1-8B", "A100-80G")
    assert model.on_part(10).kv_capacity_tokens(0.9) == model.kv_capacity_tokens(0.9)


@pytest.mark.parametrize("spec", ROOFLINES, ids=lambda spec: spec.name)
def test_a_parts_numbers(spec: DeviceSpec) -> None:
    assert part(spec, spec.sms) is spec
    small = part(spec, 1)
    assert (small.name, small.sms, small.bandwidth_knee_sms) == (spec.name, 1, 1)
    assert small.bf16_flops == pytest.approx(spec.bf16_flops / spec.sms)
    assert small.dram_bytes_per_s == pytest.approx(spec.dram_bytes_per_s / spec.bandwidth_knee_sms)
    scaled = {"sms", "bf16_flops", "fp8_flops", "dram_bytes_per_s", "bandwidth_knee_sms"}
    for name in set(spec.__slots__) - scaled:
        assert getattr(small, name) == getattr(spec, name), name
    if spec.fp8_flops is None:
        assert small.fp8_flops is None
    else:
        assert small.fp8_flops == pytest.approx(spec.fp8_flops / spec.sms)


def test_a_part_above_the_knee_has_all_of_the_bandwidth() -> None:
    half = part(device_preset("A100-80G"), 54)
    assert (half.sms, half.bf16_flops, half.bandwidth_knee_sms) == (54, 156e12, 30)
    assert half.dram_bytes_per_s == 2.039e12


@pytest.mark.parametrize("sms", [0, -1, 11])
def test_no_part_is_larger_than_its_device(sms: int) -> None:
    with pytest.raises(ValueError, match=f"a part of {sms} SMs; toy has 1 to 10 to give"):
        part(TOY_DEVICE, sms)


def test_sms_outside_a_part_are_refused() -> None:
    model = roofline("Llama-3.1-8B", "A100-80G").on_part(54)
    with pytest.raises(ValueError, match="sms is 55; A100-80G has SMs 1 to 54"):
        model.estimate(Work((), 1, 10), 55)
    with pytest.raises(ValueError, match="beside_sms is 55; A100-80G has SMs 1 to 54"):
        model.estimate(Work((), 1, 10), 1, Work((), 1, 10), 55)


@pytest.mark.parametrize("name", [0, "A100-80G"])
def test_parts_are_values(name: str | int) -> None:
    model = model_of(name)
    half = model.on_part(50)
    assert half == pickle.loads(pickle.dumps(half))
    assert half == model.on_part(60).on_part(50)
    assert half != model
    assert half.on_part(model.device.sms) == model == model.on_part(model.device.sms)
    with pytest.raises(ValueError, match=r"device A100-80G is no part of whole, A100-80G; give on_part\(sms\)"):
        replace(half, device=replace(half.device, sms=40))


def test_settings_of_a_part_make_it_again() -> None:
    half = roofline("tiny", "H100").on_part(66)
    assert RooflineModel.from_settings(json.loads(json.dumps(half.settings()))) == half


CONFIG: dict[str, Any] = {
    "trace": "workload:chat",
    "rate": 2.0,
    "requests": 20,
    "policy": {"name": "bullet"},
    "model": "Llama-3.1-8B",
    "device": "A100-80G",
    "slo": {"ttft_s": 3.0, "tpot_s": 0.2},
}


@pytest.mark.parametrize("latency", [{}, {"model": "roofline", "gemm": 0.8}])
def test_a_run_on_a_part_stays_within_it(latency: dict[str, object]) -> None:
    ready = prepare(RunConfig(**CONFIG, instance_sms=40, latency=latency))
    assert ready.latency == latency_model(RunConfig(**CONFIG, latency=latency)).on_part(40)  # type: ignore[attr-defined]
    result = ready.run()
    assert result.sms == 40
    assert result.steps.sms.max() == 40
    assert (result.records.generated_tokens == result.records.output_tokens).all()


def test_all_sms_are_the_device_itself() -> None:
    whole, named = (RunConfig(**CONFIG, instance_sms=sms) for sms in (None, 108))
    assert latency_model(whole) == latency_model(named)
    assert prepare(whole).run().steps.end_s.tobytes() == prepare(named).run().steps.end_s.tobytes()


@pytest.mark.parametrize(
    ("sms", "message"),
    [
        ("109", "error: instance_sms is 109 and A100-80G has 108 SMs; give 1 to 108, or leave it out for all"),
        ("0", "error: options: instance_sms is 0: input should be greater than or equal to 1"),
    ],
)
def test_more_than_the_device_has_is_one_line(sms: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = "simulate --trace workload:chat --rate 2 --requests 5 --policy chunked --model tiny --device A100-80G"
    assert run([*command.split(), "--instance-sms", sms]) == 2
    assert capsys.readouterr().err == f"{message}\n"


def test_the_option_is_a_setting_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "simulate --trace workload:chat --rate 2 --requests 5 --policy disaggregation --model tiny"
    out = ["--out", str(tmp_path / "run"), "--quiet"]
    assert run([*command.split(), "--device", "A100-80G", "--instance-sms", "54", *out]) == 0
    assert capsys.readouterr().out.startswith("disaggregation, tiny on 2 x A100-80G, 54 SMs of each\n")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["instance_sms"] == 54
    assert run(["plot", "timeline", str(tmp_path / "run"), "--out", str(tmp_path / "t.png")]) == 0


def test_a_sweep_keeps_parts_apart(tmp_path: Path) -> None:
    base = {key: value for key, value in CONFIG.items() if key not in ("policy", "rate")} | {"requests": 4}
    spec = {"base": base, "policies": ["chunked"], "grid": {"rate_per_gpu": [2], "instance_sms": [None, 54, 108]}}
    run_sweep(cells(SweepSpec.model_validate(spec), "test"), tmp_path, run=measure_together)
    titles = [panel.title for panel in panels(load_results(tmp_path))]
    shown = "chat: Llama-3.1-8B on A100-80G"
    assert titles == [shown, f"{shown}, 54 SMs of each", f"{shown}, 108 SMs of each"]
