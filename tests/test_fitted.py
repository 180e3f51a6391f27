"""Fitted models: measured points come back, sources are told, SMs never hurt, files are checked."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import profiler
from profiler import Work
from profiler.devicecalibration import DeviceCalibration, built_in, built_in_names, load_calibration
from profiler.estimators import clock_of
from profiler.fittedmodel import FittedModel, fitted
from profiler.fitting import fit_device
from profiler.kernels import Shard
from profiler.profile import Profile, Provenance
from profiler.structure import AXES, FEATURES_VERSION, base_seconds, features
from sim.config import RunConfig
from sim.latencies import latency_model
from sim.simulate import prepare

TINY = profiler.model("tiny")
H100 = profiler.device("H100")
SHARES = (32, 72, 132)
PINNED_FEATURES = {
    "gemm": (24, 443.120314),
    "attention_prefill": (12, 95.844516),
    "attention_decode": (14, 165.693037),
    "norm": (3, 53.52108),
    "rotary": (5, 58.948474),
    "activation": (3, 54.096444),
    "embedding": (3, 54.907374),
    "sampling": (3, 54.907374),
    "all_reduce": (3, 35.502469),
}
PROVENANCE = Provenance(device="H100", sms=132, source="measured", origin="a test", date="2026-11-30", model="tiny")


def noise(*shape: float) -> float:
    """A kernel's own deviation from any smooth law, between 0.8 and 1.25."""
    return math.exp(0.22 * math.sin(sum(shape) * 12.9898))


def rows_of_tiny() -> list[dict[str, Any]]:
    """Every kernel of the tiny model at a few shapes on three shares, with times of no law at all."""
    shard = Shard(TINY, H100, 1)
    rows: list[dict[str, Any]] = []
    for tokens in (1, 16, 64, 256, 1024):
        for kernel in shard.layer_kernels(tokens) + shard.head_kernels(tokens):
            if kernel.op != "gemm":
                continue
            n, k = kernel.dims
            for sms in SHARES:
                seconds = (3e-6 + kernel.flops / 5e14 * 132 / sms) * noise(tokens, n, k)
                rows.append({"kernel": "gemm", "m": tokens, "n": n, "k": k, "sms": sms, "latency_s": seconds})
        for sms in SHARES:
            heads = {"heads": TINY.heads, "kv_heads": TINY.kv_heads, "head_dim": TINY.head_dim, "sms": sms}
            for cached in (0, 512):
                shape = {"sequences": 1, "new_tokens": tokens, "cached_tokens": cached}
                seconds = (8e-6 + tokens * (cached + tokens) / 1e12 * 132 / sms) * noise(tokens, cached)
                rows.append({"kernel": "attention_prefill", **shape, **heads, "latency_s": seconds})
            for requests in (1, 8, 32):
                shape = {"decode_requests": requests, "decode_context_tokens": tokens}
                seconds = (8e-6 + requests * tokens / 1e9 * 132 / sms) * noise(requests, tokens)
                rows.append({"kernel": "attention_decode", **shape, **heads, "latency_s": seconds})
    return [{**row, "dtype": "bf16", "repeats": 3, "spread": 0.01} for row in rows]


@cache
def measured() -> DeviceCalibration:
    return fit_device(Profile.of(rows_of_tiny(), PROVENANCE))


@cache
def tiny() -> FittedModel:
    return fitted(TINY, measured())


def test_measured_kernels_come_back_exactly_on_every_share() -> None:
    model = tiny()
    compared = 0
    for row in rows_of_tiny():
        work, name = work_of(row)
        parts = [part for part in model.breakdown(work, row["sms"]) if part.kernel.op == row["kernel"]]
        for part in parts:
            if row["kernel"] == "gemm" and part.kernel.dims != (row["n"], row["k"]):
                continue
            if row["kernel"] == "gemm" and part.kernel.size != row["m"]:
                continue
            assert part.seconds / part.kernel.runs == pytest.approx(row["latency_s"], rel=1e-9), (name, row)
            assert part.source == "measured" or row["kernel"] == "attention_decode"
            compared += 1
    assert compared >= len(rows_of_tiny())


