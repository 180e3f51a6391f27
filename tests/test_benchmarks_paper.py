"""The paper's figures: every command runs on a few requests, and reduces hand-made outcomes to the right numbers."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks.paper import (
    command,
    fig11,
    fig15,
    fig16,
    fig17,
    fig18,
    fig20,
    fig22,
    fig23,
    headline,
    samples,
    summary,
    utilisation,
    vllm,
)
from benchmarks.paper.command import Swept
from benchmarks.paper.numbers import Number, read_numbers, write_numbers
from benchmarks.paper.points import Point
from benchmarks.paper.runs import Outcome
from benchmarks.paper.setting import SYSTEMS
from policies import ChunkedPrefill
from profiler import Work, fitted, roofline
from profiler.devicecalibration import load_calibration
from tests.toys import serve

FEW = ("--requests", "6", "--seeds", "1", "--jobs", "1")

ONE_RATE: Mapping[ModuleType, Mapping[str, Any]] = {
    fig16: {"RATES": (20.0,)},
    fig17: {"RATES": {"ShareGPT": (3.0,), "Azure-Code": (0.3, 0.5)}},
    fig18: {"RATES": dict.fromkeys(fig18.SERVERS, (4.0,))},
    fig22: {"SHARES": (84, 108)},
    headline: {"RATES": {"ShareGPT": (20.0,)}},
    fig11: {"States": partial(fig11.States, every=37), "SAMPLES": (64,)},
}


def outcome(**values: float) -> Outcome:
    """One second for everything that is not given."""
    names = [field.name for field in dataclasses.fields(Outcome) if field.name != "by_reading"]
    return Outcome(**(dict.fromkeys(names, 1.0) | values), by_reading={})


def by_key(numbers: list[Number]) -> dict[str, Number]:
    return {number.key: number for number in numbers}


@pytest.mark.parametrize("name", summary.FIGURES)
def test_the_commands_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"benchmarks.paper.{name}")
    for constant, value in ONE_RATE.get(module, {}).items():
        monkeypatch.setattr(module, constant, value)
    drawn: list[Path] = []  # rendering takes longer than all else
    monkeypatch.setattr(command, "save", lambda drawing, path: drawn.append(path))
    monkeypatch.setattr(sys, "argv", [name, "--out", str(tmp_path), *FEW])
    module.main()
    assert drawn == [tmp_path / f"{name}.png"]
    assert {path.name for path in tmp_path.glob(f"{name}.*")} == {f"{name}.csv", f"{name}.numbers.csv"}
    numbers = read_numbers(tmp_path / f"{name}.numbers.csv")
    printed = capsys.readouterr().out
    assert numbers
    assert all(f"| {number.what} |" in printed for number in numbers)
    assert len({number.key for number in numbers}) == len(numbers)
    if module in ONE_RATE and module is not fig11:
        assert "Tokens of the sample served" in printed


def test_figure_15_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fig15, "RATES", {"ShareGPT": (10,), "Azure-Code": (4.0,), "arXiv-Summary": (0.5,)})
    monkeypatch.setattr(fig15, "config", partial(fig15.config, requests=6))
    monkeypatch.setattr(summary, "points", lambda: ())
    curves = fig15.simulate(tmp_path, seeds=(0,), jobs=1)
    fig15.write(tmp_path / "fig15.csv", curves, ())
    assert summary.fig15_numbers(tmp_path / "fig15.csv") == []
    assert fig15.draw(curves, ()).axes


def test_figure_16_takes_bullets_ttft_at_20() -> None:
    swept = {("ShareGPT", name, 20.0): [outcome(ttft_p90_s=2.0)] for name in SYSTEMS}
    swept["ShareGPT", "Bullet", 20.0] = [outcome(ttft_s=0.1, ttft_p90_s=0.2), outcome(ttft_s=0.3, ttft_p90_s=0.6)]
    found = by_key(fig16.numbers(swept))
    assert found["fig16.ttft_s"].ours == pytest.approx(0.2)
    assert found["fig16.ttft_p90_s"].difference == pytest.approx(0.4 / 0.31 - 1)
    assert found["fig16.least"].holds is True


def test_figure_17_in_ms_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fig17, "RATES", {"ShareGPT": (3.0,), "Azure-Code": (0.3, 0.5)})
    swept = {
        (name, system, rate): [outcome(normalised_s=0.3, normalised_p99_s=0.5)]
        for name, rates in fig17.RATES.items()
        for system in fig17.SYSTEMS
        for rate in rates
    }
    swept["ShareGPT", "Bullet", 3.0] = [outcome(normalised_s=0.173, normalised_p99_s=0.4)]
    swept["Azure-Code", "vLLM-1024", 0.3] = [outcome(normalised_s=0.2)]
    found = by_key(fig17.numbers(swept, {key: [outcome(normalised_s=0.9)] for key in swept}))
    assert found["fig17.ShareGPT.Bullet"].difference == pytest.approx(0)
    assert found["fig17.slower.Azure-Code.Bullet"].ours == pytest.approx(900)
    assert found["fig17.p99"].ours == pytest.approx(400)
    assert found["fig17.least_ShareGPT"].holds is True
    assert found["fig17.least_Azure-Code"].holds is False


def test_figure_18_compares_equal_gpus() -> None:
    swept = {(fig18.WORKLOAD, "Bullet", 4.0): [outcome(normalised_s=0.055, ttft_s=1.4, tpot_s=0.09)]}
    found = by_key(fig18.numbers({fig18.H20: swept}, [outcome(normalised_s=0.11)]))
    assert [found[f"fig18.{name}"].difference for name in fig18.PAPER] == pytest.approx([-0.5, 0, 1])
    assert found["fig18.3p1d"].ours == pytest.approx(2)


def test_figure_20_over_bullet() -> None:
    swept = {
        ("Azure-Code", "Bullet", 5.0): [outcome(ttft_s=0.5)],
        ("Azure-Code", "SGLang-2048", 5.0): [outcome(ttft_s=4.0), outcome(ttft_s=6.0)],
    }
    found = by_key(fig20.numbers(swept))
    assert found["fig20.ttft_s"].ours == pytest.approx(10)
    assert found["fig20.queueing_s"].ours == pytest.approx(1)


def test_figure_20_means_over_bins() -> None:
    """One prompt of 10 tokens from 0 on all ten SMs, in ten seconds' bins of half the run."""
    steps = serve(ChunkedPrefill(), [(0.0, 10, 1)], latency=roofline("tiny", "A100-80G")).steps
    edges = np.array([0.0, steps.end_s[0] / 2, steps.end_s[0], 2 * steps.end_s[0]])
    found = fig20.series(steps, edges)
    assert found["prefill_sms"] == pytest.approx([108, 108, 0])
    assert found["prefill_tokens"] == pytest.approx([10, 10, 0])
    assert found["decode_batch"] == pytest.approx([0, 0, 0])


