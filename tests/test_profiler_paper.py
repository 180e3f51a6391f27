"""The paper's statements about kernels, and measured tables, against the numbers that the benchmark prints."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from pathlib import Path
from types import ModuleType

import pytest

from profiler import Work

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("paper_kernels", ROOT / "benchmarks" / "paper_kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


paper = load()

needs_profiles = pytest.mark.skipif(
    not (SHARED / "profiles" / "NOTICE.md").exists(), reason="measured profiles are not beside the repository"
)


@pytest.mark.parametrize("tokens", paper.PAPER_TABLE_2)
def test_table_2(tokens: int) -> None:
    """QKV, attention, O and the MLP's sum, in percent, as printed to one digit."""
    assert paper.idle_shares(tokens)[:4] == pytest.approx(paper.PAPER_TABLE_2[tokens][:4], abs=0.06)


def test_layers_reach_the_papers_share_of_peak() -> None:
    """Whole layers reach 70-76 % of the peak."""
    for tokens in paper.PAPER_TABLE_2:
        assert 0.70 <= paper.layer_efficiency(tokens) <= 0.76


def test_a_16k_prompt_in_1k_chunks() -> None:
    """Total 1.13x the unchunked, last chunk 1.9x the first, efficiency from 71 % to 61 %."""
    ours = paper.chunking(1024)
    assert 1.09 <= ours.total_ratio <= 1.17
    assert ours.last_over_first == pytest.approx(1.9, rel=0.10)
    assert ours.first_efficiency == pytest.approx(0.71, abs=0.02)
    assert ours.last_efficiency == pytest.approx(0.61, abs=0.02)


def test_2k_chunks_lose_less() -> None:
    """A 2k chunk takes 1.86x a 1k chunk."""
    one, two = paper.chunking(1024), paper.chunking(2048)
    assert two.first_s / one.first_s == pytest.approx(1.86, rel=0.05)
    assert two.total_ratio < one.total_ratio


@pytest.mark.parametrize("tokens", paper.HALVING_PROMPTS)
def test_prefill_on_half_the_sms_is_about_twice_as_slow(tokens: int) -> None:
    assert 1.7 <= paper.slowdown(Work(prefill=((tokens, 0),)), 54) <= 2.1


@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16, 24, 32, 48, 64])
@pytest.mark.parametrize("context", [512, 2048, 16384])
def test_decode_on_half_the_sms_is_hardly_slower(batch: int, context: int) -> None:
    assert paper.slowdown(paper.decode(batch, context), 54) <= 1.25


@needs_profiles
def test_decode_follows_the_derived_curves() -> None:
    """From 16 SMs up within 0.35 of another server's fitted curve, whose knee is softer than the paper's."""
    compared = 0
    for shape, sms, theirs in paper.derived_decode_curves(SHARED):
        batch, context = (int(part.partition("=")[2]) for part in shape.split())
        ours = paper.slowdown(Work(decode_requests=batch, decode_context_tokens=context), sms)
        if sms >= 16:
            assert ours == pytest.approx(theirs, abs=0.35)
            compared += 1
    assert compared > 20


@needs_profiles
@pytest.mark.parametrize("device", paper.PROFILES)
def test_default_efficiencies_hold_on_measured_kernels(device: str) -> None:
    """Medians of tables that the defaults were not derived from."""
    assert statistics.median(paper.measured_gemm_efficiency(SHARED, device)) == pytest.approx(0.86, abs=0.04)
    assert statistics.median(paper.measured_attention_efficiency(SHARED, device)) == pytest.approx(0.62, abs=0.08)
    assert statistics.median(paper.measured_skinny_efficiency(SHARED, device)) == pytest.approx(0.80, abs=0.09)


def test_the_benchmark_prints_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paper.print_paper()
    paper.print_scaling(tmp_path)
    printed = capsys.readouterr().out
    assert "| 1024 | 11.1 (11.1) | 21.0 (21.0) | 40.7 (40.7) | 13.0 (13.0) |" in printed
    assert "Measured tables skipped" in printed
