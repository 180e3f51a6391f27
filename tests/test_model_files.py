"""Latency model files: whatever is wrong in one is refused as it is read, in one line that names the field."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
import warnings
from dataclasses import fields
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest

import profiler
from profiler.devicecalibration import DeviceCalibration, built_in, built_in_names, load_calibration
from profiler.holdout import Errors
from profiler.modelfile import ErrorsPart

DELETED = object()


@cache
def text() -> str:
    """A small model with everything a file may hold: trees in one op, kept points and shares in another."""
    model = built_in("RTX-4090")
    assert model is not None
    document = model.document()
    gemm = document["ops"]["gemm"]
    # One stump on the first feature.
    gemm["trees"] |= {"trees": 1, "nodes": [0, 0, -1, 100, -1, -100]}
    norm = document["ops"]["norm"] | {"trees": None, "constant": 0.1, "share_sms": [32, 128], "share_log": [0.2, 0.0]}
    norm["points"] = {"shapes": [[1.0, 4096.0], [8.0, 4096.0]], "residuals": [[0.1, None], [0.0, 0.2]]}
    document["ops"] = {"gemm": gemm, "norm": norm}
    document["mixed"] = {"new_tokens": [16.0, 64.0], "requests": [1.0], "contexts": [17.0], "ratios": [1.5, 2.0]}
    document["composition"] |= {"seconds": [[64, 1e-5], [128, 2e-5]], "prefill": [[128, 1.1]], "decode": [[64, 1.3]]}
    document["composition"]["products"] = [[64, [[1, 1.2], [8, 1.5]]], [128, [[4, 0.9]]]]
    co_run = {"decodes": 1.0, "sms": 64, "beside_sms": 128, "tokens": 8.0, "beside_tokens": 512.0, "slowdown": 1.1}
    document["contention"]["table"] = [co_run]
    for name in ("holdout", "learning_curve"):
        document[name] = document[name][:2]
    return json.dumps(document)


def edited(field: str, value: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text())
    *path, last = (int(part) if part.isdecimal() else part for part in field.split("."))
    parent = reduce(lambda part, name: part[name], path, document)  # type: ignore[call-overload]
    if value is DELETED:
        del parent[last]
    else:
        parent[last] = value
    return document


def refusal(path: Path, document: Any) -> str:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=r"latency model|has f") as caught:
            load_calibration(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    assert message.endswith(("fit it again", "bulletsim fit writes one", "or fit again"))
    return message.removeprefix(str(path))


def test_the_untouched_document_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(text())
    assert load_calibration(path).document() == json.loads(text()) | {"device": edited("device.tiled", True)["device"]}
    document = edited("provenance.settings", {"ceilings": {"fp32_flops": 1e11}, "kernels": {"gemm": ["a", "b"]}})
    assert DeviceCalibration.read(document).provenance["settings"]["ceilings"] == {"fp32_flops": 1e11}


@pytest.mark.parametrize("device", built_in_names())
def test_built_in_models_are_accepted(device: str) -> None:
    model = built_in(device)
    assert model is not None
    # The file itself, which built_in does not check each time.
    file = Path(profiler.__file__).parent / "builtin" / f"{device}.json"
    assert load_calibration(file).document() == model.document()


def test_errors_have_the_keys_of_comparisons() -> None:
    assert list(ErrorsPart.model_fields) == [field.name for field in fields(Errors)]


NUMBERS = (
    "ops.gemm.constant",
    "ops.gemm.floor_s",
    "ops.gemm.trees.baseline",
    "ops.gemm.trees.thresholds.0.0",
    "ops.gemm.ranges.m.1",
    "ops.norm.share_log.0",
    "ops.norm.points.shapes.0.0",
    "ops.norm.points.residuals.0.0",
    "bandwidth.knee_sms",
    "bandwidth.sharpness",
    "composition.seconds.1.1",
    "composition.prefill.0.1",
    "composition.decode.0.1",
    "composition.products.0.1.1.1",
    "host.pass_s",
    "host.launch_s",
    "unmeasured.gemm",
    "unmeasured.attention",
    "unmeasured.bandwidth",
    "unmeasured.floor_s",
    "contention.decode",
    "contention.prefill",
    "contention.decode_any",
    "contention.prefill_any",
    "contention.table.0.slowdown",
    "mixed.new_tokens.0",
    "mixed.requests.0",
    "mixed.contexts.0",
    "mixed.ratios.0",
    "device.bf16_flops",
    "device.dram_bytes_per_s",
    "device.link_latency_s",
    "holdout.0.median",
    "learning_curve.0.p90",
)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", True, None, [1.0]], ids=repr)
@pytest.mark.parametrize("field", NUMBERS)
def test_what_is_no_number_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    if value is None and "residuals" in field:
        return  # a share that was not measured
    assert f": {field} is {value!r}: it must be" in refusal(tmp_path / "model.json", edited(field, value))


@pytest.mark.parametrize("value", [-1e300, 1e300, 10**400], ids=["least", "greatest", "beyond floats"])
@pytest.mark.parametrize("field", NUMBERS)
def test_numbers_beyond_any_device_are_refused(tmp_path: Path, field: str, value: float) -> None:
    if "thresholds" in field and isinstance(value, float):
        return  # a threshold may be anywhere, if its table is ascending
    assert f": {field} is " in refusal(tmp_path / "model.json", edited(field, value))


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("ops.gemm.constant", math.nan, "ops.gemm.constant is nan: it must be a finite number; fit it again"),
        ("bandwidth.sharpness", -1.5, "bandwidth.sharpness is -1.5: it must be greater than or equal to 0.1"),
        ("bandwidth.knee_sms", -3.0, "bandwidth.knee_sms is -3.0"),
        ("bandwidth.origin", "guessed", "bandwidth.origin is 'guessed': it must be 'measured', 'assumed' or 'stated'"),
        ("contention.decode", -0.1, "contention.decode is -0.1"),
        ("contention.table", "abc", "contention.table is 'abc': it must be a valid list"),
        ("contention.table.0.beside_sms", DELETED, "contention.table.0.beside_sms is missing"),
        ("contention.table.0.sms", 0, "contention.table.0.sms is 0: it must be greater than or equal to 1"),
        ("contention.table.0.sms", 129, "contention.table.0.sms has 129: the device has 128 SMs"),
        ("unmeasured.gemm", 0.0, "unmeasured.gemm is 0.0"),
        ("unmeasured.gemm", 1.5, "unmeasured.gemm is 1.5"),
        ("ops", {}, "ops.gemm is missing"),
        ("ops", [], "ops is []: it must be a valid dictionary"),
        ("ops.gemm", DELETED, "ops.gemm is missing"),
        ("ops.gemm", None, "ops.gemm is None"),
        ("ops.gemm.ranges.k", DELETED, "ops.gemm.ranges has ['dtype_bytes', 'm', 'n']: it must have m, n, k,"),
        ("ops.gemm.ranges.width", [1.0, 2.0], "ops.gemm.ranges has ["),
        ("ops.gemm.ranges.m", [64.0, 1.0], "ops.gemm.ranges.m is [64.0, 1.0]: the least must come first"),
        ("ops.gemm.ranges.m", [0.0, 1.0], "ops.gemm.ranges.m has m 0.0: it must be 1 or more"),
        ("ops.gemm.ranges.m", [1.0], "ops.gemm.ranges.m is [1.0]"),
        ("ops.gemm.ranges.dtype_bytes", [2.0, 4.0], "ops.gemm.ranges.dtype_bytes has dtype_bytes 4.0"),
        ("ops.norm.share_log", [0.0], "ops.norm.share_log has 1 values: share_sms has 2"),
        ("ops.norm.share_log", [0.0] * 3, "ops.norm.share_log has 3 values: share_sms has 2"),
        ("ops.norm.share_sms", [0, 128], "ops.norm.share_sms.0 is 0"),
        ("ops.norm.share_sms", [-8, 128], "ops.norm.share_sms.0 is -8"),
        ("ops.norm.share_sms", [32, 129], "ops.norm.share_sms has 129: the device has 128 SMs"),
        ("ops.norm.share_sms", [128, 32], "ops.norm.share_sms is [128, 32]: it must be ascending"),
        ("ops.norm.share_sms", [32, 32], "ops.norm.share_sms is [32, 32]: it must be ascending"),
        ("ops.norm.share_sms", [], "ops.norm.share_sms is []"),
        ("composition.seconds", [[128, 1e-5], [64, 1e-5]], "composition.seconds is [128, 64]: it must be ascending"),
        ("composition.decode", [[129, 1.0]], "composition.decode has 129: the device has 128 SMs"),
        ("composition.prefill", [[64, 1.0, 1.0]], "composition.prefill.0 is [64, 1.0, 1.0]"),
        ("composition.prefill", 1.0, "composition.prefill is 1.0: it must be a valid list; fit it again"),
        ("composition.products", [[129, [[1, 1.0]]]], "composition.products has 129: the device has 128 SMs"),
        ("composition.products.0.1.1.0", 1, "composition.products.0.1 is [1, 1]: it must be ascending, no value twice"),
        ("composition.products.0.1", [], "composition.products.0.1 is []: List should have at least 1 item"),
        ("composition.products.0.1.0.0", 0, "composition.products.0.1.0.0 is 0: it must be greater than"),
        ("ops.norm.rows", 1.5, "ops.norm.rows is 1.5"),
        ("ops.norm.prefixed", 0, "ops.norm.prefixed is 0"),
        ("ops.norm.points.shapes", [], "ops.norm.points.shapes is []"),
        ("ops.norm.points.shapes.1", [8.0], "ops.norm.points.shapes.1 is [8.0]: it must have 2 values"),
        ("ops.norm.points.shapes.1", [0.0, 4096.0], "ops.norm.points.shapes.1 has tokens 0.0"),
        ("ops.norm.points.shapes.1", [1.5, 4096.0], "ops.norm.points.shapes.1 has tokens 1.5"),
        ("ops.norm.points.shapes.1", [1.0, 4096.0], "ops.norm.points.shapes has a row twice"),
        ("ops.norm.points.residuals", [[0.0, 0.0]], "ops.norm.points.residuals has 1 rows: shapes has 2"),
        ("ops.norm.points.residuals.1", [0.0], "ops.norm.points.residuals.1 is [0.0]: it must have 2 values"),
        ("ops.gemm.trees.nodes.3", 0.5, "ops.gemm.trees.nodes.3 is 0.5: it must be a valid integer"),
        ("ops.gemm.trees.nodes.3", 10**30, "ops.gemm.trees.nodes.3 is 1"),
        ("ops.gemm.trees.nodes.3", 3 * 10**9, "ops.gemm.trees.nodes.3 is 3000000000"),
        ("ops.gemm.trees.nodes.0", 24, "ops.gemm.trees.nodes: a node splits on a feature or threshold that is not"),
        ("ops.gemm.trees.nodes.0", -2, "ops.gemm.trees.nodes: a node splits on a feature"),
        ("ops.gemm.trees.nodes.1", -1, "ops.gemm.trees.nodes: a node splits on a feature"),
        ("ops.gemm.trees.nodes", [0, 0, -1, 5], "ops.gemm.trees.nodes: the last tree breaks off"),
        ("ops.gemm.trees.nodes", [0, 0, -1], "ops.gemm.trees.nodes: nodes are no pairs"),
        ("ops.gemm.trees.nodes", [0, 0] * 1001 + [-1, 5] * 1002, "ops.gemm.trees.nodes: a tree has over 1000 levels"),
        ("ops.gemm.trees.trees", 2, "ops.gemm.trees.nodes: 2 trees are announced and 1 are there"),
        ("ops.gemm.trees.thresholds", [[0.5]] * 25, "ops.gemm.trees.thresholds has 25 tables: the op has 24 features"),
        ("ops.gemm.trees.thresholds.0", [2.0, 1.0], "ops.gemm.trees.thresholds.0 is [2.0, 1.0]: it must be ascending"),
        ("mixed.new_tokens", [64.0, 16.0], "mixed.new_tokens is [64.0, 16.0]: it must be ascending"),
        ("mixed.requests", [], "mixed.requests is []"),
        ("mixed.contexts", [-1.0], "mixed.contexts.0 is -1.0"),
        ("mixed.ratios", [1.0], "mixed.ratios has 1 values: its axes need 2"),
        ("device.sms", 128.5, "device.sms is 128.5"),
        ("device.sms", 10**30, "device.sms is 1000"),
        ("device.name", 4090, "device.name is 4090: it must be a valid string"),
        ("device.bandwidth_knee_sms", 129, "device.bandwidth_knee_sms is 129: it must be at most the device's 128"),
        ("device.sources", [], "device.sources is []"),
        ("host.pass_s", "soon", "host.pass_s is 'soon'"),
        ("host", [], "host is []"),
        ("provenance", [], "provenance is []"),
        ("provenance.versions", ["1"], "provenance.versions is ['1']: it must be a valid dictionary"),
        ("provenance.rows", "many", "provenance.rows is 'many'"),
        ("provenance.settings", {"a": [math.inf]}, "provenance.settings.a.0 is inf: it must be a finite number"),
        ("holdout", [{}], "holdout.0.op is missing"),
        ("holdout", "abc", "holdout is 'abc': it must be a valid list"),
        ("learning_curve", None, "learning_curve is None"),
        ("holdout.0.op", "prayer", "holdout.0.op is 'prayer': it must be one of gemm"),
        ("format", 0, "has format 0; this version reads up to 1"),
        ("format", True, "has format True; this version reads up to 1"),
        ("features", True, "has features True and"),
        ("surprise", 1, "surprise is not known"),
        ("ops.gemm.two\nlines", 1, "ops.gemm.'two\\nlines' is not known"),
        ("host.speed", 1, "host.speed is not known"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 and "\n" not in value else "",
)  # fmt: skip
def test_unsound_documents_are_refused(tmp_path: Path, field: str, value: Any, why: str) -> None:
    message = refusal(tmp_path / "model.json", edited(field, value))
    assert f" {why}" in message
    assert len(message) < 300


def test_leaves_add_up_to_something_a_time_can_have(tmp_path: Path) -> None:
    document = edited("ops.gemm.trees.nodes", [-1, 300_000, -1, 300_000])
    document["ops"]["gemm"]["trees"]["trees"] = 2
    assert "ops.gemm.trees.nodes: the leaves add up to more than 50" in refusal(tmp_path / "model.json", document)


def test_launches_have_few_sequences(tmp_path: Path) -> None:
    model = built_in("H100")
    assert model is not None
    document = model.document()
    document["ops"]["attention_prefill"]["ranges"]["sequences"] = [1.0, 1e6]
    message = refusal(tmp_path / "model.json", document)
    assert "ops.attention_prefill.ranges.sequences has sequences 1000000.0: it must be at most 4096" in message


def test_nesting_ends(tmp_path: Path) -> None:
    deep = json.loads("[" * 20 + "]" * 20)
    message = refusal(tmp_path / "model.json", edited("provenance.settings", {"a": deep}))
    assert "provenance.settings.a.0.0" in message
    assert "nested deeper than 8 levels" in message
    assert "is no latency model: " in refusal(tmp_path / "model.json", "[" * 100_000)
    assert "is no latency model; bulletsim fit" in refusal(tmp_path / "model.json", "[]")
    assert "is no latency model: " in refusal(tmp_path / "model.json", "{")


def test_documents_are_left_as_they_are() -> None:
    document = json.loads(text())
    before = copy.deepcopy(document)
    DeviceCalibration.read(document)
    assert document == before


def test_the_profiler_alone_needs_no_schema() -> None:
    code = "import sys, profiler, profiler.devicecalibration; sys.exit('profiler.modelfile' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
