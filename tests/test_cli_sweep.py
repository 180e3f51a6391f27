"""bulletsim sweep, plot and demo, end to end on small grids."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import sim.simulate
from cli.knees import knee_csv, knee_markdown, knee_tables
from cli.main import run
from sim.config import RunConfig
from sim.metrics import Metrics
from sim.plots.knees import verdict
from sim.plots.series import panels
from sim.results import load_results

COMMAND = (sys.executable, "-c", "from cli.entry import main; main()")
SPEC = """
base: {trace: 'workload:sharegpt', model: Llama-3.1-8B, device: A100-80G, requests: 8, slo: {tpot_s: 0.1}}
policies: [chunked, bullet]
grid: {rate_per_gpu: [2, 4]}
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return str(path)


def test_a_sweep_prints_knees_and_can_be_drawn(spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert run(["sweep", spec, "--out", out, "--jobs", "1"]) == 0
    text = capsys.readouterr().out
    assert "sharegpt: Llama-3.1-8B on A100-80G" in text
    assert max(map(len, text.splitlines())) <= 80
    for kind in ("frontier", "latency"):
        assert run(["plot", kind, out]) == 0
        assert (tmp_path / "out" / f"{kind}.pdf").is_file()
        assert (tmp_path / "out" / f"{kind}.png").is_file()
    assert run(["sweep", spec, "--out", out, "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out[captured.out.index("{") :])
    assert (document["resumed"], len(document["rows"]), document["failures"]) == (4, 4, [])


def test_a_timeline_is_drawn_from_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--trace workload:sharegpt --rate 4 --requests 5 --policy bullet --model tiny --device A100-80G"
    assert run(["simulate", *options.split(), "--out", str(tmp_path / "run")]) == 0
    assert run(["plot", "timeline", str(tmp_path / "run"), "--out", str(tmp_path / "t.svg"), "--end", "0.5"]) == 0
    assert {path.name for path in tmp_path.glob("t.*")} == {"t.svg", "t.png"}
    capsys.readouterr()
    assert run(["plot", "timeline", str(tmp_path / "run"), "--out", "x.gif"]) == 2
    assert "ends in .pdf, .svg or .png" in capsys.readouterr().err


def test_a_dry_run_counts_and_runs_nothing(spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", spec, "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "4 cells, all settings valid"
    assert re.fullmatch(r"about \S+ s in \d+ at a time: 4 simulations", second)
    assert third == "(timed on the first 100 requests of 2, one a policy)"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("bullet]", "bullett]"), "unknown policy 'bullett'"),
        (("A100-80G", "A100-81G"), "unknown device"),
        (("requests: 8", "requests: 0"), "requests is 0"),
        (("bullet]", "{name: bullet, settings: {speed: 3}}]"), "no setting 'speed'"),
        (("workload:sharegpt", "/absent.csv"), "chunked (rate_per_gpu=2): /absent.csv"),
        (("rate_per_gpu: [2, 4]", "arrivals: ['poisson:2', sometimes]"), "(arrivals=sometimes): arrivals 'sometimes'"),
        (("rate_per_gpu: [2, 4]", "seed: [1, 2]"), "has no arrival times"),
        (("rate_per_gpu: [2, 4]", "rate: [2], kv_blocks: [4000, 1]"), "exceed the 1 KV blocks"),
        (("[chunked, bullet]", "[chunked, {name: bullet, label: chunked}]"), "two are called 'chunked'"),
        (("requests: 8", "requests: 8, requests: 9"), "line 2: not YAML: requests is given twice"),
    ],
)
def test_a_wrong_grid_fails_before_the_first_cell(
    change: tuple[str, str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.replace(*change))
    assert run(["sweep", str(path), "--out", str(tmp_path / "out"), "--dry-run"]) == 2
    capsys.readouterr()
    assert run(["sweep", str(path), "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_failed_cells_give_status_1(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_together = sim.simulate.measure_together

    def fail_for_bullet(configs: Sequence[RunConfig]) -> list[Metrics]:
        if configs[0].policy.name == "bullet":
            raise RuntimeError("no luck")
        return measure_together(configs)

    monkeypatch.setattr(sim.simulate, "measure_together", fail_for_bullet)
    assert run(["sweep", spec, "--out", str(tmp_path / "out"), "--jobs", "1", "--quiet"]) == 1
    assert capsys.readouterr().err == (
        "failed: bullet (rate_per_gpu=2): RuntimeError: no luck\n"
        "failed: bullet (rate_per_gpu=4): RuntimeError: no luck\n"
    )
    assert len(json.loads((tmp_path / "out" / "failures.json").read_text())["failures"]) == 2


def test_an_interrupted_sweep_is_130(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(configs: Sequence[RunConfig]) -> list[Metrics]:
        raise KeyboardInterrupt

    monkeypatch.setattr(sim.simulate, "measure_together", interrupt)
    out = tmp_path / "out"
    assert run(["sweep", spec, "--out", str(out), "--jobs", "1"]) == 130
    assert (out / "cells").is_dir()
    assert capsys.readouterr().err == f"what is done stays in {out}; the same command goes on\ninterrupted\n"


@pytest.mark.parametrize(
    ("sent", "status", "said"), [("SIGINT", 130, "interrupted\n"), ("SIGTERM", 143, "terminated\n")]
)
@pytest.mark.parametrize("after", ["spec.yaml", "cells/*.json"])
def test_a_signal_ends_a_sweep_and_its_workers_in_one_line(
    sent: str, status: int, said: str, after: str, spec: str, tmp_path: Path
) -> None:
    """SIGINT goes to the whole group, as Ctrl-C does: while workers start, or when a cell is done."""
    Path(spec).write_text(SPEC.replace("requests: 8", "requests: 3000").replace("[2, 4]", "[8, 9, 10, 11, 12]"))
    process = subprocess.Popen(
        [*COMMAND, "sweep", spec, "--quiet", "--jobs", "2", "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not list((tmp_path / "out").glob(after)):
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.3)
    (os.killpg if sent == "SIGINT" else os.kill)(process.pid, getattr(signal, sent))
    # A worker left behind would hold stderr open: this would not return.
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (status, "", said)


def test_sweeps_into_one_directory_do_not_meet(spec: str, tmp_path: Path) -> None:
    Path(spec).write_text(SPEC.replace("requests: 8", "requests: 100").replace("[2, 4]", "[2, 4, 6, 8]"))
    sweep = [*COMMAND, "sweep", spec, "--jobs", "1", "--quiet", "--out", str(tmp_path / "out")]
    both = [subprocess.Popen(sweep, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    ended = [process.communicate(timeout=300) for process in both]
    assert ended[0][1] == ended[1][1] == b""
    assert [process.returncode for process in both] == [0, 0]
    assert ended[0][0] == ended[1][0]
    assert [path for path in (tmp_path / "out").rglob("*") if "partial" in path.name] == []


def test_without_an_slo_nobody_is_said_to_keep_it(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(spec).write_text(SPEC.replace(", slo: {tpot_s: 0.1}", ""))
    out = str(tmp_path / "out")
    assert run(["sweep", spec, "--out", out, "--jobs", "1", "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "no SLO given" in printed
    assert [line.split()[:3] for line in printed.splitlines()[-2:]] == [["chunked", "-", "-"], ["bullet", "-", "-"]]
    (panel,) = panels(load_results(Path(out)))
    assert verdict(panel) == "sharegpt: no SLO given, so there is no attainment and no knee."
    for kind in ("frontier", "latency"):
        assert run(["plot", kind, out]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frontier", "--start", "1"], "--start and --end are for timeline"),
        (["latency", "--end", "1"], "--start and --end are for timeline"),
        (["timeline", "--start", "-1"], "'--start'"),
        (["timeline", "--start", "5", "--end", "1"], "--end is 1, which is not after --start 5"),
    ],
)
def test_spans_are_of_timelines(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plot", arguments[0], str(tmp_path), *arguments[1:]]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_plots_name_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plot", "frontier", str(tmp_path)]) == 2
    assert "is no sweep: it has no results.parquet; give the --out of a bulletsim sweep" in capsys.readouterr().err
    assert run(["plot", "pie", str(tmp_path)]) == 2
    assert "'frontier', 'latency', 'timeline'" in capsys.readouterr().err


def test_the_quick_demo_leaves_pictures_tables_and_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    assert run(["demo", "--quick", "--out", str(out), "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert max(map(len, captured.out.splitlines()[:-2])) <= 80
    verdicts = captured.out.splitlines()[-2:]
    assert [line.split(":")[0] for line in verdicts] == ["sharegpt", "code"]
    names = {path.name for path in out.iterdir()}
    assert names >= {"frontier.pdf", "frontier.png", "latency.pdf", "latency.png", "knees.csv", "knees.md"}


def rows(**attainments: tuple[float, ...]) -> list[dict[str, object]]:
    """A row a policy and rate 1, 2, 3 per GPU with these attainments."""
    settings = {"trace": "workload:code", "model": "M", "device": "D", "tensor_parallel": 1, "instances": 1}
    slo = {"slo_ttft_s": 1.0, "slo_ttft_per_token_s": None, "slo_ttft_floor_s": 0.0, "slo_tpot_s": 0.1}
    return [
        settings
        | slo
        | {"policy": name, "policy_name": name, "gpus": 1, "rate": float(rate), "seed": 0, "attainment": met}
        | {"ttft_p90_s": 0.1 * rate, "tpot_p90_s": None}
        for name, values in attainments.items()
        for rate, met in zip((1, 2, 3), values, strict=True)
    ]


@pytest.mark.parametrize(
    ("attainments", "sentence"),
    [
        (
            {"a": (1, 0.9, 0.8), "b": (1, 0.8, 0.7)},
            "code: a has the highest knee, 2.00 requests/s per GPU, 33% above b (1.50).",
        ),
        (
            {"a": (1, 0.9, 0.8), "b": (1, 1, 1)},
            "code: b has the highest knee, >= 3.00 requests/s per GPU, 50% above a (2.00).",
        ),
        ({"a": (1, 1, 1), "b": (1, 1, 1)}, "code: a and b keep 90 % attainment at every rate tested."),
        ({"a": (0, 0, 0), "b": (0, 0, 0)}, "code: no policy keeps 90 % attainment at any rate tested."),
        ({"a": (1, 0.9, 0), "b": (0, 0, 0)}, "no other policy keeps 90 % attainment at any rate tested."),
    ],
)
def test_verdicts(attainments: dict[str, tuple[float, ...]], sentence: str) -> None:
    (panel,) = panels(rows(**attainments))
    assert verdict(panel).endswith(sentence)


def test_knees_in_three_forms() -> None:
    found = panels(rows(a=(1, 0.9, 0.8), b=(0.5, 0.5, 0.5)))
    assert "a         2.00         90.0            200" in " ".join(knee_tables(found).splitlines()[-2:-1])
    assert "| a | 2.00 | 90.0 | 200 | - |" in knee_markdown(found)
    assert knee_csv(found).splitlines()[1:] == ["code,a,2.0,crossing,2.0,0.9,0.2,", "code,b,,never,2.0,0.5,0.2,"]


def test_a_process_that_dies_costs_its_cells_and_no_finished_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker that is killed (here by its policy, elsewhere for want of memory) does not end the sweep in disorder."""
    (tmp_path / "dies.py").write_text(
        "from __future__ import annotations\nimport os\nfrom dataclasses import dataclass\n"
        "from policies import ChunkedPrefill\n\n\n@dataclass(frozen=True, slots=True, kw_only=True)\n"
        "class Dies(ChunkedPrefill):\n    def decide(self, view):\n        os._exit(9)\n"
    )
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "base: {trace: workload:code, requests: 5, rate: 3, model: tiny, device: A100-80G}\n"
        f'policies: [chunked, "{tmp_path / "dies.py"}:Dies"]\n'
    )
    assert run(["sweep", str(spec), "--out", str(tmp_path / "out"), "--jobs", "2", "--quiet"]) == 1
    assert "its process died" in capsys.readouterr().err
    assert "Dies" in (tmp_path / "out" / "failures.json").read_text()
