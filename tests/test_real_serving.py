"""One run on a device, from its settings to its directory, and how it ends before its time."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest

from real.hosttime import OutsideTime
from real.lanes import DeviceError, Done, Job
from real.launches import load_launches
from real.layout import Layout, finished
from real.pace import paced
from real.serving import check_servable, recording_of, replay, serve
from sim.instance import PolicyError
from sim.records import STATES
from sim.rundir import load_run
from sim.simulate import Prepared
from tests.inline_lanes import InlineLanes, drawn_seconds, served_by_its_clock
from tests.reference_model import one_thread
from tests.test_real_model import SPEC
from tests.test_real_pace import layers
from tests.toys import cpu_profile
from tests.twins import POLICIES, Rows, Twin, lanes_for

ROWS: Rows = ((0.0, 17, 9), (0.01, 33, 12), (0.2, 5, 4), (0.4, 40, 8))


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twin]:
    with one_thread():
        yield Twin.at(tmp_path_factory.mktemp("twin"))


class Breaking(InlineLanes):
    """Raises ``error`` in place of job number ``last``, or of its answer."""

    error: BaseException = DeviceError("the device is gone; look for it")
    last = 12
    early = True

    def submit(self, job: Job) -> None:
        if self.early and job.job_id == self.last:
            raise self.error
        super().submit(job)

    def wait(self, timeout_s: float | None) -> Done | None:
        done = super().wait(timeout_s)
        if done is not None and done.job_id == self.last:
            raise self.error
        return done


def served(ready: Prepared, target: Path, lanes: InlineLanes | None = None, **given: Any) -> Any:
    lanes = lanes or lanes_for(ready, drawn_seconds(Random(5)))
    with served_by_its_clock(lanes):
        return serve(ready, lanes, target, **{"facts": {"device": lanes.settings}, **given})


def broken(ready: Prepared, **changes: Any) -> InlineLanes:
    lanes = lanes_for(ready, drawn_seconds(Random(5)))
    lanes.__class__ = type("Broken", (Breaking,), changes)
    return lanes


def facts_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "real.json").read_text())
    return found


@pytest.mark.parametrize("label", POLICIES)
def test_a_run_is_a_directory_of_the_simulator_and_more(twin: Twin, tmp_path: Path, label: str) -> None:
    run = tmp_path / "deep" / "run"
    served(twin.prepared(label, ROWS), run, afterwards=lambda: {"energy": 3})
    assert sorted(path.name for path in run.iterdir()) == [
        "answers.jsonl",
        "config.json",
        "launches.parquet",
        "real.json",
        "requests.parquet",
        "steps.parquet",
        "summary.json",
        "tokens.parquet",
    ]
    assert [path.name for path in run.parent.iterdir()] == ["run"]
    facts = facts_of(run)
    assert facts["energy"] == 3
    assert facts["finished"] is True
    assert facts["device"] == {"machine": "a test"}
    loaded, launches = load_run(run), load_launches(run / "launches.parquet")
    assert facts["replay"]["decisions"] == len(loaded.steps) == len(launches)
    np.testing.assert_array_equal(loaded.steps.start_s, launches.start_s)
    np.testing.assert_array_equal(loaded.steps.end_s, launches.end_s)
    tokens = pd.read_parquet(run / "tokens.parquet")
    found = {name: rows.sort_values("position") for name, rows in tokens.groupby("request_id")}
    expected = twin.expected(ROWS)
    for number, name in enumerate(loaded.records.request_id):
        assert found[name]["token"].tolist() == expected[number]
        assert found[name]["position"].tolist() == list(range(len(expected[number])))


def test_a_later_run_takes_the_place_of_an_earlier_one(twin: Twin, tmp_path: Path) -> None:
    run = tmp_path / "run"
    served(twin.prepared("chunked", ROWS), run, facts={"number": 1})
    recording_of(run).write_text("left by one that was killed")
    served(twin.prepared("chunked", ROWS), run, facts={"number": 2})
    assert facts_of(run)["number"] == 2


ENDS: dict[str, tuple[dict[str, Any], type[BaseException]]] = {
    "the device fails as a job is sent": ({}, DeviceError),
    "the device fails at a job": ({"early": False}, DeviceError),
    "Ctrl-C": ({"early": False, "error": KeyboardInterrupt()}, KeyboardInterrupt),
    "memory": ({"error": MemoryError()}, MemoryError),
    "at once": ({"last": 0}, DeviceError),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("label", ["bullet", "disaggregation"])
def test_what_had_finished_is_kept(twin: Twin, tmp_path: Path, how: str, label: str) -> None:
    changes, error = ENDS[how]
    ready, run = twin.prepared(label, ROWS), tmp_path / "run"
    served(ready, tmp_path / "whole")
    with pytest.raises(error):
        served(ready, run, broken(ready, **changes))
    assert not finished(run)
    assert facts_of(run)["finished"] is False
    assert list(tmp_path.glob(".*")) == []
    part, whole = load_run(run), load_run(tmp_path / "whole")
    assert len(part.steps) < len(whole.steps)
    assert (len(part.steps) > 0) == (how != "at once")
    np.testing.assert_array_equal(part.steps.end_s, whole.steps.end_s[: len(part.steps)])
    assert len(load_launches(run / "launches.parquet")) == len(part.steps)


@pytest.mark.parametrize("least", [100, 4000])
def test_a_full_disk_is_told_by_its_file(twin: Twin, tmp_path: Path, least: int) -> None:
    """In the first line of a recording, and in the middle."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (least, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as error:
            served(twin.prepared("chunked", ROWS), tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(error.value.filename).startswith(str(tmp_path))
    assert not (tmp_path / "run").exists()


def test_a_policy_that_fails_keeps_what_had_finished(twin: Twin, tmp_path: Path) -> None:
    """A replay meets the same failure: it is the end of the recording, not a fault of it."""
    file = tmp_path / "own.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom policies import ChunkedPrefill\n\n"
        "@dataclass(frozen=True, slots=True, kw_only=True)\nclass Tired(ChunkedPrefill):\n"
        "    def decide(self, view):\n"
        "        if len(view.outcomes) == 2:\n            raise RuntimeError('enough')\n"
        "        return ChunkedPrefill.decide(self, view)\n"
    )
    ready = twin.prepared("chunked", ROWS, policy=f"{file}:Tired")
    run = tmp_path / "run"
    with pytest.raises(PolicyError, match="enough"):
        served(ready, run)
    assert facts_of(run)["finished"] is False
    assert sorted(load_run(run).records.state.tolist())[:2] == [STATES.index("finished")] * 2


