"""``bulletsim fit``: what it writes and prints, and what it refuses in one line."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from cli.main import run
from profiler import device
from profiler.devicecalibration import load_calibration
from profiler.estimators import CANDIDATES, clock_of, rows_of, shapes_of
from profiler.profile import Profile, Provenance
from profiler.structure import base_seconds

ORIGIN = Provenance(device="A100-80G", sms=108, source="measured", origin="made up", date="2026-01-01")


def toy(provenance: Provenance = ORIGIN) -> Profile:
    """Products that reach 80 % of the formula, and a few norms."""
    shapes = [
        {"kernel": "gemm", "m": m, "n": n, "k": k}
        for m, n, k in product((16, 64, 256, 1024, 4096), (512, 1024, 2048), (512, 1024, 2048))
    ]
    shapes += [{"kernel": "norm", "tokens": tokens, "width": 4096} for tokens in (1, 16, 256, 1024, 4096, 8192)]
    common = {"dtype": "bf16", "sms": provenance.sms, "latency_s": 1.0, "repeats": 5, "spread": 0.01}
    rows = Profile.of([{**common, **shape} for shape in shapes], provenance).rows
    a100 = device("A100-80G")
    for op in ("gemm", "norm"):
        table = rows_of(Profile(rows, provenance), op)
        seconds = base_seconds(op, shapes_of(op, table), clock_of(a100, {op: 3e-6}), 108) / 0.8
        rows.loc[rows["kernel"] == op, "latency_s"] = seconds
    return Profile.of(rows, provenance)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy().save(tmp_path_factory.mktemp("profiles") / "toy")


@pytest.fixture(scope="module")
def model(profile: Path) -> Path:
    out = profile.parent / "model.json"
    assert run(["fit", str(profile), "--out", str(out), "--quiet"]) == 0
    return out


def test_the_model_holds_its_errors_and_where_it_comes_from(model: Path) -> None:
    found = load_calibration(model)
    assert set(found.ops) == {"gemm", "norm"}
    assert found.provenance["origin"] == "made up"
    assert {row["estimator"] for row in found.holdout} == set(CANDIDATES)
    assert {(row["op"], row["split"]) for row in found.holdout} >= {("gemm", "random 20 %"), ("norm", "leave one out")}
    assert {row["spread"] for row in found.holdout} == {0.01}
    assert {row["op"] for row in found.learning_curve} == {"gemm"}
    assert found.ops["gemm"].points is not None


def test_a_model_without_points_keeps_none(profile: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.json"
    assert run(["fit", str(profile), "--out", str(out), "--no-points", "--quick", "--quiet"]) == 0
    small = load_calibration(out)
    assert small.ops["gemm"].points is None
    assert {row["split"] for row in small.holdout} == {"random 20 %", "leave one out"}
    assert small.learning_curve == ()


def test_what_is_printed_fits_a_terminal(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", "--info", str(model)]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 84
    for text in (
        "A100-80G, 108 SMs: 51 rows, measured",
        "origin: made up",
        "gemm: held out",
        "gemm: samples",
        "spread",
    ):
        assert text in printed


def test_fitting_prints_what_info_does(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.output.LEAST_S", 0.0)
    out = tmp_path / "new" / "model.json"
    assert run(["fit", str(profile.with_suffix("")), "--out", str(out), "--quick"]) == 0
    printed, told = capsys.readouterr()
    assert f"latency model written to {out}" in told
    assert "fitting: " in told
    assert run(["fit", "--info", str(out)]) == 0
    assert capsys.readouterr().out == printed


def test_json_is_one_document(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", "--info", str(model), "--json"]) == 0
    printed, told = capsys.readouterr()
    found = json.loads(printed)
    assert not told
    assert found["ops"]["gemm"]["points"] == 45
    assert found["holdout"][0]["estimator"] == next(iter(CANDIDATES))
    assert found["provenance"]["rows"] == 51


def test_profiles_of_one_device_are_fitted_together(profile: Path, tmp_path: Path) -> None:
    other = Profile(toy().rows.tail(6).reset_index(drop=True), ORIGIN).save(tmp_path / "other")
    products = Profile(toy().rows.head(45).reset_index(drop=True), ORIGIN).save(tmp_path / "products")
    out = tmp_path / "model.json"
    assert run(["fit", str(products), str(other), "--out", str(out), "--quick", "--quiet"]) == 0
    assert set(load_calibration(out).ops) == {"gemm", "norm"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no profile is named; give one or several, or --info MODEL.json"),
        (["{profile}"], "--out is missing; give the name"),
        (["{profile}", "--out", "{new}.txt"], "a latency model is a .json, such as {new}.json"),
        (["{new}", "--out", "{new}.json"], "--out is {new}.json, which belongs to the profile {new}"),
        (["{profile}", "--out", "{stem}.json", "--force"], "which belongs to the profile {profile}"),
        (["{profile}", "{stem}", "--out", "{new}.json"], "{stem} is named twice"),
        (["{stem}x", "--out", ""], "--out is '.', which names no file; give a name such as out/model.json"),
        (["{stem}x", "--out", "/proc/x.json"], "/proc/x.json cannot be written: "),
        (["{stem}x", "--out", "x" * 245 + ".json"], "x.json cannot be written: File name too long; choose another"),
        (["{stem}x", "--out", "{model}/x.json"], "{model}/x.json cannot be written: {model} is a file, not a folder"),
        (["{stem}x", "--out", "{new}.json"], "{stem}x.parquet does not exist"),
        (["{profile}", "--out", "{model}"], "{model}: exists already; choose another name, or replace it with --force"),
        (["--info", "{stem}.json"], "{stem}.json is no latency model; bulletsim fit writes one"),
        (["--info", "{new}.json"], "{new}.json does not exist"),
        (["--info", "{model}", "--out", "{new}.json"], "--info shows a latency model and fits none"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    arguments: list[str], message: str, profile: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"profile": profile, "stem": profile.with_suffix(""), "model": model, "new": tmp_path / "new"}
    assert run(["fit", *(text.format(**names) for text in arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message.format(**names) in line
    assert not (tmp_path / "new.json").exists()


def test_profiles_that_cannot_be_fitted_are_refused(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    h100 = ORIGIN.model_copy(update={"device": "H100", "sms": 132})
    unknown = ORIGIN.model_copy(update={"device": "B200"})
    elsewhere = Profile(toy().rows, h100).save(tmp_path / "h100")
    nobody = Profile(toy().rows, unknown).save(tmp_path / "b200")
    norms = Profile(toy().rows.tail(6).reset_index(drop=True), ORIGIN).save(tmp_path / "norms")
    for paths, message in (
        ([profile, elsewhere], "profiles of two devices: A100-80G with 108 SMs and H100 with 132"),
        ([nobody], "the profile is of 'B200', whose peaks are not known"),
        ([norms], "the profile has no gemm rows"),
    ):
        assert run(["fit", *map(str, paths), "--out", str(tmp_path / "m.json"), "--quiet"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
