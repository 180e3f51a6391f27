"""Tuning: what is varied, which trials nothing beats, the same trials each time, and a search that goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from cli.tune import _table
from sim.config import PolicySettings, RunConfig, SloSettings
from sim.tuning import THROUGHPUT, Tuner, Tuning, Varied, varied

pytest.importorskip("optuna", reason="optuna is not installed; pip install 'bulletsim[tune]'")

RUN = (
    "tune --trace workload:code --requests 20 --policy chunked --model tiny --device A100-80G --slo-ttft 0.2"
    " --vary budget_tokens=128:4096:log --rates 50:5000"
)


def tuner(**changes: Any) -> Tuner:
    base = RunConfig(
        trace="workload:code",
        requests=20,
        policy=PolicySettings(name="chunked"),
        model="tiny",
        device="A100-80G",
        slo=SloSettings(ttft_s=0.2),
    )
    given = {"settings": [varied("budget_tokens=128:4096:log")], "rate": Varied(name="rate", low=50.0, high=5000.0)}
    return Tuner(base=base, latency="ttft_p90_s", **{**given, **changes})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1:8", Varied(name="a", low=1, high=8)),
        ("a=1:8:log", Varied(name="a", low=1, high=8, log=True)),
        ("a=0.5:8", Varied(name="a", low=0.5, high=8)),
        ("a=true,false", Varied(name="a", choices=(True, False))),
        ("a=null,12,x", Varied(name="a", choices=(None, 12, "x"))),
    ],
)
def test_what_is_varied(text: str, expected: Varied) -> None:
    assert varied(text) == expected


@pytest.mark.parametrize("text", ["a", "a=", "a=3", "=1:2", "a=2:1", "a=0:1:log", "a=1:2:lin", "a=x:y", "a=1:2:log:3"])
def test_what_varies_nothing(text: str) -> None:
    with pytest.raises(ValueError, match="varies nothing; give NAME=LOW:HIGH"):
        varied(text)


def row(throughput: float, latency: float | None, attainment: float) -> dict[str, Any]:
    return {"requests_per_s_per_gpu": throughput, "ttft_p90_s": latency, "attainment": attainment}


def test_the_front_is_what_nothing_that_keeps_the_slo_beats() -> None:
    best, fast = row(9, 0.5, 0.95), row(4, 0.1, 0.9)
    beaten, late, equal = row(4, 0.2, 1.0), row(12, 0.05, 0.8), row(9, 0.6, 1.0)
    assert tuner().front([beaten, late, fast, row(3, None, 1.0), equal, best]) == [best, fast]


def test_the_same_seed_gives_the_same_trials_and_finished_ones_are_not_run_again(
    tmp_path: Path,
) -> None:
    first = tuner().run(tmp_path / "a", 10)
    again = tuner().run(tmp_path / "b", 10)
    assert len(first.rows) == 10
    assert first.rows == again.rows
    assert first.front
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a" / "cells").iterdir()}
    longer = tuner().run(tmp_path / "a", 12)
    assert len(longer.rows) == 12
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_settings_that_cannot_run_are_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    some_wrong = varied("budget_tokens=128,-2,-1,0")
    found = tuner(settings=[some_wrong]).run(tmp_path / "out", 8)
    assert found.failed > 0
    assert 0 < len(found.rows) <= 8 - found.failed


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--trials", "8", "--out", str(tmp_path / "out"), "--jobs", "1"]
    assert run([*RUN.split(), *out, "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith("chunked: of 8 trials, those that no other beats")
    assert run([*RUN.split(), *out, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["trials"] == 8
    assert set(document["front"][0]) >= {"budget_tokens", "rate", "requests_per_s_per_gpu", "ttft_p90_s", "cell"}
    assert (tmp_path / "out" / "results.parquet").is_file()


@pytest.mark.parametrize(
    "names", [("budget_tokens",), ("layers_per_step", "percentile", "queue_horizon", "batch_fill")]
)
def test_the_table_shows_every_setting_in_80_columns(names: tuple[str, ...]) -> None:
    names = (*names, *(f"and_a_long_one_{number}" for number in range(len(names) - 1)))
    found = {
        "policy_settings": json.dumps(dict.fromkeys(names, 0.123456)),
        "rate": 123.4,
        THROUGHPUT: 12.34,
        "ttft_p90_s": 0.1234,
        "attainment": 0.95,
    }
    shown = _table(
        tuner(settings=[varied(f"{name}=0.1:0.2") for name in names]),
        Tuning(rows=[found], front=[found, found], failed=0),
        "ttft_p90",
    )
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(name in shown for name in names)
    assert shown.count("0.1235") == 2 * len(names)
    assert shown.count("12.3") == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--minimise speed", "--minimise is 'speed'; give one such as ttft_p90"),
        ("--rates 5", "--rates is '5'; give LOW:HIGH"),
        ("--vary nothing=1:2", "policy chunked has no setting 'nothing'"),
        ("--vary x", "'x' varies nothing"),
        ("--vary budget_tokens=1:Infinity", "'budget_tokens=1:Infinity' varies nothing"),
        ("--vary budget_tokens=1:2 --vary budget_tokens=3:4", "budget_tokens is varied twice"),
        ("--set budget_tokens=512", "budget_tokens is in --set and in --vary; keep one"),
        ("--target 7", "target is 7; give a share"),
    ],
)
def test_wrong_options(change: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*RUN.split(), *change.split(), "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
