"""The scripts for a GPU machine, with programs in place of stages: what is kept when one hangs, fails or is killed."""

from __future__ import annotations

import dataclasses
import json
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from benchmarks import efficiency, gpu_box, gpu_check, gpu_profile, gpu_rates, gpu_shares, gpu_summary
from profiler.measure import shares_cuda
from profiler.measure.green import asked
from real.lanes import Batch, Done, Job
from tests.fake_cuda import SPEC, LaneRuntime, lane_opener
from tests.test_measure_cuda import FakeDriver
from tests.toys import cpu_profile

MEASURING = """
import pathlib, sys, time
out = sys.argv[sys.argv.index("--out") + 1]
pathlib.Path(out + ".journal.jsonl").write_text("points")
print(" ".join(sys.argv[1:6]), flush=True)
time.sleep(60)
"""


def test_a_gpu_that_runs_out_of_time_leaves_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_profile, "COMMAND", ("-c", MEASURING))
    monkeypatch.setattr(gpu_profile, "RECOVER", "print('recovered')")
    monkeypatch.setattr(gpu_profile, "GRACE_S", 1.0)
    out = tmp_path / "gpu.tar"
    command = ["--out", str(out), "--folder", str(tmp_path / "files"), "--device", "cpu", "--model", "tiny"]
    assert gpu_profile.main([*command, "--limit-s", "0.5"]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["files", "gpu.tar"]
    with tarfile.open(out) as tar:
        assert sorted(tar.getnames()) == ["log.txt", "profile.journal.jsonl"]
        log = tar.extractfile("log.txt")
        assert log is not None
        said = log.read().decode()
    assert "\nprofile --device cpu --model tiny\n" in said
    assert said.endswith("recovered\n")


def test_a_folder_without_wheels_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        gpu_profile.main(["--out", str(tmp_path / "x.tar"), "--wheels", str(tmp_path)])
    assert f"--wheels {tmp_path} holds no wheel" in capsys.readouterr().err


STAGES = ("tests", "shares", "profile", "fit", "efficiency", "rates", "validate")
STANDS_IN = """
import json, os, pathlib, signal, sys, time
stage, *options = sys.argv[1:]
after = {flag: pathlib.Path(value) for flag, value in zip(options, options[1:])}
print(stage, "report" if "--report" in options else "began", file=sys.stderr, flush=True)
out = after.get("--out", pathlib.Path())
trouble = os.environ.get("TROUBLE", "") if stage == os.environ.get("AT") and "--report" not in options else ""
if stage == "profile":
    out.with_name("profile.journal.jsonl").write_text("points")
if stage == "fit":
    out.write_text("{}")
if stage == "validate":
    (out / "runs" / "chunked-2" / "real-1").mkdir(parents=True, exist_ok=True)
    (out / "runs" / "chunked-2" / "real-1" / "answers.jsonl").write_text("answers")
    (out / "options.json").write_text(json.dumps(options))
    (out / "plan.json").write_text("{}")
if trouble == "reports for long":
    for number in range(4 * 2 * 2):
        (out / "runs" / "a" / f"real-{number}").mkdir(parents=True)
        (out / "runs" / "a" / f"real-{number}" / "real.json").write_text("{}")
    time.sleep(1.5)
if trouble == "hangs":
    time.sleep(600)
if trouble == "hears nothing":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(600)
if trouble == "is killed":
    os.kill(os.getpid(), signal.SIGKILL)
if trouble == "fails":
    sys.exit("error: this went wrong; do that")
if trouble == "ends all":
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(600)
if stage == "rates":
    print(json.dumps({"rates": [2.0, 4.0], "slo": {"tpot_s": 0.1, "ttft_s": None}}))
"""


class Checked(NamedTuple):
    status: int
    stages: dict[str, str]
    files: dict[str, bytes]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Checked]:
    """gpu_check with programs that stand in for all stages; ``at`` is the one that has ``trouble``."""
    program = tmp_path / "program.py"
    program.write_text(STANDS_IN)
    monkeypatch.setattr(gpu_check, "PROGRAMS", {name: (str(program), name) for name in STAGES})
    monkeypatch.setattr(gpu_profile, "RECOVER", "print('recovered')")
    monkeypatch.setattr(gpu_box, "PATIENCE_S", 0.2)

    def run(at: str = "", trouble: str = "", *, limit_s: float = 60.0, part: float = 1.0) -> Checked:
        sizes = gpu_check.SIZES["cuda"]
        limits = dict.fromkeys(sizes.limits, 1.0) | {"report": 0.0}
        if at == "validate":
            limits["report"] = 1 - part
        else:
            limits[at] = part
        monkeypatch.setitem(gpu_check.SIZES, "cuda", sizes._replace(limits=limits))
        monkeypatch.setenv("AT", at)
        monkeypatch.setenv("TROUBLE", trouble)
        out = tmp_path / "check.tar"
        status = gpu_check.main(["--out", str(out), "--limit-s", str(limit_s)])
        with tarfile.open(out) as tar:
            files = {name: tar.extractfile(name) for name in tar.getnames()}
            read = {name: file.read() for name, file in files.items() if file is not None}
        stages = {stage["name"]: stage["status"] for stage in json.loads(read["summary.json"])["stages"]}
        return Checked(status, stages, read)

    return run


