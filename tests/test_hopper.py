"""The comparison with measured serving points: rows are read right, served as engines would, and summed up."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks import hopper
from benchmarks.engines import ENGINES
from benchmarks.hopper import Pair, Point
from sim.records import StepLog
from sim.simulate import prepare

FILE = hopper.FOLDER.parent / hopper.FILE
needs_points = pytest.mark.skipif(not FILE.is_file(), reason="no measured serving points beside the checkout")

HEADER = (
    "backend,backend_version,model,system,precision,gemm_quant_mode,prompt_tokens,output_tokens,concurrency_setting,"
    "measured_concurrency,tp_size,silicon_ttft_ms,silicon_tpot_ms"
)
ROWS = (
    "trtllm,1.0.0rc3,meta-llama/Llama-3.1-8B-Instruct,h100_sxm,,,200,8,4.0,4.0,1.0,20.0,8.0",
    "sglang,0.5.1.post1,Qwen/Qwen3-32B,h100_sxm,,,300,8,4.0,4.0,2.0,100.0,16.0",
    "vllm,,meta-llama/Llama-3.1-70B,h200_sxm,fp8,fp8,100,8,4.0,,4.0,80.0,10.0",
)


def point(backend: str, **changes: int) -> Point:
    """Three clients whose prompts do not fit one budget together."""
    lengths = {"prompt_tokens": 3000, "output_tokens": 6, "concurrency": 4, "tensor_parallel": 1} | changes
    return Point(backend=backend, model="Llama-3.1-8B", device="H100", fp8=False, ttft_s=0.1, tpot_s=0.01, **lengths)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder with three rows."""
    path = tmp_path / hopper.FILE
    path.parent.mkdir()
    path.write_text("\n".join((HEADER, *ROWS)) + "\n")
    return tmp_path


def steps(backend: str, tmp_path: Path) -> StepLog:
    trace = tmp_path / "lengths.csv"
    trace.write_text("prompt_tokens,output_tokens\n" + "3000,6\n" * 8)
    return prepare(hopper.config(point(backend), trace)).run().steps


def test_rows_become_points(shared: Path) -> None:
    first, second, third = hopper.read_points(shared / hopper.FILE)
    assert first == Point("trtllm", "Llama-3.1-8B", "H100", False, 200, 8, 4, 1, 0.02, 0.008)
    assert (second.model, second.tensor_parallel, second.fp8) == ("Qwen3-32B", 2, False)
    assert (third.device, third.fp8) == ("H200", True)
    assert [hopper.group(p) for p in (first, second, third)] == ["Llama-3.1-8B TP1", "TP above 1", "fp8"]


def test_a_row_without_counterpart_is_refused(shared: Path) -> None:
    path = shared / hopper.FILE
    path.write_text(path.read_text().replace("Qwen/Qwen3-32B", "Qwen/Qwen9"))
    with pytest.raises(ValueError, match=r"model is 'Qwen/Qwen9'; known: meta-llama/Llama-3\.1-8B-Instruct"):
        hopper.read_points(path)


@needs_points
def test_the_groups_of_the_public_rows() -> None:
    points = hopper.read_points(FILE)
    groups = [hopper.group(one) for one in points]
    counts = {name: groups.count(name) for name in set(groups)}
    assert counts == {"Llama-3.1-8B TP1": 26, "Qwen3-32B TP1": 2, "TP above 1": 162, "fp8": 209}


@needs_points
def test_one_public_row_end_to_end() -> None:
    pair = hopper.serve(hopper.read_points(FILE)[146], rounds=2)
    assert (pair.point.backend, pair.point.concurrency, pair.point.prompt_tokens) == ("trtllm", 8, 1024)
    assert abs(pair.tpot_error) < 0.12
    assert 0 < pair.batch < 8


@pytest.mark.parametrize("backend", ENGINES)
def test_every_request_counts(backend: str) -> None:
    pair = hopper.serve(point(backend, prompt_tokens=50), rounds=3)
    assert 0 < pair.ttft_s < 0.1
    assert 0.001 < pair.tpot_s < 0.1


def test_vllm_fills_its_budget_and_mixes(tmp_path: Path) -> None:
    found = steps("vllm", tmp_path)
    assert found.prefill_tokens[0] == 8192
    assert np.any((found.prefill_tokens > 0) & (found.decode_requests > 0))


def test_trtllm_cuts_no_prompt_and_mixes(tmp_path: Path) -> None:
    found = steps("trtllm", tmp_path)
    assert set(found.prefill_tokens % 3000) == {0}
    assert np.any((found.prefill_tokens > 0) & (found.decode_requests > 0))


def test_sglang_prefills_before_anybody_decodes(tmp_path: Path) -> None:
    found = steps("sglang", tmp_path)
    assert list(found.prefill_tokens[:2]) == [8192, 4 * 3000 - 8192]
    assert not np.any((found.prefill_tokens > 0) & (found.decode_requests > 0))


def test_residuals_find_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    """A millisecond a step and 20 us a request are missing from twelve rows of different batches."""
    pairs = []
    for clients in range(1, 13):
        pair = Pair(point("vllm", concurrency=clients), ttft_s=0.0, tpot_s=0.01)
        slower = pair.point._replace(tpot_s=0.01 + 0.001 + 20e-6 * clients)
        pairs.append(pair._replace(point=slower))
    found = hopper.residual(pairs)
    assert found.step_s == pytest.approx(0.001)
    assert found.request_s == pytest.approx(20e-6)
    assert found.left.median == pytest.approx(0.0, abs=1e-9)
    hopper.report(pairs)
    assert "| vllm | TP1 | 12 | 1.00 | 20.0 | 0.0 |" in capsys.readouterr().out


def test_the_script_prints_and_writes_all_rows(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = shared / "rows.csv"
    assert hopper.main(["--shared", str(shared), "--rounds", "1", "--jobs", "1", "--rows", str(written)]) == 0
    printed = capsys.readouterr().out
    for name in ("| Llama-3.1-8B TP1 | 1 |", "| TP above 1 | sglang | Qwen3-32B | TP2 | 1 |", "| fp8 | 1 |"):
        assert name in printed
    with written.open(newline="") as file:
        assert [row["backend"] for row in csv.DictReader(file)] == ["trtllm", "sglang", "vllm"]


def test_a_check_of_nothing_does_not_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hopper.main(["--shared", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} has no silicon/dense_hopper.csv")
