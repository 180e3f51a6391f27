"""Run directories: what is written comes back, equal runs are equal bytes, nothing is left half-written."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import sim.rundir
from sim.columns import Columns, category_column, text_column, write_columns, write_groups
from sim.config import RunConfig, checked, load_config
from sim.metrics import Metrics, summarise
from sim.records import STATES, RunResult
from sim.rundir import check_target, holds_whole_run, load_run, replacing, write_run
from sim.simulate import prepare, simulate


def small(**changes: object) -> RunConfig:
    """A run of a fraction of a second."""
    settings = {
        "trace": "workload:sharegpt",
        "rate": 20.0,
        "requests": 20,
        "policy": "chunked",
        "model": "Llama-3.1-8B",
        "device": "A100-80G",
        "slo": {"ttft_s": 1.0, "tpot_s": 0.1},
    }
    return checked(RunConfig, settings | changes, "test")


def run(config: RunConfig, **options: bool) -> tuple[RunConfig, RunResult, Metrics]:
    prepared = prepare(config)
    result = prepared.run(**options)  # type: ignore[arg-type]
    return prepared.config, result, summarise(result, config.slo.value(), config.gpus)


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_run_comes_back_as_it_was(tmp_path: Path) -> None:
    config, result, metrics = run(small(queue_limit=1, rate=200.0))
    assert metrics.states["rejected"] > 0
    write_run(tmp_path / "run", config, result, metrics)
    back = load_run(tmp_path / "run")

    assert sorted(files(tmp_path / "run")) == ["config.json", "requests.parquet", "steps.parquet", "summary.json"]
    assert back.config == config
    assert back.summary == metrics.to_dict()
    for field in dataclasses.fields(result.records):
        np.testing.assert_array_equal(getattr(back.records, field.name), getattr(result.records, field.name))
    for field in dataclasses.fields(result.steps):
        if field.name not in ("lane", "lane_names"):
            np.testing.assert_array_equal(getattr(back.steps, field.name), getattr(result.steps, field.name))
    names = [[steps.lane_names[lane] for lane in steps.lane] for steps in (back.steps, result.steps)]
    assert names[0] == names[1]


def test_columns_are_those_of_the_design(tmp_path: Path) -> None:
    write_run(tmp_path / "run", *run(small()))
    assert Columns(tmp_path / "run" / "requests.parquet").names == (
        "request_id",
        "arrival_s",
        "prompt_tokens",
        "output_tokens",
        "generated_tokens",
        "scheduled_s",
        "first_token_s",
        "last_token_s",
        "itl_mean_s",
        "itl_max_s",
        "preemptions",
        "cached_tokens",
        "instance",
        "state",
        "reason",
    )
    assert Columns(tmp_path / "run" / "steps.parquet").names == (
        "start_s",
        "end_s",
        "instance",
        "lane",
        "sms",
        "prefill_tokens",
        "prefill_requests",
        "decode_requests",
        "context_tokens",
        "layers",
        "predicted_s",
        "waiting",
        "free_blocks",
    )


def test_what_never_happened_is_null(tmp_path: Path) -> None:
    write_run(tmp_path / "run", *run(small(queue_limit=1, rate=200.0)))
    file = Columns(tmp_path / "run" / "requests.parquet")
    rejected = [state == "rejected" for state in file.texts("state")]
    assert [value is None for value in file.values("first_token_s")] == rejected
    assert set(file.texts("state")) <= set(STATES)


def test_equal_seeds_give_equal_bytes_and_config_json_repeats_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "first", *run(small(seed=3), keep_token_times=True))
    write_run(tmp_path / "again", *run(load_config(tmp_path / "first" / "config.json"), keep_token_times=True))
    write_run(tmp_path / "other", *run(small(seed=4), keep_token_times=True))
    first, again, other = (files(tmp_path / name) for name in ("first", "again", "other"))
    assert first == again
    assert first["requests.parquet"] != other["requests.parquet"]


def test_token_times_are_every_token_once(tmp_path: Path) -> None:
    config, result, metrics = run(small(), keep_token_times=True)
    write_run(tmp_path / "run", config, result, metrics)
    tokens = Columns(tmp_path / "run" / "token_times.parquet")
    assert len(tokens) == result.records.generated_tokens.sum()
    assert tokens.names == ("request_id", "token", "time_s")


def test_an_existing_target_is_kept_unless_forced(tmp_path: Path) -> None:
    target = tmp_path / "run"
    write_run(target, *run(small()))
    before = files(target)
    with pytest.raises(ValueError, match=r"already exists.*--force"):
        write_run(target, *run(small(seed=1)))
    assert files(target) == before
    write_run(target, *run(small(seed=1)), force=True)
    assert files(target) != before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_force_replaces_runs_only(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not a run"):
        check_target(tmp_path, force=True)


def test_force_replaces_a_link_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path / "real", *run(small()))
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    write_run(link, *run(small(seed=1)), force=True)
    assert not link.is_symlink()
    assert load_run(link).config.seed == 1
    assert load_run(tmp_path / "real").config.seed == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_a_link_to_nothing_is_something(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "absent")
    with pytest.raises(ValueError, match="already exists"):
        check_target(link, force=False)
    with pytest.raises(ValueError, match=r"link is a link to nothing; remove it"):
        check_target(link, force=True)


@pytest.mark.parametrize("existing", [True, False])
def test_a_failed_rename_is_told_and_restores_what_was_moved(
    existing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "run"
    if existing:
        write_run(target, *run(small()))
    rename = Path.rename

    def fail(self: Path, to: Path) -> Path:
        if ".partial-" in self.name:
            raise PermissionError(13, "Permission denied", str(self))
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(PermissionError, match=r"Permission denied: '.*/run'"):
        write_run(target, *run(small(seed=1)), force=True)
    assert [path.name for path in tmp_path.iterdir()] == (["run"] if existing else [])
    assert not existing or load_run(target).config.seed == 0


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    target = tmp_path / "x.txt"
    with replacing(target) as first, replacing(target) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert target.read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["x.txt"]


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    def fill() -> None:
        with replacing(tmp_path / "x.txt") as partial:
            partial.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"x\.txt") as caught:
        fill()
    assert (caught.value.errno, caught.value.filename) == (28, str(tmp_path / "x.txt"))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sim.rundir, "write_json", fail)
    with pytest.raises(OSError, match="No space"):
        write_run(tmp_path / "run", *run(small()))
    assert list(tmp_path.iterdir()) == []


def test_an_empty_run_can_be_written(tmp_path: Path) -> None:
    config, result, metrics = run(small(until_s=1e-6, arrivals="constant:1"))
    write_run(tmp_path / "run", config, result, metrics)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["arrived"] == len(result.records)
    assert len(load_run(tmp_path / "run").records) == len(result.records)


def test_reading_names_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a directory"):
        load_run(tmp_path / "absent")
    write_run(tmp_path / "run", *run(small()))
    (tmp_path / "run" / "requests.parquet").write_bytes(b"no parquet")
    with pytest.raises(ValueError, match=r"requests\.parquet is not a readable Parquet file"):
        load_run(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"config\.json is not JSON of ours: it is nested too deeply"):
        load_run(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text("null")
    with pytest.raises(ValueError, match=r"config\.json holds nothing: settings are expected"):
        load_run(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"instances": 0}, "test: instances is 0: input should be greater than or equal to 1"),
        ({"slo": {"tpot_s": -1.0}}, r"test: slo\.tpot_s is -1\.0"),
        ({"speed": 3}, "test: speed is not a setting; known: trace, arrivals, rate"),
        (
            {"slo": {"speed": 3}},
            "test: slo.speed is not a setting; known: ttft_s, ttft_per_token_s, ttft_floor_s",
        ),
        ({"policy": {}}, "test: policy.name is missing"),
        ({"slo": []}, r"test: slo is \[\]: settings are expected there"),
        (
            {"slo": {"ttft_floor_s": 1.0}},
            "test: slo: ttft_floor_s is 1, but there is no TTFT limit.*--slo-ttft-per",
        ),
        ({"instances": 10_001}, "test: instances is 10001: .*less than or equal to 10000"),
        ({"requests": 10**10}, "test: requests is 10000000000: .*less than or equal to 10000000"),
        ({"requests": "10"}, "test: requests is '10'"),
        ({"memory_fraction": float("nan")}, "test: memory_fraction is nan"),
    ],
)
def test_wrong_settings_are_named_in_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        small(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "nope"}, "unknown policy 'nope'"),
        ({"model": "nope"}, "unknown model 'nope'"),
        ({"device": "nope"}, "unknown device 'nope'"),
        ({"rate": None}, "has no arrival times"),
        ({"kv_blocks": 2}, "exceed the 2 KV blocks.*--oversized reject"),
        ({"model": "tiny", "requests": 300}, "the context of tiny.*--oversized reject"),
        ({"trace_sha256": "0" * 64}, "is not the one these settings were made with"),
        ({"block_tokens": 10**9}, "use smaller blocks"),
    ],
)
def test_what_cannot_run_is_refused_before_it_starts(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare(small(**changes))


def test_oversized_requests_can_be_rejected_and_counted() -> None:
    config = small(kv_blocks=20, oversized="reject")
    metrics = summarise(simulate(config), config.slo.value(), config.gpus)
    assert metrics.reject_reasons["kv_capacity"] == metrics.states["rejected"] > 0


def test_latency_settings_reach_the_model() -> None:
    plain = summarise(simulate(small()), small().slo.value(), 1)
    slowed = summarise(simulate(small(latency={"pass_overhead_s": 0.05})), small().slo.value(), 1)
    assert plain.tpot_s is not None
    assert slowed.tpot_s is not None
    assert slowed.tpot_s.mean > plain.tpot_s.mean + 0.04


def test_categories_are_numbered_by_their_first_rows(tmp_path: Path) -> None:
    path, names = tmp_path / "c.parquet", ("a", "b", "c")
    codes = np.array([2, 0, 2, 1], np.int8)
    write_groups(path, ({"x": category_column(codes[rows], names)} for rows in (slice(0, 3), slice(3, 4))))
    found, order = Columns(path).categories("x")
    assert (found.tolist(), order) == ([0, 1, 0, 2], ("c", "a", "b"))
    write_columns(path, {"x": text_column(["c", "a", "c"])})
    found, order = Columns(path).categories("x")
    assert (found.tolist(), order) == ([0, 1, 0], ("c", "a"))
    with pytest.raises(ValueError, match="column x: of type large_string; wanted: numbers"):
        Columns(path).floats("x")


@pytest.mark.parametrize(
    ("summary", "whole"), [("{}", True), ('{"interrupted_s": 1.0}', False), ("{", False), ("3", False), (None, False)]
)
def test_a_whole_run_has_a_sound_summary(tmp_path: Path, summary: str | None, whole: bool) -> None:
    if summary is not None:
        (tmp_path / "summary.json").write_text(summary)
    assert holds_whole_run(tmp_path) is whole