def work_of(row: dict[str, Any]) -> tuple[Work, str]:
    if row["kernel"] == "gemm":
        return Work(decode_requests=row["m"], decode_context_tokens=row["m"]), "gemm"
    if row["kernel"] == "attention_prefill":
        return Work(prefill=((row["new_tokens"], row["cached_tokens"]),)), "prefill"
    requests = row["decode_requests"]
    return Work(decode_requests=requests, decode_context_tokens=requests * row["decode_context_tokens"]), "decode"


CHUNKS = st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 9000)), max_size=3).map(tuple)


@st.composite
def works(draw: st.DrawFn) -> Work:
    chunks = draw(CHUNKS)
    requests = draw(st.integers(0 if chunks else 1, 300))
    return Work(chunks, requests, requests * draw(st.integers(1, 20_000)), draw(st.sampled_from([None, 1])))


@given(st.integers(0, 4), works(), st.integers(1, 130))
@settings(max_examples=150, deadline=None)
def test_more_sms_are_never_slower(index: int, work: Work, sms: int) -> None:
    """Also where measured shares, as those of the tiny model here, say otherwise."""
    model = (tiny, *(llama(name) for name in ("A100-80G", "H100", "H200", "RTX-4090")))[index]()
    few = max(1, sms * model.device.sms // 132)
    times = [model.estimate(work, count).seconds for count in (few, few + 1, model.device.sms)]
    assert 0 < times[2] <= times[1] <= times[0] < math.inf


def llama(device: str) -> Callable[[], FittedModel]:
    return lambda: built_in_llama(device)


@cache
def built_in_llama(device: str) -> FittedModel:
    return fitted("Llama-3.1-8B", device)


@pytest.mark.parametrize("device", ["A100-80G", "H100", "H200", "RTX-4090"])
def test_built_in_models_are_small_and_say_where_they_come_from(device: str) -> None:
    assert device in built_in_names()
    file = Path(profiler.__file__).parent / "builtin" / f"{device}.json"
    assert file.stat().st_size <= 300_000
    calibration = built_in(device)
    assert calibration is not None
    assert calibration.device.name == device
    assert calibration.provenance["origin"]
    assert calibration.provenance["rows_sha256"]
    assert calibration.holdout
    assert calibration.contention.origin == "assumed"
    assert all(op.points is None for op in calibration.ops.values()), "a built-in model holds fitted parameters only"


@pytest.mark.parametrize("device", ["A100-80G", "H100", "H200", "RTX-4090"])
def test_built_in_models_agree_with_the_roofline_within_a_factor(device: str) -> None:
    """Both know the hardware: a pass of any usual shape differs by less than two."""
    model, roofline = built_in_llama(device), profiler.roofline("Llama-3.1-8B", device)
    for work in (
        Work(prefill=((2048, 0),)),
        Work(prefill=((512, 8192),)),
        Work(prefill=((128, 0),) * 8),
        Work(decode_requests=64, decode_context_tokens=64 * 1024),
        Work(((1024, 0),), 32, 32 * 2048),
    ):
        ratio = model.estimate(work, model.device.sms).seconds / roofline.estimate(work, model.device.sms).seconds
        assert 0.6 < ratio < 1.8, (work, ratio)


def test_sources_are_told() -> None:
    model = built_in_llama("H100")
    whole = model.breakdown(Work(prefill=((2048, 0),)), 132)
    sources = {part.kernel.name: part.source for part in whole}
    assert sources["qkv"] == sources["gate_up"] == sources["attention_prefill"] == "interpolated"
    assert sources["attention_norm"] == "roofline"
    cached = {part.kernel.name: part.source for part in model.breakdown(Work(prefill=((512, 4096),)), 132)}
    assert cached["attention_prefill"] == "extrapolated", "no cached prefix was measured"
    shared = {part.kernel.name: part.source for part in model.breakdown(Work(prefill=((2048, 0),)), 66)}
    assert shared["qkv"] == "extrapolated", "no SM share was measured"
    assert model.estimate(Work(prefill=((2048, 0),)), 132).source == "interpolated"
    assert model.estimate(Work(prefill=((2048, 0),)), 66).source == "extrapolated"


@given(st.integers(1, 256), st.integers(1, 30_000), st.integers(1, 132))
@settings(max_examples=60, deadline=None)
def test_a_decode_pass_is_the_sum_of_its_kernels(requests: int, context: int, sms: int) -> None:
    model = built_in_llama("H200")
    work = Work(decode_requests=requests, decode_context_tokens=requests * context)
    parts = sum(part.seconds for part in model.breakdown(work, sms))
    assert model.device_seconds(work, sms) == pytest.approx(parts, rel=0.01)
    layer = model.device_seconds(work._replace(layers=32), sms)
    assert layer == pytest.approx(model.device_seconds(work, sms), rel=1e-9)


def test_many_short_prompts_share_one_launch() -> None:
    """One launch of ragged attention, as measured, against one launch a prompt."""
    model = built_in_llama("H100")
    together = next(
        p for p in model.breakdown(Work(prefill=((128, 0),) * 16), 132) if p.kernel.name == "attention_prefill"
    )
    alone = next(p for p in model.breakdown(Work(prefill=((128, 0),)), 132) if p.kernel.name == "attention_prefill")
    assert together.seconds < 5 * alone.seconds


def test_files_hold_the_whole_model(tmp_path: Path) -> None:
    path = measured().save(tmp_path / "tiny.json")
    again = fitted(TINY, load_calibration(path))
    work = Work(((300, 40),), 7, 900)
    assert again.estimate(work, 70) == tiny().estimate(work, 70)
    assert measured().save(tmp_path / "again.json").read_bytes() == path.read_bytes()
    copied = pickle.loads(pickle.dumps(again))
    assert copied.estimate(work, 70) == again.estimate(work, 70)
    assert copied == again == fitted(TINY, load_calibration(path)) != fitted(TINY, built_in("H100") or "")
    assert hash(copied) == hash(again)
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "has format 2; this version reads up to 1: update bulletsim"),
        ({"features": 0}, "has features 0 and this version knows 1: fit it again"),
        ({"kind": "diary"}, "is no latency model"),
        ({"ops": {"prayer": {}}}, "op 'prayer' is not known"),
        ({"device": {"name": "H100"}}, "is no complete latency model"),
        ({"bandwidth": {"knee_sms": 3}}, "is no complete latency model"),
        ({"ops": None}, "is no complete latency model"),
    ],
)
def test_wrong_files_are_refused_in_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({**measured().document(), **change}))
    with pytest.raises(ValueError, match=message) as caught:
        load_calibration(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_broken_files_are_refused_in_one_line(tmp_path: Path) -> None:
    path = measured().save(tmp_path / "model.json")
    path.write_text(path.read_text()[:5000])
    with pytest.raises(ValueError, match=r"model\.json is no latency model: "):
        load_calibration(path)
    with pytest.raises(ValueError, match=r"nothing\.json does not exist; bulletsim fit writes"):
        load_calibration(tmp_path / "nothing.json")
    trees = built_in("H100")
    assert trees is not None
    document = trees.document()
    document["ops"]["gemm"]["trees"]["nodes"] = document["ops"]["gemm"]["trees"]["nodes"][:-10]
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="is no complete latency model"):
        load_calibration(path)


