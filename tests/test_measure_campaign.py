"""A measurement from the command to the profile: what it leaves, how it goes on, what it says when it cannot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from profiler import cpu, model
from profiler.measure import campaign, shares_cpu
from profiler.measure.campaign import Settings, measure, recover, saturation
from profiler.measure.device import Sample
from profiler.measure.grid import CPU, MEASURED, Group, Reach, Shares, Target, Variant, plan
from profiler.profile import load_profile

SMALL = Reach(
    tokens=((1, 16), (4, 24)),
    requests=((1, 2), (4,)),
    contexts=((16,), (32,)),
    cached=((0,), (16,)),
    sequences=(2,),
    prefills=(((8, 0),), ((8, 8),)),
    decodes=(((2, 16),), ((1, 32),)),
    kv_tokens=256,
    cube=64,
    copy_bytes=(1 << 16,),
    layers=1,
    context=64,
)


class FakeDevice:
    """Two shares of which the smaller takes three times as long; ``fails`` names a kernel it cannot run."""

    name, dtype, reach = "H200", "bf16", SMALL
    shares = Shares(132, ((64, 68),))
    rounds = 1

    def __init__(self, fails: str = "", dies_after: int = 10**9) -> None:
        self.fails, self.left = fails, dies_after
        self.settings: dict[str, Any] = {"machine": "NVIDIA H200"}
        self.measured: list[Target] = []
        self.closed = False

    def measure(self, group: Group, repeats: int) -> Iterator[Sample]:
        for variant in group.variants:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            self.measured.append(group.target)
            if group.target.kernel == self.fails:
                yield Sample(group.target, variant, (), failed="no memory")
            else:
                seconds = 1e-3 if variant.sms > 66 else 3e-3
                yield Sample(group.target, variant, (seconds,) * repeats, 0.5 if variant.beside else None)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    device = FakeDevice()
    monkeypatch.setattr(campaign, "open_device", lambda name, spec: device)
    return device


def settings(out: Path, **others: Any) -> Settings:
    return Settings("cpu", "tiny", out, repeats=2)._replace(**others)


def test_a_profile_and_what_it_says_of_itself(tmp_path: Path, fake: FakeDevice) -> None:
    told: list[tuple[int, str]] = []
    outcome = measure(settings(tmp_path / "h200.v2"), lambda points: lambda done, text: told.append((done, text)))
    assert outcome.path == tmp_path / "h200.v2.parquet"
    assert outcome.measured == outcome.points == len(fake.measured) == told[-1][0]
    assert outcome.gaps == sum(outcome.profile.rows["beside"] != "") > 0
    profile = load_profile(tmp_path / "h200.v2")
    assert set(profile.rows["kernel"]) == set(MEASURED)
    origin = profile.provenance
    assert (origin.device, origin.sms, origin.model, origin.source) == ("H200", 132, "tiny", "measured")
    assert origin.settings["ceilings"] == {
        "bf16_flops": 2 * 24 * 2816 * 512 / 1e-3,
        "dram_bytes_per_s": 2 * (1 << 16) / 1e-3,
    }
    assert origin.settings["bandwidth_knee_sms"] == 68
    assert origin.settings["machine"] == "NVIDIA H200"
    assert fake.closed


def test_an_interrupted_measurement_goes_on_where_it_stopped(
    tmp_path: Path, fake: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.left = 30
    with pytest.raises(KeyboardInterrupt):
        measure(settings(tmp_path / "p"))
    assert fake.closed
    assert not (tmp_path / "p.parquet").exists()
    assert recover(tmp_path / "p").measured == 30
    second = FakeDevice()
    monkeypatch.setattr(campaign, "open_device", lambda name, spec: second)
    outcome = measure(settings(tmp_path / "p"))
    assert outcome.measured == outcome.points == 30 + len(second.measured)
    assert measure(settings(tmp_path / "p")).measured == outcome.points
    assert 30 + len(second.measured) == outcome.points


def test_a_time_limit_leaves_a_profile_of_what_is_done(
    tmp_path: Path, fake: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(campaign.time, "monotonic", lambda: next(clock))
    outcome = measure(settings(tmp_path / "p", limit_s=20.0))
    assert 0 < outcome.measured < outcome.points
    assert len(load_profile(tmp_path / "p").rows) == outcome.measured


def test_what_fails_is_told_and_tried_again(tmp_path: Path, fake: FakeDevice) -> None:
    fake.fails = "rotary"
    outcome = measure(settings(tmp_path / "p"))
    assert set(outcome.failed) == {
        f"rotary {m} x 8 x 4 x 64 on {sms}: no memory" for m in (1, 4, 16, 24) for sms in FakeDevice.shares.all
    }
    assert outcome.measured == outcome.points - len(outcome.failed)
    fake.fails = ""
    assert measure(settings(tmp_path / "p")).failed == ()
    fake.fails = "norm"
    with pytest.raises(ValueError, match=r"q\.journal\.jsonl holds no measurement; norm 1 x 512 on 132: no memory"):
        measure(settings(tmp_path / "q", kernels=("norm",)))


def test_other_settings_do_not_go_on(tmp_path: Path, fake: FakeDevice) -> None:
    measure(settings(tmp_path / "p", kernels=("norm",)))
    with pytest.raises(ValueError, match="begun with repeats = 2, this run has 3"):
        measure(settings(tmp_path / "p", kernels=("norm",), repeats=3))
    fake.name = "H100"
    with pytest.raises(ValueError, match="begun with device = H200, this run has H100"):
        measure(settings(tmp_path / "p", kernels=("norm",)))
    (tmp_path / "p.journal.jsonl").unlink()
    with pytest.raises(ValueError, match=r"p\.parquet exists and is not of an earlier start"):
        measure(settings(tmp_path / "p", kernels=("norm",)))


def test_saturation_is_where_copies_stop_to_gain() -> None:
    assert saturation({8: 1.0, 16: 2.0, 32: 3.9, 64: 4.0, 132: 4.1}) == 32
    assert saturation({132: 4.1}) is None


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["profile", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    (tmp_path / "file").write_text("")
    base = {"--device": "cpu", "--model": "tiny", "--out": str(tmp_path / "p")}
    for change, message in (
        ({"--device": "tpu"}, "device is 'tpu'; known: cpu, cuda"),
        ({"--repeats": "0"}, "repeats is 0; it must be 1 or more"),
        ({"--limit-s": "0"}, "limit-s is 0; it must be above 0 seconds"),
        ({"--limit-s": "nan"}, "limit-s is nan"),
        ({"--kernels": "gemm,softmax"}, "unknown kernel 'softmax'; known: gemm"),
        ({"--kernels": ","}, "--kernels ',' names no kernel"),
        ({"--model": "tinier"}, "unknown model 'tinier'"),
        ({"--model": "Qwen3-235B-A22B"}, "has a mixture of experts"),
        ({"--out": str(tmp_path / "file" / "p")}, "file: "),
        ({"--out": str(tmp_path)}, f"{tmp_path} is a directory; --out names a file in it"),
    ):
        given = [text for pair in {**base, **change}.items() for text in pair]
        assert message in refusal(capsys, *given)
    monkeypatch.setattr(campaign, "find_spec", lambda name: None)
    assert "install it by: pip install 'bulletsim[real]'" in refusal(capsys, *(t for p in base.items() for t in p))


def test_a_machine_without_a_gpu_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    line = refusal(capsys, "--device", "cuda", "--model", "tiny", "--out", str(tmp_path / "p"))
    assert "finds no CUDA GPU; take --device cpu, or install a torch built for CUDA" in line
    assert list(tmp_path.iterdir()) == []


def test_the_whole_of_a_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares_cpu.CpuDevice, "reach", SMALL)
    monkeypatch.setattr(shares_cpu, "SAMPLE_S", 1e-4)
    arguments = ["profile", "--device", "cpu", "--model", "tiny", "--out", str(tmp_path / "p"), "--repeats", "1"]
    assert run([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    profile = load_profile(tmp_path / "p")
    cores = len(os.sched_getaffinity(0))
    assert document["measured"] == document["points"] == len(profile.rows)
    assert set(document["kernels"]) == set(profile.rows["kernel"]) == set(MEASURED)
    assert document["failed"] == []
    assert (profile.provenance.device, profile.provenance.sms) == ("cpu", cores)
    ceilings = profile.provenance.settings["ceilings"]
    spec = cpu.cpu_device(cores, flops=ceilings["fp32_flops"], bytes_per_s=ceilings["dram_bytes_per_s"])
    assert spec.sms == cores
    if cores > 1:
        beside = profile.rows[profile.rows["beside"] != ""]
        pairs = set(zip(beside["kernel"], beside["beside"], strict=True))
        layers, traffic = ("prefill_layers", "decode_layers"), ("copy", "gemm")
        assert pairs == {layers, layers[::-1], traffic, traffic[::-1]}
    # Nothing is left to do, and the summary for people says the same.
    assert run([*arguments, "--quiet"]) == 0
    assert (
        f"tiny on cpu with {cores} cores: {len(profile.rows)} of {len(profile.rows)} points" in capsys.readouterr().out
    )


def test_a_killed_measurement_loses_nothing_and_leaves_no_process(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "import cli.main; cli.main.main()",
        "profile",
        "--device",
        "cpu",
        "--model",
        "tiny",
    ]
    command += ["--out", str(tmp_path / "p"), "--quick", "--kernels", "embedding,sampling", "--quiet"]
    journal = tmp_path / "p.journal.jsonl"

    def one_core() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    with subprocess.Popen(command, preexec_fn=one_core, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            time.sleep(0.01)
        workers = children(process.pid)
        process.send_signal(signal.SIGKILL)
    kept = journal.read_bytes()
    journal.write_bytes(kept + b'{"kernel": "samp')
    done = subprocess.run(command, preexec_fn=one_core, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert journal.read_bytes().startswith(kept)
    grid = plan(model("tiny"), Shares(1, ()), CPU, quick=True, kernels=("embedding", "sampling"))
    assert len(load_profile(tmp_path / "p").rows) == grid.points
    assert journal.read_bytes().count(b"\n") - 1 == 3 * grid.points, "three rounds, none of them repeated"
    assert workers
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def children(parent: int) -> list[int]:
    """Processes that a process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return found