@pytest.mark.parametrize("label", POLICIES)
def test_lanes_serve_again_after_a_run_that_was_stopped_in_the_middle(twin: Twin, tmp_path: Path, label: str) -> None:
    """Launches in flight at --until used to be taken for those of the next run on the same lanes."""
    short, whole = twin.prepared(label, ROWS, until_s=0.15), twin.prepared(label, ROWS)
    lanes = lanes_for(whole, drawn_seconds(Random(5)))
    first = served(short, tmp_path / "short", lanes)
    assert first.finished
    assert len(first.launches) < first.decisions, "something was in flight"
    assert facts_of(tmp_path / "short")["replay"]["decisions"] == first.decisions
    second = served(whole, tmp_path / "whole", lanes)
    assert second.tokens == twin.expected(ROWS)


def test_the_host_takes_what_is_outside_the_device(twin: Twin, tmp_path: Path) -> None:
    found = served(twin.prepared("chunked", ROWS), tmp_path / "run")
    launches = found.launches
    alone = launches.end_s - launches.start_s - launches.device_s
    outside, prefills = OutsideTime.of(found), found.result.steps.prefill_tokens > 0
    assert 0 < alone[prefills].mean() <= outside.prefill_s < 1e-3
    assert 0 < alone[~prefills].mean() <= outside.decode_s < 1e-3
    nothing = served(twin.prepared("chunked", [(5.0, 3, 3)], until_s=1.0), tmp_path / "nothing")
    assert OutsideTime.of(nothing) == OutsideTime(0.0, 0.0)


def test_what_a_device_cannot_do_is_refused(twin: Twin) -> None:
    check_servable(twin.prepared("chunked", ROWS))
    for changes, message in (
        ({"reuse_preempted": True}, "reuse_preempted is simulated only"),
        ({"tensor_parallel": 2, "device": "H100", "latency": {}, "kv_blocks": 100}, "tensor_parallel is 2"),
    ):
        with pytest.raises(ValueError, match=message):
            check_servable(twin.prepared("chunked", ROWS, **changes))


def test_recordings_left_behind_become_runs_and_others_stay(twin: Twin, tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    cell = layout.cell("chunked(budget_tokens=24)", 0.5)
    served(twin.prepared("chunked", ROWS), cell / "real-1")
    lines = (cell / "real-1" / "answers.jsonl").read_text().splitlines(keepends=True)
    recording_of(cell / "real-2").write_text("".join(lines[:30]))
    recording_of(cell / "real-3").write_text("no recording\n")
    layout.warm("bullet").parent.mkdir()
    recording_of(layout.warm("bullet")).write_text("".join(lines[:3]))
    assert layout.rescue() == [cell / "real-2", layout.warm("bullet")]
    assert layout.rescue() == []
    assert recording_of(cell / "real-3").exists()
    assert [finished(cell / f"real-{number}") for number in (1, 2, 3)] == [True, False, False]
    assert layout.real(cell) == [cell / "real-1", cell / "real-2"]
    assert replay(cell / "real-2" / "answers.jsonl").answers == 29


def test_probes_run_on_lanes_that_then_serve(twin: Twin, tmp_path: Path) -> None:
    ready = twin.prepared("bullet", ROWS)
    lanes = lanes_for(ready, drawn_seconds(Random(5)))
    rows = [layers("prefill", 4, 0.1, new=64), layers("decode", 4, 0.1, cached=9, many=8)]
    found = paced(cpu_profile(8, "tiny", rows), lanes, [("prefill", "decode")], 8)
    assert len(found.probes) == 2
    assert served(ready, tmp_path / "run", lanes).tokens == twin.expected(ROWS)
    assert SPEC.layers == 4