def fixed_shares(**better: float) -> Swept:
    """Every share as good as Bullet in everything but what is given of 96 SMs."""
    swept = {
        (name, system, rate): [outcome()]
        for name, (rate,) in fig22.RATES.items()
        for system in ("Bullet", "SGLang-2048", *map(str, fig22.SHARES))
    }
    return swept | {("Azure-Code", "96", 5.0): [outcome(**better)]}


def test_figure_22_looks_for_a_share_that_is_better_in_all() -> None:
    two = by_key(fig22.numbers(fixed_shares(ttft_s=0.9, tpot_s=0.9)))
    assert two["fig22.none_Azure-Code"].holds is True
    three = by_key(fig22.numbers(fixed_shares(ttft_s=0.9, tpot_s=0.9, attainment=1.1)))
    assert three["fig22.none_Azure-Code"].holds is False
    assert three["fig22.none_ShareGPT"].holds is True
    swept = fixed_shares() | {("Azure-Code", "84", 5.0): [outcome(ttft_s=3.0, throughput_rps=0.5)]}
    found = by_key(fig22.numbers(swept))
    assert (found["fig22.ttft_84"].ours, found["fig22.rate_84"].ours) == (3.0, 0.5)


def test_figure_23_is_an_order() -> None:
    """P90 TTFT, TPOT of each variant, as the paper's text has them with a partition that nothing moves."""
    values = {
        "Naive": (2.0, 0.2),
        "w/Partition": (9.0, 0.05),
        "moved": (3.0, 0.1),
        "w/Scheduler": (1.5, 0.2),
        "Bullet": (1.0, 0.1),
    }
    swept = {
        ("Azure-Code", name, 5.0): [outcome(ttft_p90_s=ttft, tpot_s=tpot)] for name, (ttft, tpot) in values.items()
    }
    swept |= {("ShareGPT", name, 20.0): [outcome()] for name in values}
    assert all(number.holds for number in fig23.numbers(swept))
    swept["Azure-Code", "Naive", 5.0] = [outcome(ttft_p90_s=10.0, tpot_s=0.04)]
    fails = {number.key for number in fig23.numbers(swept) if not number.holds}
    assert fails == {"fig23.naive_tpot", "fig23.partition_ttft"}


