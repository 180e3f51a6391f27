"""``bulletsim profiles``: import, info, and refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import run
from profiler.profile import Profile, Provenance, load_profile

GEMM = (
    "device,kernel_source,gemm_dtype,m,n,k,latency_ms\n"
    "NVIDIA H200,torch,bfloat16,256,4096,1024,0.02\n"
    "NVIDIA H200,torch,bfloat16,512,4096,1024,0.03\n"
    "NVIDIA H200,torch,fp8_block,512,4096,1024,0.015\n"
)


@pytest.fixture
def gemm(tmp_path: Path) -> str:
    path = tmp_path / "h200_gemm_perf.csv"
    path.write_text(GEMM, encoding="utf-8")
    return str(path)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["profiles", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def test_import_writes_a_profile_that_info_shows(tmp_path: Path, gemm: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "h200-0.24.0"
    assert run(["profiles", "import", "aiconfigurator", gemm, "--device", "H200", "--out", str(out)]) == 0
    assert "H200, 132 SMs: 2 rows, imported" in capsys.readouterr().out
    profile = load_profile(out)
    assert profile.provenance.rows == 2
    assert sorted(path.name for path in out.parent.iterdir()) == ["h200-0.24.0.json", "h200-0.24.0.parquet"]
    assert run(["profiles", "info", f"{out}.json"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "gemm: m 256-512, n 4,096, k 1,024" in shown
    assert "left out: gemm rows in fp8_block: 1" in shown
    assert str(profile.provenance.rows_sha256) in shown


def test_json_is_one_document(tmp_path: Path, gemm: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "h200.parquet")
    arguments = ["profiles", "import", "aiconfigurator", gemm, "--device", "H200", "--out", out, "--fp8", "block"]
    assert run([*arguments, "--json"]) == 0
    imported = json.loads(capsys.readouterr().out)
    assert run(["profiles", "info", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == imported
    (bf16, fp8) = imported["kernels"]
    assert (bf16["dtype"], bf16["rows"], bf16["shapes"]["m"], bf16["spread"]) == ("bf16", 2, [256, 512], None)
    assert (fp8["dtype"], fp8["latency_s"]) == ("fp8", [pytest.approx(15e-6)] * 2)
    assert (imported["device"], imported["source"], imported["rows"]) == ("H200", "imported", 3)


def test_a_profile_is_replaced_only_by_force(tmp_path: Path, gemm: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["import", "aiconfigurator", gemm, "--device", "H200", "--out", str(tmp_path / "h200")]
    assert run(["profiles", *arguments]) == 0
    capsys.readouterr()
    assert "h200.parquet: exists already; choose another name" in refused(capsys, *arguments)
    assert run(["profiles", *arguments, "--force"]) == 0


def test_refusals(tmp_path: Path, gemm: str, capsys: pytest.CaptureFixture[str]) -> None:
    def message(*arguments: str, device: str = "H200") -> str:
        return refused(capsys, "import", *arguments, "--device", device, "--out", str(tmp_path / "x"))

    assert "unknown format 'csv'; known: aiconfigurator, vllm-tables, vidur" in message("csv", gemm)
    assert "unknown device 'B200'; known: A100-80G" in message("aiconfigurator", gemm, device="B200")
    assert "--model has no meaning for aiconfigurator from files" in message("aiconfigurator", gemm, "--model", "x")
    assert "--backend has no meaning for aiconfigurator from" in message("aiconfigurator", gemm, "--backend", "vllm")
    assert "--fp8 is 'row'; known: tensor, block" in message("aiconfigurator", gemm, "--fp8", "row")
    assert "--all-reduce is 'ring'; known: custom, nccl" in message("aiconfigurator", "--all-reduce", "ring")
    assert "vidur is read from files; name them" in message("vidur")
    assert "vllm-tables are read a folder at a time; 2 were named" in message("vllm-tables", gemm, gemm)
    assert "measured on 'NVIDIA H200', which is not the device H100" in message("aiconfigurator", gemm, device="H100")
    assert not list(tmp_path.glob("x*"))
    assert "does not exist; a profile is NAME.parquet" in refused(capsys, "info", str(tmp_path / "none"))
    assert "no such file" in message("aiconfigurator", str(tmp_path / "gemm_perf.csv"))


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("", "--out is '.', which names no file; give a name such as out/profile"),
        (".", "--out is '.', which names no file"),
        ("..", "--out is '..', which names no file"),
        ("/proc/x.json", "/proc/x.json cannot be written: "),
        ("{gemm}/x", "{gemm}/x cannot be written: {gemm} is a file, not a folder; choose another name"),
    ],
)
def test_a_name_that_cannot_be_written_is_refused_before_tables_are_read(
    out: str, message: str, gemm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["import", "aiconfigurator", f"{gemm}.missing", "--device", "H200", "--out", out.format(gemm=gemm)]
    assert message.format(gemm=gemm) in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"kernels": 5, "left_out": {"a": "b"}}, ["kernels: 5", "left out: a: b"]),
        ({"kernels": {"gemm": 5, "copy": ["x", 1], "norm": None}}, ["copy was: x, 1", "gemm was: 5", "norm was: None"]),
        ({"kernels": ["gemm", "copy"], "left_out": 12345}, ["kernels: gemm, copy", "left out: 12,345"]),
        ({"kernels": [], "left_out": None}, []),
    ],
)
def test_info_prints_what_it_can_of_free_settings(
    settings: dict[str, object], shown: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = Provenance(device="H200", sms=132, source="imported", origin="x", date="", settings=settings)
    row = {"kernel": "copy", "dtype": "bf16", "bytes": 64, "sms": 132, "latency_s": 1.0}
    Profile.of([row], origin).save(tmp_path / "p")
    assert run(["profiles", "info", str(tmp_path / "p")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("date: not stated") + 1 : -1] == shown