def test_a_gpu_check_goes_through_its_stages(check: Callable[..., Checked]) -> None:
    found = check()
    assert found.status == 0
    assert found.stages == dict.fromkeys([*STAGES[:3], "recover", *STAGES[3:]], "ok")
    options = json.loads(found.files["validation/options.json"])
    assert [options[place + 1] for place, flag in enumerate(options) if flag == "--rate"] == ["2", "4"]
    assert options[options.index("--slo-tpot") + 1] == "0.1"
    assert "--slo-ttft" not in options
    policies = [options[place + 1] for place, flag in enumerate(options) if flag == "--policy"]
    assert policies == ["bullet", "chunked", "static-split:decode_sms=48", "static-split:decode_sms=80"]
    assert found.files["validation/model.json"] == b"{}"
    assert found.files["log.txt"].decode().count("began") == 7
    assert b"tests began" in found.files["log.txt"]
    again = check()
    assert (again.status, again.stages["rates"]) == (0, "skipped")
    assert json.loads(again.files["validation/options.json"]) == options


@pytest.mark.parametrize("at", STAGES)
def test_a_stage_that_hangs_is_cut_off_and_the_others_run(check: Callable[..., Checked], at: str) -> None:
    found = check(at, "hangs", part=0.01)
    assert found.status == 1
    assert found.stages.pop(at) == "cut off"
    left = {name for name in STAGES if name != at}
    assert {name for name, status in found.stages.items() if status == "ok"} >= left
    options = json.loads(found.files["validation/options.json"])
    assert options.count("--rate") == (3 if at == "rates" else 2)
    if at == "validate":
        assert found.stages["report"] == "ok"
        assert "validation/runs/chunked-2/real-1/answers.jsonl" in found.files
    assert found.files["summary.txt"].decode().startswith("gpu_check on cuda\n\nstage")


def test_a_validation_that_is_at_its_report_may_end_it(check: Callable[..., Checked]) -> None:
    found = check("validate", "reports for long", part=0.01)
    assert found.status == 0
    assert list(found.stages)[-1] == "validate"


@pytest.mark.parametrize(
    ("trouble", "status", "note"),
    [
        ("is killed", "failed", "killed by signal 9"),
        ("hears nothing", "cut off", ""),
        ("fails", "failed", "error: this went wrong; do that"),
    ],
)
def test_a_stage_that_fails_costs_itself(check: Callable[..., Checked], trouble: str, status: str, note: str) -> None:
    found = check("profile", trouble, part=0.02 if trouble == "hears nothing" else 1.0)
    stages = {stage["name"]: stage for stage in json.loads(found.files["summary.json"])["stages"]}
    assert (stages["profile"]["status"], stages["profile"]["note"]) == (status, note)
    assert found.files["profile.journal.jsonl"] == b"points"
    assert stages["recover"]["status"] == stages["validate"]["status"] == "ok"


