"""Recorded runs replayed: to identical decisions and records, cut off anywhere, changed, and damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from real.executor import DeviceExecutor
from real.launches import HOST_PARTS
from real.recording import Recorder, ReplayDiffers
from real.residents import Residents
from real.serving import Replayed, recover, replay
from sim import RunResult
from sim.simulate import Prepared
from tests.inline_lanes import NotingExecutor, drawn_seconds
from tests.reference_model import one_thread
from tests.test_real_model import SPEC
from tests.twins import POLICIES, SLOTS, Rows, Twin, lanes_for

FEW: Rows = ((0.0, 17, 3), (0.01, 33, 2), (0.2, 5, 4))


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twin]:
    with one_thread():
        yield Twin.at(tmp_path_factory.mktemp("twin"))


def record(ready: Prepared, path: Path, seed: int = 0) -> tuple[RunResult, NotingExecutor]:
    """A run in this process, recorded at ``path``."""
    config = ready.config
    lanes = lanes_for(ready, drawn_seconds(Random(seed)), seed)
    residents = Residents(instances=config.instances, slots=SLOTS, vocab=SPEC.vocab, seed=config.seed)
    executor = NotingExecutor(lanes, residents, layers=SPEC.layers, clock=lanes.clock)
    path.unlink(missing_ok=True)
    with Recorder(executor, path, {"config": config.model_dump(mode="json"), "facts": {}}) as recorder:
        return ready.loop(executor=recorder).run(), executor


def assert_same(one: Any, other: Any, what: str = "result") -> None:
    """Equal to the last bit, in all parts."""
    if hasattr(one, "__dataclass_fields__"):
        for part in fields(one):
            assert_same(getattr(one, part.name), getattr(other, part.name), f"{what}.{part.name}")
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other, err_msg=what)
    else:
        assert one == other, what


@st.composite
def traffic(draw: st.DrawFn) -> list[tuple[float, int, int]]:
    count = draw(st.integers(1, 5))
    arrivals = sorted(draw(st.lists(st.sampled_from((0.0, 0.01, 0.3)), min_size=count, max_size=count)))
    return [(at, draw(st.sampled_from((1, 16, 40))), draw(st.sampled_from((1, 2, 9)))) for at in arrivals]


@settings(max_examples=20, deadline=None)
@given(rows=traffic(), label=st.sampled_from(sorted(POLICIES)), seed=st.integers(0, 1 << 16), blocks=st.integers(4, 20))
def test_a_replay_is_the_run(
    tmp_path_factory: pytest.TempPathFactory, twin: Twin, rows: Rows, label: str, seed: int, blocks: int
) -> None:
    path = tmp_path_factory.mktemp("replay") / "answers.jsonl"
    result, executor = record(twin.prepared(label, rows, kv_blocks=blocks), path, seed)
    replayed = replay(path)
    assert replayed.finished
    assert_same(replayed.result, result)
    assert replayed.tokens == executor.tokens
    assert replayed.decisions == len(replayed.launches) == len(result.steps)
    assert_same(replayed.launches.start_s, result.steps.start_s)
    assert_same(replayed.launches.end_s, result.steps.end_s)
    for name in ("begin_s", "finish_s", "granted_sms"):
        assert getattr(replayed.launches, name).tolist() == [getattr(one, name) for one in executor.times]
    parts = replayed.launches.host_s(result.records.arrival_s)
    assert all((parts[name] >= 0).all() for name in HOST_PARTS)


@pytest.mark.parametrize("label", ["bullet", "disaggregation"])
def test_a_recording_cut_off_anywhere_is_replayed_as_far_as_it_goes(twin: Twin, tmp_path: Path, label: str) -> None:
    path = tmp_path / "answers.jsonl"
    whole, _ = record(twin.prepared(label, FEW), path)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) > 40
    lasted: list[int] = []
    for count in range(1, len(lines) + 1):
        # Cut between two lines, after a character, or in the middle of the next.
        following = lines[count] if count < len(lines) else b""
        path.write_bytes(b"".join(lines[:count]) + following[: (0, 1, len(following) // 2)[count % 3]])
        found = replay(path)
        assert found.finished == (count == len(lines))
        assert found.answers == count - 1
        lasted.append(check_part(found, whole))
    assert lasted == sorted(lasted)
    assert lasted[-1] == len(FEW)


def check_part(found: Replayed, whole: RunResult) -> int:
    """What had finished is as in the whole run; how many requests that is."""
    records, steps = found.result.records, found.result.steps
    assert len(found.launches) == len(steps)
    assert_same(steps.end_s, whole.steps.end_s[: len(steps)])
    done = np.flatnonzero(records.state == 0)
    for name in ("first_token_s", "last_token_s", "itl_max_s", "generated_tokens", "request_id", "scheduled_s"):
        mine, theirs = (np.array(getattr(one, name))[done] for one in (records, whole.records))
        np.testing.assert_array_equal(mine, theirs, err_msg=name)
    for row, tokens in found.tokens.items():
        assert len(tokens) == records.generated_tokens[row]
    return len(done)


def test_what_is_left_of_a_recording_becomes_a_run(twin: Twin, tmp_path: Path) -> None:
    recording, target = tmp_path / "answers.jsonl", tmp_path / "run"
    record(twin.prepared("chunked", FEW), recording)
    lines = recording.read_text().splitlines(keepends=True)
    for count in (1, 2, len(lines) // 2, len(lines)):
        recording.write_text("".join(lines[:count]))
        replayed = recover(recording, target, {"more": 1})
        assert not recording.exists()
        assert (target / "answers.jsonl").read_text() == "".join(lines[:count])
        facts = json.loads((target / "real.json").read_text())
        assert facts == {
            "more": 1,
            "finished": count == len(lines),
            "replay": {"answers": count - 1, "decisions": replayed.decisions},
        }
    # What was moved into the run is as good as where it was.
    assert_same(replay(target / "answers.jsonl").result, replayed.result)


Lines = list[list[Any]]


def changed(path: Path, change: Callable[[Lines], object]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def nth(lines: Lines, kind: str, number: int) -> list[Any]:
    return [line for line in lines if line[0] == kind][number]


def another(name: str, value: Any) -> Callable[[Lines], object]:
    return lambda lines: lines[0][2]["config"].update({name: value})


CHANGES: dict[str, tuple[Callable[[Lines], object], str]] = {
    "another decision": (
        lambda lines: nth(lines, "start", 2)[3].__setitem__(2, 1),
        r"launch 2 is .*sms 8.* recorded as launch 2, .*sms 1, ",
    ),
    "another launch": (lambda lines: nth(lines, "start", 2).__setitem__(1, 7), "launch 2 is .* recorded as launch 7"),
    "another policy": (
        another("policy", {"name": "static-split", "settings": {}}),
        "launch 0 is instance 0, lane prefill, sms 4.* recorded as launch 0, instance 0, lane main, sms 8",
    ),
    "another latency model": (
        lambda lines: lines[0][2]["config"]["latency"].update(launch_overhead_s=0.5),
        r"launch 0 is .*predicted_s 0\.5.* recorded as launch 0, .*predicted_s 0\.0",
    ),
    "another answer": (
        lambda lines: lines.pop(next(row for row, line in enumerate(lines) if line[0] == "start")),
        "the loop asked for start after 1 answers, and 'none' was recorded",
    ),
    "a launch done twice": (
        lambda lines: nth(lines, "done", 1).__setitem__(1, 0),
        "launch 0 is recorded as done, and is not in flight",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_replay_that_differs_names_the_launch(twin: Twin, tmp_path: Path, what: str) -> None:
    path = tmp_path / "answers.jsonl"
    record(twin.prepared("chunked", FEW), path)
    change, message = CHANGES[what]
    changed(path, change)
    with pytest.raises(ReplayDiffers, match=f"^{message}.*; replay with the version and the settings"):
        replay(path)


def set_line(number: int, text: str) -> Callable[[list[str]], object]:
    return lambda lines: lines.__setitem__(number, text)


DAMAGE: dict[str, tuple[Callable[[list[str]], object], str]] = {
    "nothing": (lambda lines: lines.clear(), "is no recording of version 1"),
    "no recording": (set_line(0, "[1, 2]"), "line 1: '\\[1, 2\\]' is no line of a recording"),
    "another version": (set_line(0, '["recording", 2, {}]'), "is no recording of version 1"),
    "no settings": (set_line(0, '["recording", 1, 5]'), "holds no settings of a run"),
    "settings of something else": (set_line(0, '["recording", 1, {"facts": {}}]'), "holds no settings of a run"),
    "settings that are wrong": (
        set_line(0, '["recording", 1, {"config": {"trace": 1}, "facts": {}}]'),
        "trace is 1: input should be a valid string",
    ),
    "facts that are none": (set_line(0, '["recording", 1, {"config": {}, "facts": 3}]'), "holds no settings of a run"),
    "no JSON": (set_line(3, "['none']"), "line 4: .* is no line of a recording; the file is damaged"),
    "half a line": (set_line(3, '["start", 0, 0.1'), "line 4: "),
    "an object": (set_line(3, "{}"), "line 4: "),
    "an unknown answer": (set_line(3, '["never"]'), "line 4: "),
    "too few entries": (set_line(3, '["done", 1]'), "line 4: "),
    "text for a time": (set_line(2, '["now", "soon"]'), "line 3: "),
    "no decision": (set_line(2, '["start", 0, 0.1, 5]'), "line 3: "),
    "half a decision": (set_line(2, '["start", 0, 0.1, [0, "main"]]'), "line 3: "),
    "a launch that is text": (set_line(3, '["done", "x", 0.1, 0.1, 0.1, 0.1, 1, []]'), "line 4: "),
    "tokens that are none": (set_line(3, '["done", 0, 0.1, 0.1, 0.1, 0.1, 1, [5]]'), "line 4: "),
    "deep": (set_line(3, "[" * 100_000), "line 4: "),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_recording_is_refused_in_one_line(twin: Twin, tmp_path: Path, what: str) -> None:
    path = tmp_path / "answers.jsonl"
    record(twin.prepared("chunked", FEW), path)
    lines = path.read_text().splitlines()
    change, message = DAMAGE[what]
    change(lines)
    path.write_text("".join(line + "\n" for line in lines))
    for read in (replay, lambda path: recover(path, tmp_path / "run")):
        with pytest.raises(ValueError, match=message) as caught:
            read(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)
    assert path.exists(), "it stays what it is"
    assert not (tmp_path / "run").exists()


def test_a_token_of_nobody_is_damage(twin: Twin, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    record(twin.prepared("chunked", FEW), path)
    changed(path, lambda lines: nth(lines, "done", 0)[7].append([99, 1]))
    with pytest.raises(ValueError, match="a token of request 99, and 3 requests came; it is damaged"):
        recover(path, tmp_path / "run")


def test_what_is_not_there_or_no_text_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent.jsonl does not exist; a recording is the answers.jsonl of a run"):
        replay(tmp_path / "absent.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\n")
    with pytest.raises(ValueError, match="binary is no recording: it is not text"):
        replay(tmp_path / "binary")


def test_a_lane_on_a_gpu_has_no_processor_time(twin: Twin, tmp_path: Path) -> None:
    """NaN is none of JSON: it is written as null."""

    class Timeless(DeviceExecutor):
        def next(self, until_s: float | None) -> Any:
            completion = super().next(until_s)
            if self.last is not None:
                self.last = self.last._replace(processor_s=float("nan"))
            return completion

    ready, path = twin.prepared("chunked", FEW), tmp_path / "answers.jsonl"
    lanes = lanes_for(ready, lambda job: 0.01)
    residents = Residents(instances=1, slots=SLOTS, vocab=SPEC.vocab, seed=0)
    executor = Timeless(lanes, residents, layers=SPEC.layers, clock=lanes.clock)
    with Recorder(executor, path, {"config": ready.config.model_dump(mode="json"), "facts": {}}) as recorder:
        ready.loop(executor=recorder).run()
    assert "NaN" not in path.read_text()
    assert np.isnan(replay(path).launches.processor_s).all()
