"""A real vLLM run, where its folder lies beside the checkout, against the same requests simulated."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import vllm_run
from benchmarks.vllm_run import Comparison, compare, configuration, first_steps, measured, simulated
from sim import RunResult
from sim.config import RunConfig
from sim.simulate import simulate

needs_run = pytest.mark.skipif(
    not (vllm_run.FOLDER / vllm_run.REQUESTS).is_file(), reason="no folder of a vLLM run beside the checkout"
)

TOLERANCES = {
    "TTFT, mean": 0.03,
    "TPOT, mean": 0.02,
    "end to end, mean": 0.02,
    "end to end, P99": 0.02,
    "makespan": 0.02,
}
"""How far simulated may be from measured, with the fitted model of the device."""

DECODE_STEP_TOLERANCE = 0.03
FULL_STEP_TOLERANCE = 0.03


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return configuration(vllm_run.FOLDER)


@pytest.fixture(scope="module")
def result(config: RunConfig) -> RunResult:
    return simulate(config)


@needs_run
def test_what_was_measured() -> None:
    """The figures of the run, taken from its file alone."""
    real = measured(vllm_run.FOLDER)
    assert len(real.first_s) == 300
    assert float(real.ttft_s.mean()) == pytest.approx(65.457, abs=1e-3)
    assert float(real.tpot_s.mean()) == pytest.approx(0.032447, abs=1e-6)
    assert real.makespan_s == pytest.approx(183.567, abs=1e-3)


@needs_run
def test_latencies_and_makespan(result: RunResult) -> None:
    found = {row.name: row for row in compare(measured(vllm_run.FOLDER), simulated(result))}
    off = {name: found[name].error for name, limit in TOLERANCES.items() if abs(found[name].error) > limit}
    assert off == {}


@needs_run
def test_steps_whose_contents_are_known(result: RunResult) -> None:
    full, alone = first_steps(measured(vllm_run.FOLDER), simulated(result), result.steps)
    assert (full.kind, alone.kind) == ("prompts fill the budget", "decodes alone")
    assert full.number >= 10
    assert alone.number == pytest.approx(500, abs=2)
    assert full.simulated_s == pytest.approx(full.measured_s, rel=FULL_STEP_TOLERANCE)
    assert alone.simulated_s == pytest.approx(alone.measured_s, rel=DECODE_STEP_TOLERANCE)


@needs_run
def test_reuse_after_preemptions_is_what_shortens_the_run(config: RunConfig, result: RunResult) -> None:
    """Without it, what is recomputed makes the same engine at least two percent slower."""
    without = simulate(config.model_copy(update={"reuse_preempted": False}))
    assert result.records.preemptions.sum() > 100
    assert result.records.cached_tokens.sum() > 30_000
    assert without.records.cached_tokens.sum() == 0
    assert without.end_s > 1.02 * result.end_s


def test_an_absent_run_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vllm_run.main([str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(f"error: {tmp_path} lacks requests.jsonl or meta.json")


def test_a_run_made_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three requests, of which two start together: every table prints, and equal times differ by nothing."""
    meta = {
        "model": "meta-llama/Llama-3.1-8B",
        "hardware": {"device_name": "NVIDIA GeForce RTX 4090"},
        "engine_kwargs": {"max_num_batched_tokens": 512, "max_num_seqs": 8},
        "kv_cache": {"num_gpu_blocks": 101, "block_size": 16, "enable_prefix_caching": True},
    }
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    rows = [(0.0, 500, 20, 0.0, 0.1, 0.6), (0.05, 300, 30, 0.1, 0.2, 1.0), (0.05, 100, 40, 0.1, 0.2, 1.2)]
    names = ("queued_ts", "input_toks", "output_toks", "scheduled_ts", "first_token_ts", "last_token_ts")
    lines = [json.dumps({"request_id": f"r{i}", **dict(zip(names, row, strict=True))}) for i, row in enumerate(rows)]
    (tmp_path / "requests.jsonl").write_text("\n".join(lines) + "\n")
    config = configuration(tmp_path)
    assert (config.kv_blocks, config.reuse_preempted, config.policy.settings["budget_tokens"]) == (100, True, 512)
    assert vllm_run.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("\n3 requests, Llama-3.1-8B on RTX-4090; simulated: 0 pre-emptions")
    real = measured(tmp_path)
    assert np.array_equal(real.arrival_s, [0.0, 0.05, 0.05])
    assert all(row.error == 0 for row in compare(real, real))
    assert Comparison("", 2.0, 3.0).error == 0.5