def test_a_check_that_is_told_to_end_leaves_what_it_has(
    check: Callable[..., Checked], capsys: pytest.CaptureFixture[str]
) -> None:
    found = check("fit", "ends all")
    assert found.status == 1
    assert list(found.stages) == ["tests", "shares", "profile", "recover", "fit"]
    assert found.stages["fit"] == "cut off"
    assert found.files["profile.journal.jsonl"] == b"points"
    assert "told to end; what is done is kept" in capsys.readouterr().err


def test_a_check_whose_time_is_up_skips_the_rest(check: Callable[..., Checked]) -> None:
    found = check("tests", "hangs", limit_s=1.5)
    assert found.stages == {"tests": "cut off"} | dict.fromkeys(STAGES[1:], "skipped")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--limit-s", "0"], "--limit-s is 0; it must be above 0 seconds"),
        (["--out", "x.zip"], "--out is x.zip, which is no tar; name one, such as x.zip.tar"),
        (["--wheels", "."], "--wheels . holds no wheel"),
        (["--rate", "-1"], "--rate is -1; it must be above 0"),
        (["--requests", "0"], "--requests is 0; it must be 1 or more"),
        (["--device", "tpu"], "invalid choice: 'tpu'"),
    ],
)
def test_options_of_a_check_that_cannot_be(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        gpu_check.main(["--out", "x.tar", *options])
    *_, line = capsys.readouterr().err.splitlines()
    assert said in line
    assert list(tmp_path.iterdir()) == []


def test_what_a_bundle_has_no_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_box, "BUNDLE_BYTES", 100)
    folder = tmp_path / "check"
    sizes = {
        "report.json": 60,
        "runs/report.html": 10,
        "runs/a/steps.parquet": 12,
        "runs/b/steps.parquet": 50,
        "runs/a/answers.jsonl": 3,
        "runs/b/answers.jsonl": 20,
        ".hidden/x": 1,
    }
    for name, size in sizes.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x" * size)
    out = tmp_path / "check.tar.gz"
    gpu_box.pack(folder, out)
    with tarfile.open(out, "r:gz") as tar:
        assert tar.getnames() == ["runs/report.html", "report.json", "runs/a/steps.parquet", "runs/a/answers.jsonl"]


def statistic(metric: str, part: str, simulated: float, measured: float) -> dict[str, object]:
    error = abs(simulated - measured) / measured
    return {"metric": metric, "part": part, "simulated": simulated, "measured": measured, "error": error}


def test_a_summary_judges_by_the_targets(tmp_path: Path) -> None:
    """Two cells: the second's TTFT is 40 % off but 4 ms, its P99 is off; one order of three is another."""
    cells = [
        [("tpot_s", "p50", 1.04, 1.0), ("ttft_s", "p50", 0.32, 0.3), ("e2e_s", "p99", 1.0, 1.0)],
        [("tpot_s", "p50", 1.06, 1.0), ("ttft_s", "p50", 0.014, 0.010), ("e2e_s", "p99", 1.2, 1.0)],
    ]
    pairs = [("bullet", "chunked(budget_tokens=9)"), ("chunked", "bullet"), ("bullet", "static-split")]
    report = {
        "cells": [{"statistics": [statistic(*one) for one in cell]} for cell in cells],
        "orders": [
            {"metric": "ttft_s", "rate": rate, "pairs": [{"first": a, "second": b, "agree": agree}]}
            for (a, b), agree, rate in zip(pairs, (True, False, False), (1.0, 2.5, 4.0), strict=True)
        ],
    }
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation" / "report.json").write_text(json.dumps(report))
    found = {target.what: target for target in gpu_summary.judged(tmp_path)}
    assert found["error of TPOT, P50"].verdict == "1 of 2"
    assert found["error of TPOT, P50"].found == "median 5.0%, worst 6.0%"
    assert found["error of TTFT, P50"].verdict == "yes"
    assert found["error of end to end, P99"].verdict == "1 of 2"
    assert found["error of tokens/s"].verdict == "not measured"
    assert found["order of Bullet and chunked"] == (
        "order of Bullet and chunked",
        "the same",
        1,
        2,
        "other: ttft_s at 2.5/s",
    )


