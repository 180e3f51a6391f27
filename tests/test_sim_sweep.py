"""Sweeps: the grid is spelled out as written, cells run once, failures and interrupts cost only themselves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import sim.simulate
from sim.columns import plain_column, write_columns
from sim.config import PolicySettings, RunConfig
from sim.fanout import Fanout
from sim.fingerprint import fingerprint
from sim.metrics import Metrics
from sim.results import load_results
from sim.simulate import CannotRun, check_all, measure, measure_together, prepare
from sim.sweep import run_sweep
from sim.sweep_cells import Cell, cells
from sim.sweep_spec import read_spec

TWO = Fanout(jobs=2)
SPEC = """
base:
  trace: workload:sharegpt
  model: Llama-3.1-8B
  device: A100-80G
  requests: 8
  slo: {ttft_per_token_s: 0.003, ttft_floor_s: 1.0, tpot_s: 0.15}
policies:
  - chunked
  - {name: chunked, label: chunked-2048, settings: {budget_tokens: 2048}}
grid:
  rate_per_gpu: [4, 8]
  slo.tpot_s: [0.1, 0.15]
"""


def spelled(tmp_path: Path, text: str) -> list[Cell]:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    return cells(read_spec(path), "spec.yaml")


def test_every_combination_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = spelled(tmp_path, SPEC)
    assert [(cell.config.rate, cell.config.slo.tpot_s, cell.label) for cell in found] == [
        (rate, tpot, label) for rate in (4.0, 8.0) for tpot in (0.1, 0.15) for label in ("chunked", "chunked-2048")
    ]
    assert found[1].config.policy.settings == {"budget_tokens": 2048}
    assert found[0].config.slo.ttft_per_token_s == 0.003


def test_rates_per_gpu_count_all_gpus(tmp_path: Path) -> None:
    found = spelled(tmp_path, SPEC + "  instances: [1, 3]\n")
    assert [cell.config.rate for cell in found[:4]] == [4.0, 4.0, 12.0, 12.0]


def test_cases_have_settings_and_grids_of_their_own(tmp_path: Path) -> None:
    cases = "cases:\n  - {trace: 'workload:code', grid: {rate_per_gpu: [1]}}\n  - {seed: 5}\n"
    found = spelled(tmp_path, SPEC + cases)
    assert [(cell.config.trace, cell.config.rate, cell.config.seed) for cell in found[::2]] == [
        *[("workload:code", 1.0, 0)] * 2,
        *[("workload:sharegpt", 4.0, 5)] * 2,
        *[("workload:sharegpt", 8.0, 5)] * 2,
    ]


def test_policy_settings_in_the_grid_show_in_the_label(tmp_path: Path) -> None:
    text = SPEC.split("  - {name")[0]
    found = spelled(tmp_path, text + "grid: {rate: [4], policy.max_resident: [16, 32]}\n")
    assert [cell.label for cell in found] == ["chunked max_resident=16", "chunked max_resident=32"]
    assert [cell.config.policy.settings for cell in found] == [{"max_resident": 16}, {"max_resident": 32}]


def test_all_policies_meet_the_same_requests_at_the_same_times(tmp_path: Path) -> None:
    text = SPEC.replace("- chunked\n", "- chunked\n  - bullet\n", 1)
    ready = [prepare(cell.config) for cell in spelled(tmp_path, text)[:3]]
    assert len({run.policy.name for run in ready}) == 2
    assert len({run.config.trace_sha256 for run in ready}) == 1
    arrivals = [run.arrivals.source(run.trace, run.config.seed).peek_s() for run in ready]
    assert len(set(arrivals)) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "spec.yaml, line 1: not YAML"),
        ("policies: []", "policies is .*at least 1 item"),
        (SPEC + "speed: 3\n", "speed is not a setting"),
        (SPEC.replace("[4, 8]", "[4, -8]"), r"spec.yaml, line 12 \(rate_per_gpu=-8, slo.tpot_s=0.1\): rate is -8.0"),
        (SPEC.replace("[4, 8]", "[4, 4]"), "two cells are the same run .*chunked and chunked, rate 4.0"),
        (SPEC.replace("[4, 8]", "[]"), "rate_per_gpu is .*at least 1 item"),
        (SPEC.replace("slo.tpot_s", "slo.tpott_s"), "slo.tpott_s is not a setting"),
        (SPEC.replace("slo.tpot_s", "seed.x"), "seed.x"),
        (
            SPEC.replace("label: chunked-2048", "label: chunked"),
            "policies: two are called 'chunked'; give each a label",
        ),
        (
            SPEC.split("  - {name")[0] + "grid: {rate: [4]}\ncases: [{}, {policy: {max_resident: 16}}]\n",
            "two policies are called 'chunked', which would make them one",
        ),
        (SPEC + "  slo.tpot_s: [0.2]\n", r"spec.yaml, line 14: not YAML: slo.tpot_s is given twice"),
        ("", "spec.yaml holds nothing: settings are expected"),
        ("base: {}", "spec.yaml: policies is missing"),
        ("[" * 5000, "spec.yaml is no sweep: it is nested too deeply"),
        (SPEC + "  rate: [3]\n", "rate and rate_per_gpu are both given"),
        (SPEC.replace("  requests: 8", "  policy: bullet"), "name policies in the list"),
    ],
)
def test_a_wrong_spec_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        spelled(tmp_path, text)
    assert "\n" not in str(caught.value)


class Counting:
    """A runner that counts its calls and does ``then`` first."""

    def __init__(self, then: Callable[[RunConfig], None] = lambda config: None) -> None:
        self.calls = 0
        self.then = then

    def __call__(self, configs: Sequence[RunConfig]) -> list[Metrics]:
        self.calls += len(configs)
        for config in configs:
            self.then(config)
        return measure_together(configs)


def test_a_second_start_runs_what_is_missing(tmp_path: Path) -> None:
    found, out, run = spelled(tmp_path, SPEC), tmp_path / "out", Counting()
    first = run_sweep(found[:3], out, run=run)
    again = run_sweep(found, out, run=run, spec=tmp_path / "spec.yaml")
    assert run.calls == len(found)
    assert (first.resumed, again.resumed) == (0, 3)
    assert (out / "spec.yaml").read_text() == SPEC
    assert [row["cell"] for row in load_results(out)] == [cell.key for cell in found]
    assert not (out / "failures.json").exists()


@pytest.mark.parametrize(
    "content",
    [
        b'{"config": {}, "met',
        b"{}",
        b"[]",
        b"null",
        b'{"metrics": 3}',
        b'{"metrics": {"states": {}}}',
        b"\xff\x00",
        b"[",
        b"[" * 100_000,
        b"STATES",
    ],
    ids=range(10),
)
def test_a_damaged_cell_runs_again(content: bytes, tmp_path: Path) -> None:
    found, out, run = spelled(tmp_path, SPEC)[:2], tmp_path / "out", Counting()
    run_sweep(found, out, run=run)
    cell = out / "cells" / f"{found[0].key}.json"
    if content == b"STATES":
        document = json.loads(cell.read_text())
        document["metrics"]["states"] = {"finished": "all"}
        content = json.dumps(document).encode()
    whole = (out / "results.parquet").read_bytes()
    cell.write_bytes(content)
    run_sweep(found, out, run=run)
    assert run.calls == 3
    assert (out / "results.parquet").read_bytes() == whole


def test_failures_are_listed_and_the_rest_goes_on(tmp_path: Path) -> None:
    def fail_at_eight(config: RunConfig) -> None:
        if config.rate == 8.0:
            raise RuntimeError("no\nluck")

    found, out = spelled(tmp_path, SPEC), tmp_path / "out"
    done = run_sweep(found, out, run=Counting(fail_at_eight))
    assert (len(done.rows), len(done.failures)) == (4, 4)
    listed = json.loads((out / "failures.json").read_text())["failures"]
    assert listed[0]["error"] == "RuntimeError: no luck"
    assert [failure["cell"] for failure in listed] == [cell.key for cell in found if cell.config.rate == 8.0]
    assert listed[3]["settings"] == {"rate_per_gpu": 8, "slo.tpot_s": 0.15}
    assert done.failures[3].shown == "chunked-2048 (rate_per_gpu=8, slo.tpot_s=0.15)"
    healed = run_sweep(found, out, run=Counting())
    assert (healed.resumed, len(healed.failures)) == (4, 0)
    assert not (out / "failures.json").exists()


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    def interrupt_at_eight(config: RunConfig) -> None:
        if config.rate == 8.0:
            raise KeyboardInterrupt

    found, out = spelled(tmp_path, SPEC), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_sweep(found, out, run=Counting(interrupt_at_eight))
    assert len(load_results(out)) == 4


def test_processes_give_what_one_process_gives(tmp_path: Path) -> None:
    found = spelled(tmp_path, SPEC)[:3]
    alone = run_sweep(found, tmp_path / "alone", run=measure_together)
    told: list[tuple[int, int]] = []
    several = run_sweep(
        found, tmp_path / "several", run=measure_together, fanout=TWO, progress=lambda *at: told.append(at)
    )
    assert alone.rows == several.rows
    assert (told[0], told[-1], len(told)) == ((0, 3), (3, 3), 3)
    results = [(tmp_path / name / "results.parquet").read_bytes() for name in ("alone", "several")]
    assert results[0] == results[1]


def test_a_row_has_settings_and_metrics(tmp_path: Path) -> None:
    found = spelled(tmp_path, SPEC)[1:2]
    run_sweep(found, tmp_path / "out", run=measure_together)
    (row,) = load_results(tmp_path / "out")
    metrics = measure(found[0].config)
    assert row["policy"] == "chunked-2048"
    assert (row["policy_name"], row["policy_settings"]) == ("chunked", '{"budget_tokens": 2048}')
    assert (row["rate"], row["gpus"], row["slo_tpot_s"]) == (4.0, 1, 0.1)
    assert metrics.ttft_s is not None
    assert row["ttft_p90_s"] == metrics.ttft_s.p90
    assert (row["finished"], row["attainment"]) == (8, metrics.attainment)


def test_the_key_is_of_settings_and_version_not_of_the_label(tmp_path: Path) -> None:
    first = spelled(tmp_path, SPEC)[0]
    second = spelled(tmp_path, SPEC.replace("- chunked\n", "- {name: chunked, label: x}\n"))[0]
    assert first.label != second.label
    assert first.key == second.key
    newer = first.config.model_copy(update={"version": "99"})
    assert fingerprint(newer) != fingerprint(first.config)


def test_the_key_follows_the_files_that_settings_name(tmp_path: Path) -> None:
    """A policy edited between two sweeps must not meet the results of its former self."""
    config = spelled(tmp_path, SPEC)[0].config
    own = tmp_path / "own.py"
    for change in ({"trace": str(own)}, {"policy": PolicySettings(name=f"{own}:Mine")}):
        keys = set()
        for content in ("x", "yy", "zzz"):
            own.write_text(content)
            keys.add(fingerprint(config.model_copy(update=change)))
        assert len(keys) == 3


def test_of_a_folder_only_what_is_read_makes_the_key(tmp_path: Path) -> None:
    config = spelled(tmp_path, SPEC)[0].config.model_copy(update={"trace": str(tmp_path), "model": str(tmp_path)})
    keys = []
    for name in ("chunk-0-trace.csv", "chunk-0-dataset.json", "config.json", "notes.txt"):
        (tmp_path / name).write_text(name)
        keys.append(fingerprint(config))
    assert len(set(keys)) == 3
    assert keys[2] == keys[3]


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    found = spelled(tmp_path, SPEC)
    with pytest.raises(ValueError, match="holds no sweep"):
        run_sweep(found, tmp_path, run=measure_together)


def test_failures_of_processes_are_in_the_grids_order(tmp_path: Path) -> None:
    found = spelled(tmp_path, SPEC)
    done = run_sweep(found, tmp_path / "out", run=fail_later, fanout=TWO)
    assert [failure.cell for failure in done.failures] == [cell.key for cell in found]


def fail_later(configs: Sequence[RunConfig]) -> list[Metrics]:
    time.sleep(0.3 if configs[0].rate == 4.0 else 0.0)
    raise RuntimeError("no luck")


def test_another_parquet_file_is_no_sweep(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    write_columns(path, {"start_s": plain_column([1.0])})
    with pytest.raises(ValueError, match=r"results\.parquet is not of a sweep: it has no column"):
        load_results(tmp_path)
    run_sweep(spelled(tmp_path, SPEC)[:1], tmp_path / "out", run=measure_together)
    (row,) = load_results(tmp_path / "out")
    write_columns(path, {name: plain_column([value]) for name, value in {**row, "rate": "fast"}.items()})
    with pytest.raises(ValueError, match=r"results\.parquet, column rate: 'fast'"):
        load_results(tmp_path)


def test_every_cell_is_checked_and_each_trace_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    open_trace = sim.simulate.open_trace
    monkeypatch.setattr(
        sim.simulate, "open_trace", lambda *given, **named: (opened.append(given), open_trace(*given, **named))[1]
    )
    found = [cell.config for cell in spelled(tmp_path, SPEC)]
    check_all(found)
    assert opened == [("workload:sharegpt", 0, 8)]
    wrong = found[-1].model_copy(update={"arrivals": "sometimes"})
    with pytest.raises(CannotRun, match=r"^arrivals 'sometimes'") as caught:
        check_all([*found, wrong])
    assert caught.value.place == len(found)


def test_what_changes_while_a_sweep_runs_is_told(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text("x")
    config = spelled(tmp_path, SPEC)[0].config.model_copy(update={"trace": str(own)})
    found = [Cell(label="x", config=config.model_copy(update={"seed": seed})) for seed in (0, 1)]

    def edit(configs: Sequence[RunConfig]) -> list[Metrics]:
        own.write_text("edited")
        raise RuntimeError("first")

    done = run_sweep(found, tmp_path / "out", run=edit)
    assert [failure.error for failure in done.failures] == [
        "RuntimeError: first",
        "ValueError: code or files are others where it ran than where the sweep began; start it again",
    ]
