"""bulletsim validate from its options to its report: complete, accounted for, replayable; it goes on."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from filelock import FileLock

from cli.main import run
from real.launches import load_launches
from real.layout import finished
from real.serving import recording_of, replay
from sim.records import STATES
from sim.rundir import load_records, load_run
from tests.test_real_checkpoints import CONFIG
from tests.validations import (
    CORES,
    POLICIES,
    REPEATS,
    ROOT,
    ROWS,
    assert_one_line,
    in_this_process,
    options,
    policies,
    without_pictures,
    write_files,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


@pytest.fixture
def _quick_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    without_pictures(monkeypatch)


@pytest.fixture
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A validation that was run once, for all workers of a test run. Nobody writes there any more."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "validation"
    with FileLock(f"{shared}.lock"):
        if not shared.exists():
            shared.mkdir()
            write_files(shared)
            command = [*options(shared, shared / "out", slo_ttft=1, slo_tpot="0.05"), *policies()]
            with pytest.MonkeyPatch.context() as patch:
                without_pictures(patch)
                assert run([*command, "--json"]) == 0
    return shared


def cells(out: Path) -> dict[str, Path]:
    """Directories of the cells by policy."""
    found = {path.name.partition("(")[0].removesuffix("-recorded"): path for path in (out / "runs").iterdir()}
    assert sorted(found) == sorted(name.partition(":")[0] for name in POLICIES)
    return found


def real_runs(out: Path) -> list[Path]:
    found = sorted(out.glob("runs/*/real-*"))
    assert len(found) == REPEATS * len(POLICIES)
    return found


def test_every_request_is_served_whole_in_both_worlds(whole: Path) -> None:
    out = whole / "out"
    simulated = [cell / "simulated" for cell in cells(out).values()]
    for path in [*simulated, *real_runs(out)]:
        records = load_run(path).records
        assert set(records.state.tolist()) == {STATES.index("finished")}
        assert records.output_tokens.tolist() == records.generated_tokens.tolist() == [row[2] for row in ROWS]
        assert records.prompt_tokens.tolist() == [row[1] for row in ROWS]
        np.testing.assert_allclose(records.arrival_s, [row[0] for row in ROWS])
        assert (records.first_token_s >= records.arrival_s).all()


def test_steps_account_for_all_tokens_and_all_kv(whole: Path) -> None:
    """Prompts once, answers but for their first tokens by decode steps; blocks are never more than there are."""
    for path in real_runs(whole / "out"):
        loaded, launches = load_run(path), load_launches(path / "launches.parquet")
        steps, config = loaded.steps, loaded.config
        assert config.kv_blocks == len(ROWS) * 512 // 16
        layers = CONFIG["num_hidden_layers"]
        assert isinstance(layers, int)
        assert (steps.prefill_tokens * steps.layers).sum() == layers * sum(row[1] for row in ROWS)
        assert steps.decode_requests.sum() == sum(row[2] - 1 for row in ROWS)
        assert ((steps.free_blocks >= 0) & (steps.free_blocks <= config.kv_blocks)).all()
        assert loaded.summary["preemptions"] == 0
        assert len(launches) == len(steps)
        np.testing.assert_array_equal(launches.start_s, steps.start_s)
        np.testing.assert_array_equal(launches.end_s, steps.end_s)
        computing = np.array([steps.lane_names[lane] != "link" for lane in steps.lane])
        np.testing.assert_array_equal(launches.granted_sms[computing], steps.sms[computing])
        assert (launches.processor_s[computing] > 0).all()
        assert (launches.granted_sms[~computing] == 0).all()


def test_the_recording_of_a_run_gives_the_run_again(whole: Path) -> None:
    for path in real_runs(whole / "out"):
        replayed = replay(path / "answers.jsonl")
        assert replayed.finished
        written = load_records(path / "requests.parquet")
        for part in fields(written):
            mine, theirs = (getattr(one, part.name) for one in (replayed.result.records, written))
            if isinstance(mine, np.ndarray):
                np.testing.assert_array_equal(mine, theirs, err_msg=part.name)
            else:
                assert mine == theirs
        facts = json.loads((path / "real.json").read_text())
        assert facts["replay"] == {"answers": replayed.answers, "decisions": len(replayed.result.steps)}
        assert facts["pace"] is None
        assert min(facts["host_s"].values()) > 0
        assert facts["energy"] is None
        assert facts["device"]["cores"] == CORES


def test_tokens_are_the_same_whoever_serves_and_whenever(whole: Path) -> None:
    tables = [pd.read_parquet(path / "tokens.parquet") for path in real_runs(whole / "out")]
    sorted_ones = [table.sort_values(["request_id", "position"]).reset_index(drop=True) for table in tables]
    assert len(sorted_ones[0]) == sum(row[2] for row in ROWS)
    for table in sorted_ones[1:]:
        pd.testing.assert_frame_equal(table, sorted_ones[0])


def test_the_report_has_every_cell(whole: Path) -> None:
    document = json.loads((whole / "out" / "report.json").read_text())
    assert [cell["policy"].partition("(")[0] for cell in document["cells"]] == [
        name.partition(":")[0] for name in POLICIES
    ]
    for cell in document["cells"]:
        assert len(cell["real"]) == REPEATS
        assert cell["partial"] is False
        assert cell["rate"] == pytest.approx(5 / 0.31)
        for side in [*cell["real"], cell["simulated"]]:
            assert side["states"]["finished"] == len(ROWS)
        assert len(cell["requests"]["request_id"]) == len(ROWS)
        for statistic in cell["statistics"]:
            if statistic["part"] == "p50":
                assert len(statistic["runs"]) == REPEATS
                assert statistic["measured"] > 0
                assert statistic["simulated"] > 0
    assert document["header"]["device"] == "cpu"
    page = (whole / "out" / "report.html").read_text()
    for cell in document["cells"]:
        assert cell["policy"] in page


def state_of(out: Path) -> dict[str, int]:
    return {str(path.relative_to(out)): path.stat().st_mtime_ns for path in sorted(out.glob("runs/*/real-*/*"))}


@pytest.mark.usefixtures("_quick_pages", "_in_this_process")
def test_its_page_can_be_made_again_of_its_files(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pictures(monkeypatch)
    file = tmp_path / "again.html"
    assert run(["report", str(whole / "out"), "--out", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "validation"
    assert file.read_text() == (whole / "out" / "report.html").read_text()
    (tmp_path / "plan.json").write_bytes((whole / "out" / "plan.json").read_bytes())
    assert run(["report", str(tmp_path), "--quiet"]) == 2
    assert "has no report.json yet" in capsys.readouterr().err
    (tmp_path / "plan.json").write_text("{}")
    assert run(["report", str(tmp_path), "--quiet"]) == 2
    assert "plan.json: device is missing" in capsys.readouterr().err


def test_a_device_run_has_the_page_and_the_trace_of_a_run(whole: Path, tmp_path: Path) -> None:
    directory = real_runs(whole / "out")[0]
    assert run(["report", str(directory), "--out", str(tmp_path / "run.html")]) == 0
    assert "SM share" in (tmp_path / "run.html").read_text()
    assert run(["plot", "trace", str(directory), "--out", str(tmp_path / "trace.json")]) == 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == len(load_run(directory).steps)
    assert run(["plot", "prediction", str(directory), "--out", str(tmp_path / "prediction.svg")]) == 0


@pytest.mark.usefixtures("_quick_pages")
def test_a_validation_goes_on_where_it_stopped(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole / "out", out)
    chunked = cells(out)["chunked"]
    shutil.rmtree(chunked / "real-2")
    for name in ("report.json", "report.html"):
        (out / name).unlink()
    before = state_of(out)
    command = [*options(whole, out, slo_ttft=1, slo_tpot="0.05"), *policies()]

    assert run([*command, "--report"]) == 0
    assert state_of(out) == before, "a report serves nothing"
    printed = capsys.readouterr()
    assert f"report written to {out / 'report.html'}" in printed.err
    assert max(map(len, printed.out.splitlines())) <= 80
    document = json.loads((out / "report.json").read_text())
    assert [len(cell["real"]) for cell in document["cells"]] == [1, *[REPEATS] * (len(POLICIES) - 1)]

    assert run([*command, "--quiet"]) == 0
    after = state_of(out)
    assert {name: after[name] for name in before} == before, "what is finished stays"
    assert {name.rpartition("/")[0] for name in after.keys() - before.keys()} == {f"runs/{chunked.name}/real-2"}
    # Fewer policies and more repeats are the same validation; anything else is not.
    capsys.readouterr()
    for changes, message in (
        ({"seed": 1}, "whose seed is 0, and 1 is asked for"),
        ({"slo_tpot": None}, "'tpot_s': 0.05}, and {'ttft_s': 1.0, 'ttft_floor_s': 0.0} is asked for"),
    ):
        assert run([*options(whole, out, **({"slo_ttft": 1, "slo_tpot": "0.05"} | changes)), *policies()]) == 2
        assert_one_line(capsys.readouterr().err, message)
    assert state_of(out) == after


@pytest.mark.usefixtures("_quick_pages", "_in_this_process")
@pytest.mark.parametrize("changes", [{"until": 0.05}, {"until": 1e-4}, {"rate": 1e-3}, {"requests": 1}], ids=str)
def test_runs_that_are_stopped_slow_or_of_one_request(files: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    out = tmp_path / "out"
    assert run([*options(files, out, **changes), *policies("bullet:layers_per_step=1"), "--quiet"]) == 0
    (cell,) = json.loads((out / "report.json").read_text())["cells"]
    assert len(cell["real"]) == REPEATS
    assert all(finished(path) for path in out.glob("runs/*/real-*"))


def started(command: list[str]) -> subprocess.Popen[str]:
    """The command in a process group of its own, which hears Ctrl-C also where the tests run in the background."""
    hear = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    script = f"{hear}; from cli.main import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", script, *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def interrupted(process: subprocess.Popen[str]) -> str:
    """Ctrl-C, as a terminal sends it to all of the group; what was said on stderr."""
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert stderr.splitlines()[-1] == "interrupted"
    limit = time.monotonic() + 30
    while left := group(process.pid):
        assert time.monotonic() < limit, f"{left} are orphans"
        time.sleep(0.05)
    return stderr


def group(number: int) -> list[str]:
    """Processes of the group; a zombie, which waits for its parent alone, is none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, itself = path.read_text().rpartition(")")[2].split()[:3]
            if int(itself) == number and state not in "ZX":
                found.append(path.parent.name)
    return found


def until(true: Any, process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + 60
    while not true():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.mark.usefixtures("_quick_pages", "_in_this_process")
def test_ctrl_c_at_any_time_and_the_same_command_again(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [*options(files, out, repeats=1, time_scale=5), *policies("chunked")]
    process = started(command)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    # The second, after one that Python has for itself: a lane that is still loading.
    until(lambda: len(children.read_text().split()) > 1, process)
    interrupted(process)

    process = started(command)
    real = out / "runs" / "chunked-recorded" / "real-1"
    recording = recording_of(real)
    until(lambda: recording.exists() and recording.read_text().count('"done"') > 5, process)
    assert f"what is done stays in {out}; the same command goes on" in interrupted(process)
    assert not recording.exists()
    assert not finished(real)
    part = load_run(real)
    assert len(part.steps) > 5
    assert part.records.generated_tokens.sum() < sum(row[2] for row in ROWS)

    assert run([*command, "--quiet"]) == 0
    assert finished(real)
    assert load_run(real).records.generated_tokens.tolist() == [row[2] for row in ROWS]