def config(**latency: Any) -> RunConfig:
    return RunConfig.model_validate(
        {"trace": "workload:code", "policy": "chunked", "model": "Llama-3.1-8B", "device": "H100", "latency": latency}
    )


def test_runs_choose_their_model(tmp_path: Path) -> None:
    assert isinstance(latency_model(config()), FittedModel)
    assert isinstance(latency_model(config(model="roofline")), profiler.RooflineModel)
    assert isinstance(latency_model(config().model_copy(update={"device": "L40S"})), profiler.RooflineModel)
    path = measured().save(tmp_path / "mine.json")
    mine = latency_model(config(model=str(path), kv_dtype="fp8", pass_overhead_s=1e-3))
    assert isinstance(mine, FittedModel)
    assert mine.calibration.provenance["origin"] == "a test"
    assert mine.model.kv_dtype == "fp8"
    assert mine.pass_overhead_s == 1e-3
    with pytest.raises(ValueError, match=r"mine\.json is a latency model of H100, and device is A100-80G"):
        latency_model(config(model=str(path)).model_copy(update={"device": "A100-80G"}))
    with pytest.raises(ValueError, match=r"latency\.gemm is an efficiency of the roofline.*model=roofline"):
        latency_model(config(gemm=0.8))
    with pytest.raises(ValueError, match="no fitted model of L40S is built in"):
        latency_model(config(model="fitted").model_copy(update={"device": "L40S"}))
    with pytest.raises(ValueError, match=r"nowhere\.json does not exist"):
        latency_model(config(model="nowhere.json"))