def test_the_headline_is_a_mean_of_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bullet 2x and 4x faster to the first token: 3x; throughput 1.5x at most."""
    monkeypatch.setattr(headline, "RATES", {"ShareGPT": (10.0, 20.0)})
    swept = {("ShareGPT", system, rate): [outcome()] for system in SYSTEMS for rate in (10.0, 20.0)}
    swept["ShareGPT", "Bullet", 10.0] = [outcome(ttft_s=0.5, throughput_rps=1.5)]
    swept["ShareGPT", "Bullet", 20.0] = [outcome(ttft_s=0.25, attainment=0.8)]
    found = by_key(headline.numbers(swept))
    assert found["headline.mean_ttft_s"].ours == pytest.approx(3)
    assert found["headline.mean_throughput_rps"].ours == pytest.approx(1.25)
    assert found["headline.most_throughput"].ours == pytest.approx(1.5)
    assert found["headline.SGLang-1024_ttft_s"].ours == pytest.approx(4)
    assert found["headline.SGLang-1024_attainment"].ours == pytest.approx(0.8)


def test_utilisation_counts_what_launches_do() -> None:
    """One prompt: its FLOPs over those of the span; half of them when half of its step is inside."""
    model = roofline("tiny", "A100-80G")
    steps = serve(ChunkedPrefill(), [(0.0, 1024, 1)], latency=model).steps
    whole = float(steps.end_s[0])
    flops, moved = model.cost(utilisation._work(steps, 0, model.model.layers))
    active, tensor, bandwidth = utilisation.used(steps, model, whole)
    assert tensor == pytest.approx(100 * flops / whole / model.device.bf16_flops)
    assert bandwidth == pytest.approx(100 * moved / whole / model.device.dram_bytes_per_s)
    assert 0 < active < 100
    assert utilisation.used(steps, model, whole / 2) == pytest.approx((active, tensor, bandwidth))
    assert utilisation.used(steps, model, 2 * whole)[1] == pytest.approx(tensor / 2)


def test_figure_15_means_over_the_papers_points(tmp_path: Path) -> None:
    rows = ("workload,metric,system,request_rate_rps,ours,paper", "W,tpot_ms,S,1,10,20", "W,tpot_ms,S,2,30,60")
    path = tmp_path / "fig15.csv"
    path.write_text("\n".join((*rows, "W,tpot_ms,S,3,99,", "")))
    (found,) = summary.fig15_numbers(path)
    assert (found.ours, found.paper, found.difference) == (20, 40, -0.5)


def test_samples_are_held_against_each_of_the_papers_tpots() -> None:
    paper = [
        Point("ShareGPT", "tpot_ms", "SGLang-2048", 12.0, 100.0, "digitised"),
        Point("ShareGPT", "tpot_ms", "NanoFlow-1024", 12.0, 80.0, "digitised"),
        Point("ShareGPT", "ttft_s", "Bullet", 12.0, 1.0, "digitised"),
    ]
    assert samples.theirs(paper) == {("ShareGPT", "SGLang-2048", 12.0): 0.1}
    found = samples.row(("ShareGPT", "SGLang-2048", 12.0), 0.1, [0.05, 0.085, 0.12])
    assert found == ("ShareGPT", "SGLang-2048", "12/s", "100 ms", "85 ms", "50 ms", "120 ms", "-15%", "2 of 3")


def test_vllm_is_held_against_the_paper_under_each_of_its_kernels() -> None:
    """90 % is crossed halfway between 10 and 12 req/s; TPOT is 0.9 and 1.2 of the paper's."""
    curve = {
        10.0: [outcome(attainment=0.95, tpot_s=0.09), outcome(attainment=0.95, tpot_s=0.09)],
        12.0: [outcome(attainment=0.85, tpot_s=0.06)],
    }
    paper = [
        Point("ShareGPT", "rate_at_90pct_slo_rps", "vLLM-1024", None, 10.0, "digitised"),
        Point("ShareGPT", "tpot_ms", "vLLM-1024", 10.0, 100.0, "digitised"),
        Point("ShareGPT", "tpot_ms", "vLLM-1024", 12.0, 50.0, "digitised"),
        Point("ShareGPT", "tpot_ms", "vLLM-1024", 14.0, 1.0, "digitised"),
    ]
    found = vllm.row("ShareGPT", "vLLM-1024", "its own", curve, paper)
    assert found == ("ShareGPT", "vLLM-1024", "its own", "11/s", "10/s", "1.05")


