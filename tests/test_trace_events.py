"""bulletsim plot trace: what the Trace Event Format asks of every event, and the times of a run worked out by hand."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.main import run
from sim.records import StepLog
from sim.rundir import load_run
from sim.trace_events import request_events, step_events, write_events
from tests.test_report import made

NEEDED = {
    "M": {"name", "ph", "pid", "tid", "args"},
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "b": {"name", "cat", "id", "ph", "ts", "pid", "tid", "args"},
    "e": {"name", "cat", "id", "ph", "ts", "pid", "tid"},
}
"""By phase the fields that each event has, as the format's description names them."""


def steps(start_s: list[float], end_s: list[float], lane: list[int], instance: list[int]) -> StepLog:
    ones = np.ones(len(start_s), np.int64)
    return StepLog(
        lane_names=("prefill", "link"),
        start_s=np.array(start_s),
        end_s=np.array(end_s),
        instance=np.array(instance),
        lane=np.array(lane, np.int8),
        sms=np.where(np.array(lane) == 0, 54, 0),
        prefill_tokens=100 * ones,
        prefill_requests=ones,
        decode_requests=0 * ones,
        context_tokens=ones,
        layers=ones,
        predicted_s=0.5 * ones,
        waiting=3 * ones,
        free_blocks=7 * ones,
    )


def flat(parts: Any) -> list[dict[str, Any]]:
    return [event for part in parts for event in part]


def test_steps_are_on_threads_of_their_instance_where_they_do_not_overlap() -> None:
    found = flat(step_events(steps([0.0, 0.1, 0.2, 0.5], [0.5, 0.4, 0.3, 0.6], [0, 1, 1, 0], [0, 0, 0, 1])))
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in found if event["ph"] == "M"}
    assert names == {
        (0, 0): "instance 0",
        (0, 1): "prefill",
        (0, 2): "link",
        (0, 3): "link 2",
        (1, 0): "instance 1",
        (1, 1): "prefill",
    }
    whole = [(event["pid"], event["tid"], event["ts"], event["dur"]) for event in found if event["ph"] == "X"]
    assert whole == [(0, 1, 0.0, 5e5), (0, 2, 1e5, 3e5), (0, 3, 2e5, 1e5), (1, 1, 5e5, 1e5)]
    levels = [(event["name"], event["ts"], event["args"]["value"]) for event in found if event["ph"] == "C"]
    assert levels[:4] == [
        ("SMs of prefill", 0.0, 54),
        ("SMs of prefill", 5e5, 0),
        ("waiting requests", 0.0, 3),
        ("free KV blocks", 0.0, 7),
    ]
    assert next(event for event in found if event["ph"] == "X")["name"] == "prefill 100 tokens"


def test_requests_go_through_their_phases() -> None:
    records = made([0.25, 0.5], [0.05, 0.1], ["finished", "finished"])
    records.scheduled_s[1] = records.first_token_s[1] = records.last_token_s[1] = np.nan
    found = flat(request_events(records, 4))[1:]
    times = [(event["id"], event["name"], event["ph"], event["ts"]) for event in found]
    assert times == [
        (0, "queued", "b", 0.0),
        (0, "queued", "e", 0.0),
        (0, "prefill", "b", 0.0),
        (0, "prefill", "e", 2.5e5),
        (0, "decode", "b", 2.5e5),
        (0, "decode", "e", 7.5e5),
    ]
    assert {event["pid"] for event in found} == {4}


def test_a_run_becomes_a_trace_that_the_format_allows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--trace workload:chat --requests 20 --rate 10 --policy disaggregation --instances 2 --model Llama-3.1-8B"
    out = str(tmp_path / "run")
    assert run(["simulate", *options.split(), "--device", "A100-80G", "--out", out, "--quiet"]) == 0
    assert run(["plot", "trace", out]) == 0
    file = tmp_path / "run" / "trace.json"
    assert capsys.readouterr().out.splitlines()[-1] == str(file)
    document = json.loads(file.read_text())
    assert set(document) == {"displayTimeUnit", "traceEvents"}
    log = load_run(tmp_path / "run").steps
    events = document["traceEvents"]
    assert all(NEEDED[event["ph"]] == set(event) for event in events)
    assert all(event["ts"] >= 0 and event.get("dur", 0) >= 0 for event in events if event["ph"] != "M")
    whole = [event for event in events if event["ph"] == "X"]
    assert len(whole) == len(log)
    assert sum(event["dur"] for event in whole) == pytest.approx(1e6 * float((log.end_s - log.start_s).sum()))
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in whole} == named
    for place in named:
        mine = sorted((event["ts"], event["dur"]) for event in whole if (event["pid"], event["tid"]) == place)
        assert all(start + took <= after + 2e-3 for (start, took), (after, _) in pairwise(mine))
    begun = [(event["id"], event["name"]) for event in events if event["ph"] == "b"]
    assert begun == [(event["id"], event["name"]) for event in events if event["ph"] == "e"]
    assert len(begun) == 3 * 20


def test_an_empty_run_is_a_trace_and_a_trace_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = io.StringIO()
    write_events(file, steps([], [], [], []), made([], [], []))
    assert [event["ph"] for event in json.loads(file.getvalue())["traceEvents"]] == ["M"]
    assert run(["plot", "trace", str(tmp_path)]) == 2
    assert "config.json does not exist" in capsys.readouterr().err