def layers(kernel: str, seconds: float, **shape: int) -> dict[str, object]:
    return {"kernel": kernel, "layers": 2, "sms": 2, "latency_s": seconds, **shape}


def test_efficiency_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """tiny has 2,949,120 weights a layer: 1024 x 512, 512 x 512, 2816 x 512 and 512 x 1408.

    Two FLOPs a weight and token; in attention, 4 x 8 heads x 64 for each of about tokens^2 / 2 pairs. A decode step
    reads weights in 4 bytes each, and 64 x 1000 tokens of KV, 2 x 4 heads x 64 of 4 bytes.
    """
    flops = 2 * (2 * 2_949_120 * 4096 + 2048 * 4096**2 / 2)
    moved = 2 * 4 * (2_949_120 + 64_000 * 512)
    timed = [
        layers("prefill_layers", flops / 3e9, sequences=1, new_tokens=4096, cached_tokens=0),
        layers("prefill_layers", 1.0, sequences=1, new_tokens=8192, cached_tokens=0),
        layers("prefill_layers", 1.0, sequences=1, new_tokens=4096, cached_tokens=512),
        layers("decode_layers", moved / 8e8, decode_requests=32, decode_context_tokens=2000),
    ]
    profile = cpu_profile(2, "tiny", timed)
    ceilings = {"fp32_flops": 4e9, "dram_bytes_per_s": 1e9}
    profile = dataclasses.replace(
        profile, provenance=profile.provenance.model_copy(update={"settings": {"ceilings": ceilings}})
    )
    profile.save(tmp_path / "profile.parquet")
    assert efficiency.main([str(tmp_path / "profile.parquet"), "--json", str(tmp_path / "found.json")]) == 0
    prefill, decode = json.loads((tmp_path / "found.json").read_text())
    assert prefill["share"] == pytest.approx(0.75, rel=0.01)
    assert (prefill["shape"], prefill["met"]) == ("4096 tokens", True)
    # The batch is another, so the target is not judged; activations come on top of weights and KV.
    assert decode["share"] == pytest.approx(0.8, rel=0.02)
    assert (decode["asked"], decode["met"]) == (False, None)
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| prefill", "| decode"))]
    assert [line.split("|")[-2].strip() for line in printed] == ["yes", "not of the size it is for"]
    cpu_profile(2).save(tmp_path / "bare.parquet")
    assert efficiency.main([str(tmp_path / "bare.parquet")]) == 2
    assert "the profile has no model, matrix product or copy" in capsys.readouterr().err


class TwoLanes:
    """Each token takes a millisecond on its lane; lanes work at once, or in turns."""

    def __init__(self, turns: bool) -> None:
        self.turns, self.now_s = turns, 0.0
        self.free_s: dict[str, float] = {}
        self.done: list[Done] = []

    def submit(self, job: Job) -> None:
        assert isinstance(job.task, Batch)
        lane = "" if self.turns else job.lane
        begin_s = max(self.now_s, self.free_s.get(lane, 0.0))
        self.free_s[lane] = begin_s + 1e-3 * len(job.task.tokens)
        self.done.append(Done(job.job_id, (), begin_s, self.free_s[lane], float("nan"), job.sms))

    def wait(self, timeout_s: float | None) -> Done:
        done = self.done.pop(0)
        self.now_s = max(self.now_s, done.finish_s)
        return done