def test_a_worker_that_died_is_named() -> None:
    device = shares_cpu.CpuDevice(model("tiny"))
    try:
        worker = device._own(Variant(1))
        worker.process.kill()
        worker.process.join()
        with pytest.raises(ValueError, match=r"the process on cores .* died with exit code -9; if memory is short"):
            list(device.measure(Group(Target("norm", (1, 64)), (Variant(1),)), 1))
    finally:
        device.close()


def test_the_cpu_as_a_device() -> None:
    spec = cpu.cpu_device(4, flops=1e11, bytes_per_s=2e10, bandwidth_knee_cores=2)
    assert (spec.sms, spec.bf16_flops, spec.dram_bytes_per_s, spec.bandwidth_knee_sms) == (4, 1e11, 1e10, 2)
    assert cpu.cpu_device(1).sms == 1
    with pytest.raises(ValueError, match="cores is 0; it must be 1 or more"):
        cpu.cpu_device(0)
    assert CPU.layers == 4


@pytest.mark.parametrize(("repeats", "rounds", "made"), [(1, 1, 1), (2, 2, 2), (3, 3, 3), (5, 3, 6)])
def test_rounds_are_put_together(tmp_path: Path, fake: FakeDevice, repeats: int, rounds: int, made: int) -> None:
    """Each round goes through the whole grid; a point has the times of all, and resuming asks only for what lacks."""
    fake.rounds = 3
    asked = settings(tmp_path / "p", repeats=repeats)
    outcome = measure(asked)
    once = len(fake.measured) // rounds
    assert fake.measured == fake.measured[:once] * rounds
    assert outcome.measured == outcome.points == once
    assert set(outcome.profile.rows["repeats"]) == {made}
    kept = outcome.profile.provenance.settings
    assert (kept["rounds"], kept["repeats"]) == (rounds, made)
    journal = tmp_path / "p.journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-2]))
    fake.measured.clear()
    assert measure(asked).measured == once
    assert len(fake.measured) == 2


def test_a_damaged_journal_is_refused_before_anything_is_measured(
    tmp_path: Path, fake: FakeDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(settings(tmp_path / "p"))
    fake.measured.clear()
    journal = tmp_path / "p.journal.jsonl"
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([*lines[:4], lines[4].replace('"seconds": [', '"seconds": [-'), ""]))
    given = ["--device", "cpu", "--model", "tiny", "--out", str(tmp_path / "p"), "--repeats", "2"]
    line = refusal(capsys, *given)
    assert f"{journal}, line 5: seconds is [-0.001, 0.001]; it must be a list of times above 0; remove" in line
    assert not fake.measured