def test_trees_answer_as_numpy_floats_of_any_count() -> None:
    calibration = built_in("A100-80G")
    assert calibration is not None
    op = calibration.ops["gemm"]
    shapes = {name: np.array([64.0, 100.0]) for name in ("m", "n", "k")} | {"dtype_bytes": np.array([2.0, 2.0])}
    both = op.log_alpha(shapes, calibration.clock())
    one = op.log_alpha({name: column[:1] for name, column in shapes.items()}, calibration.clock())
    assert both.shape == (2, 1)
    assert both[0] == one[0]


def test_features_are_those_of_their_version() -> None:
    """Features that change need another FEATURES_VERSION, and the built-in models fitted anew."""
    clock = clock_of(H100)
    sums = {}
    for op, axes in AXES.items():
        shapes = {name: np.array([8.0, 64.0]) for name in axes} | {"dtype_bytes": np.array([2.0, 1.0])}
        table = features(op, shapes, base_seconds(op, shapes, clock, 132), H100)
        sums[op] = (table.shape[1], round(float(np.abs(table).sum()), 6))
    assert FEATURES_VERSION == 1
    assert sums == PINNED_FEATURES


def test_what_lies_beyond_the_measured_range_is_extrapolated() -> None:
    model = built_in_llama("H100")

    def sources(work: Work, sms: int = 132) -> dict[str, str]:
        return {part.kernel.op: part.source for part in model.breakdown(work, sms)}

    inside = Work(decode_requests=4, decode_context_tokens=4 * 1000)
    assert sources(inside)["attention_decode"] == "interpolated"
    assert sources(Work(decode_requests=1, decode_context_tokens=10_000_000))["attention_decode"] == "extrapolated"
    assert sources(Work(prefill=((200_000, 0),)))["attention_prefill"] == "extrapolated"
    assert sources(Work(prefill=((100, 0),) * 400))["attention_prefill"] == "extrapolated"
    assert sources(Work(prefill=((40_000, 0),)))["gemm"] == "extrapolated"


def test_measured_contexts_are_told_from_those_between() -> None:
    model = tiny()

    def source(context: int, sms: int) -> str:
        parts = model.breakdown(Work(decode_requests=8, decode_context_tokens=8 * context), sms)
        return next(part.source for part in parts if part.kernel.op == "attention_decode")

    assert [source(context, 132) for context in (16, 64, 256)] == ["measured"] * 3
    assert [source(context, 132) for context in (17, 100, 255)] == ["interpolated"] * 3
    assert source(64, 100) == "interpolated", "on a share between measured ones"
    assert source(64, 8) == "extrapolated", "on fewer SMs than were measured"


def test_a_changed_model_file_is_noticed(tmp_path: Path) -> None:
    path = measured().save(tmp_path / "mine.json")
    made = prepare(config(model=str(path)).model_copy(update={"requests": 5, "rate": 1.0})).config
    assert made.latency.model_sha256
    prepare(made)
    path.write_text(path.read_text() + "\n")
    with pytest.raises(ValueError, match="is not the latency model these settings were made with"):
        prepare(made)