def test_vllms_kernels_are_of_the_same_gpu_and_read_long_sequences_faster() -> None:
    same, own = fitted("Llama-3.1-8B", "A100-80G"), fitted("Llama-3.1-8B", load_calibration(vllm.OWN))
    assert own.device == same.device
    long = Work((), 16, 16 * 8192)
    assert own.estimate(long, 108).seconds < 0.8 * same.estimate(long, 108).seconds
    short = Work((), 16, 16 * 128)
    assert own.estimate(short, 108).seconds == pytest.approx(same.estimate(short, 108).seconds, rel=0.1)


def test_numbers_are_read_as_they_were_written(tmp_path: Path) -> None:
    numbers = (
        Number(figure="5", key="a", what="b", ours=1.25, paper=2.0, unit=" s"),
        Number(figure="5", key="c", what="d", holds=False),
        Number(figure="5", key="e", what="f", ours=3.0),
    )
    write_numbers(tmp_path / "numbers.csv", numbers)
    assert read_numbers(tmp_path / "numbers.csv") == numbers


def test_a_large_difference_needs_a_sentence() -> None:
    within, beyond = (
        Number(figure="5", key=key, what="b", ours=ours, paper=1.0) for key, ours in (("a", 1.15), ("b", 1.16))
    )
    order = Number(figure="5", key="c", what="d", holds=False)
    assert summary.unexplained([within, beyond, order], {}) == ["b", "c"]
    assert summary.unexplained([beyond, order], {"b": "so", "c": "so"}) == []


def test_every_large_difference_has_its_sentence() -> None:
    numbers, why = read_numbers(summary.SAVED), summary.sentences()
    assert summary.unexplained(numbers, why) == []
    assert set(why) <= {number.key for number in numbers}, "sentences of numbers that there are not"
    assert all(sentence.endswith(".") for sentence in why.values())


def test_the_page_shows_the_saved_numbers() -> None:
    page = summary.PAGE.read_text(encoding="utf-8")
    assert summary.with_table(page, read_numbers(summary.SAVED), summary.sentences()) == page
    pictures = sorted(path.name for path in summary.PICTURES.glob("*.png"))
    assert pictures == sorted(f"{figure}.png" for figure in (*summary.FIGURES, summary.FIG15))
    assert all(f"figures/paper/{name}" in page for name in pictures)
    assert all((summary.PICTURES / name).stat().st_size < 100_000 for name in pictures)