@pytest.mark.parametrize(("turns", "together", "overlap"), [(False, 0.075, 0.025), (True, 0.1, 0.0)])
def test_lanes_that_take_turns_do_not_overlap(turns: bool, together: float, overlap: float) -> None:
    lanes: Any = TwoLanes(turns)
    alone, both_s, overlap_s = gpu_shares.timed(lanes, (96, 32), 100)
    assert alone == pytest.approx([0.075, 0.025])
    assert (both_s, overlap_s) == pytest.approx((together, overlap), abs=1e-9)
    row = gpu_shares._row((96, 32), gpu_shares.Seen({1, 2}, {3}), alone, both_s, overlap_s)
    assert (row["overlap"], row["disjoint"], row["common"]) == (not turns, True, [])
    assert gpu_shares._row((96, 32), gpu_shares.Seen({1, 2}, {2}), alone, both_s, overlap_s)["disjoint"] is False


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """A GPU of 132 SMs on the CPU. Where its streams run: each on an SM of its own."""
    runtime, driver = LaneRuntime(), FakeDriver()
    seen = SimpleNamespace(sms_of=lambda stream, whole: {stream.address})
    monkeypatch.setattr(shares_cuda, "cuda_runtime", lambda ordinal=0: runtime)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    monkeypatch.setitem(sys.modules, "profiler.measure.smid", seen)
    monkeypatch.setattr(gpu_shares, "LAYERS", SPEC.layers)
    monkeypatch.setattr(gpu_shares, "TOKENS", {"cuda": 32})
    with lane_opener(monkeypatch) as opened:
        monkeypatch.setattr(gpu_shares, "_cuda_lanes", lambda: opened(splits=asked(132), graphs={}))
        yield driver
    assert driver.alive == []


def test_shares_of_a_gpu_are_looked_at(gpu: FakeDriver, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu_shares.main(["--device", "cuda", "--json", str(tmp_path / "shares.json")])
    found = json.loads((tmp_path / "shares.json").read_text())
    assert found["shares"] == "green contexts, SM numbers checked"
    assert [row["sms"] for row in found["splits"]] == [[132 - part, part] for part in (16, 32, 48, 64, 80, 96)]
    assert all(row["disjoint"] and len(row["seen"]) == 2 for row in found["splits"])
    assert "| 116 + 16 | 1 + 1 | yes |" in capsys.readouterr().out


def test_a_gpu_that_grants_no_shares_has_lanes_on_all_of_it(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.refuse = "cuGreenCtxCreate"
    with lane_opener(monkeypatch) as opened:
        monkeypatch.setattr(gpu_shares, "_cuda_lanes", lambda: opened(driver=gpu, splits=asked(132), graphs={}))
        kind, (row,) = gpu_shares.checked("cuda")
    assert kind.startswith("shared streams: cuGreenCtxCreate answers")
    assert (row["sms"], row["seen"], row["disjoint"]) == ([132, 132], None, None)


def test_rates_lie_around_the_simulated_knee(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(Path(__file__).parents[1] / "profiler" / "builtin" / "H200.json")
    command = [model, "--model", "Llama-3.1-8B", "--trace", "workload:sharegpt", "--slots", "32", "--requests", "60"]
    assert gpu_rates.main(command) == 0
    found = json.loads(capsys.readouterr().out)
    kept = {float(rate): value for rate, value in found["attainment"].items()}
    below, above = (
        [value for rate, value in kept.items() if (rate <= found["knee"]) == side] for side in (True, False)
    )
    assert min(below) >= 0.9 > min(above)
    assert found["rates"] == pytest.approx([0.5 * found["knee"], found["knee"], 1.3 * found["knee"]], rel=0.01)
    assert gpu_rates.main(["nothing.json", *command[1:]]) == 2
    assert "nothing.json" in capsys.readouterr().err
