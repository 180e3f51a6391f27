"""The benchmarks' commands on a few requests: that they run, check what they say they check, and tell when it fails."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from benchmarks import decisions, speed, theory, whole_traces, workloads
from traces import poisson, workload

REQUESTS = 300

needs_traces = pytest.mark.skipif(
    not whole_traces.FOLDER.is_dir(), reason="no folder of public traces beside the checkout"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the benchmarks read, with synthetic requests in them."""
    root = tmp_path_factory.mktemp("traces")
    for name, drawn, rate in (("code", "code", 4.0), ("conversation", "chat", 8.0)):
        trace = poisson(workload(drawn, REQUESTS, seed=1), rate, seed=1)
        lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
        for request in trace:
            at = datetime(2023, 11, 16) + timedelta(seconds=request.arrival_s)
            lines.append(
                f"{at.isoformat(sep=' ', timespec='microseconds')},{request.prompt_tokens},{request.output_tokens}"
            )
        path = root / whole_traces.TRACES[name][0]
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    return root


def rows(printed: str) -> list[list[str]]:
    """The cells of a table, without its header."""
    lines = [line for line in printed.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_whole_traces_checks_every_policy_on_both(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Few KV blocks, so that some requests are pre-empted and the ledger has something to get wrong."""
    assert whole_traces.main([str(folder), "--kv-blocks", "1000", "--requests", "100"]) == 0
    found = rows(capsys.readouterr().out)
    policies = ["chunked", "bullet", "disaggregation"]
    assert [row[:2] for row in found] == [[name, policy] for name in ("code", "conversation") for policy in policies]
    for row in found:
        assert row[2] == row[3] == "100"
        assert row[4] == "0"
        assert row[7] in ("1000 of 1000", "2000 of 2000")
        assert row[8] == "balanced"
        assert row[9].endswith(", equal")
    assert sum(int(row[5]) for row in found) > 0


@needs_traces
@pytest.mark.parametrize("name", whole_traces.TRACES)
def test_the_first_requests_of_the_public_traces(name: str) -> None:
    for config in whole_traces.configs(whole_traces.FOLDER, name, REQUESTS, None):
        outcome = whole_traces.serve_whole(config)
        assert outcome.faults == []
        assert (outcome.requests, outcome.finished) == (REQUESTS, REQUESTS)


def test_whole_traces_fails_where_a_check_does(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = next(whole_traces.configs(folder, "code", 20, None))
    good = whole_traces.serve_whole(config)
    assert good.faults == []
    for change, said in (
        ({"finished": 18, "rejected": 1}, "1 requests neither finished nor rejected"),
        ({"exact": False}, "tokens generated differ"),
        ({"ledger": "3 blocks held"}, "3 blocks held"),
        ({"free_blocks": good.total_blocks - 2}, "2 KV blocks not given back"),
        ({"repeated": False}, "other bytes"),
    ):
        bad = good._replace(**change)
        monkeypatch.setattr(whole_traces, "serve_whole", lambda config, bad=bad: bad)
        assert whole_traces.main([str(folder), "--requests", "20"]) == 1
        assert said in capsys.readouterr().out


def test_a_ledger_that_lost_blocks_is_noticed(folder: Path) -> None:
    prepared = whole_traces.prepare(next(whole_traces.configs(folder, "code", 20, None)))
    loop = prepared.loop()
    loop.run()
    assert loop.free_blocks() == (prepared.limits.total_blocks,)
    assert whole_traces.ledger_fault(loop) == ""
    loop._instances[0].ledger.take(1)
    assert loop.free_blocks() == (prepared.limits.total_blocks - 1,)
    assert "blocks held" in whole_traces.ledger_fault(loop)


@pytest.mark.parametrize("main", [whole_traces.main, workloads.main])
def test_a_check_of_nothing_does_not_pass(
    main: Callable[[list[str]], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(f"error: {tmp_path} has none of azure-llm-2023/")
    assert "bulletsim traces fetch azure-code-2023 --to DIR/azure-llm-2023" in line


def test_one_absent_trace_is_skipped_with_a_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = whole_traces.TRACES["code"][0]
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_bytes((folder / file).read_bytes())
    assert whole_traces.main([str(tmp_path), "--requests", "20"]) == 0
    assert capsys.readouterr().out.startswith("conversation skipped: FOLDER has no ")
    workloads.main([str(tmp_path), "--seeds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if " skipped: " in line] == ["chat", "sharegpt", "summary"]
    assert sum(line.startswith("code ") for line in lines) == 7
    fitted = workloads.FITTED.read_bytes()
    assert workloads.main([str(tmp_path), "--fit"]) == 2
    assert "--fit needs every source" in capsys.readouterr().err
    assert workloads.FITTED.read_bytes() == fitted


def test_the_folder_need_not_be_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fixture's lengths are drawn from the workloads, so those agree with them."""
    monkeypatch.setattr(workloads, "FOLDER", folder)
    workloads.main(["--seeds", "1", "--requests", "500"])
    assert "code      prompt mean" in capsys.readouterr().out


def test_speed_as_json(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "BURST_ITERATIONS", 1000)
    walls = {speed.HELP: [0.1, 0.2, 0.4], speed.FIVE_REQUESTS: [0.6, 0.8, 0.9]}
    monkeypatch.setattr(speed, "commands", lambda: walls)
    assert speed.main([str(folder), "--repeats", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["machine"].keys() == {"cpu", "cores", "python", "compiled", "load"}
    assert document["machine"]["compiled"] is False
    assert [run["policy"] for run in document["runs"]] == ["chunked", "bullet", "disaggregation"]
    for run in document["runs"]:
        assert run["requests"] == REQUESTS
        assert run["steps"] > REQUESTS
        assert len(run["wall_s"]) == len(run["cpu_s"]) == len(run["reference_s"]) == 2
        assert run["iterations"] > run["steps"]
    required = {one["what"]: one for one in document["required"]}
    started, ran = (f"{command}, seconds" for command in walls)
    assert required[started] == {"what": started, "asked": 0.3, "found": 0.2, "met": True}
    assert required[ran] == {"what": ran, "asked": 0.7, "found": 0.8, "met": False}
    per_s = {f"{policy}, requests/s" for policy in ("chunked", "bullet", "disaggregation")}
    assert required.keys() == {*per_s, started, ran}


def test_speed_times_the_command_and_says_what_it_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "COMMAND_RUNS", 1)
    assert speed.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "conversation skipped: FOLDER has no" in printed
    for command in ("python -c pass", "bulletsim --help", "bulletsim simulate, 5 requests"):
        assert f"| {command} |" in printed


def test_decisions_by_run_and_kind(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "RATES", {"code": (5.0,)})
    assert decisions.main(["--requests", "8"]) == 0
    lines = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    counts = {cells[1].strip(): int(cells[-10]) for cells in lines if cells[-10].strip().isdigit()}
    assert counts.keys() == {"code", "all", *decisions.KINDS}
    assert counts["code"] == counts["all"] == sum(counts[kind] for kind in decisions.KINDS)
    assert all(counts.values())


def test_the_speed_of_an_environment_is_taken_where_its_sources_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "bin" / "python"
    with pytest.raises(SystemExit):
        speed.main(["--compiled", str(tmp_path)])
    assert "no bin/python in there; make fast makes .venv-fast" in capsys.readouterr().err
    python.parent.mkdir()
    python.touch()

    def run(command: list[str | Path], *, check: bool) -> subprocess.CompletedProcess[str]:
        assert command[0] == python
        assert command[2:] == [str(tmp_path), "--repeats=2", "--json"]
        script = Path(command[1])
        assert script.read_bytes() == Path(speed.__file__).read_bytes()
        assert [path.name for path in script.parents[1].iterdir()] == ["benchmarks"]
        return subprocess.CompletedProcess([], 3)

    monkeypatch.setattr(subprocess, "run", run)
    assert speed.main([str(tmp_path), "--repeats", "2", "--json", "--compiled", str(tmp_path)]) == 3


def test_a_speed_in_every_unit() -> None:
    """100 requests in 200 steps; 1 s of CPU is 1e6 iterations of 1 us, or 5e5 of 2 us: the median counts."""
    one = speed.Speed(
        policy="chunked",
        requests=100,
        steps=200,
        wall_s=(4.0, 1.0, 2.0),
        cpu_s=(1.0,) * 3,
        reference_s=(2e-6, 1e-6, 1e-6),
    )
    assert (one.best_s, one.median_s) == (1.0, 2.0)
    assert one.iterations == pytest.approx(1e6)
    walls = {speed.HELP: [0.4], speed.FIVE_REQUESTS: [0.7]}
    asked = speed.requirements([one], walls)
    assert [(entry["found"], entry["met"]) for entry in asked] == [(100.0, False), (0.4, False), (0.7, True)]
    fast = dataclasses.replace(one, requests=30_000)
    assert speed.requirements([fast], walls)[0]["met"]


def test_theory_fails_where_an_interval_lies_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def experiment(theory_value: float, **changes: float) -> theory.Experiment:
        values = {"theory": theory_value, "widest": 1.0} | changes
        return theory.Experiment(name="seeds", quantity="", replicate=lambda seed: 10.0 + seed % 2, **values)

    for name in ("sharing", "finite_source"):
        monkeypatch.setattr(theory, name, list)
    monkeypatch.setattr(theory, "in_order", lambda: experiment(10.5))
    for wrong in (experiment(30.0), experiment(10.5, widest=0.01), experiment(10.5, excluded=10.4)):
        monkeypatch.setattr(theory, "waiting", lambda wrong=wrong: [wrong])
        assert theory.main([]) == 1
    monkeypatch.setattr(theory, "waiting", list)
    assert theory.main(["--replications", "4"]) == 0
    assert "| seeds |" in capsys.readouterr().out
    with pytest.raises(SystemExit) as status:
        theory.main(["--replications", "1"])
    assert status.value.code == 2
