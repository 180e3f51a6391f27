"""ServeGen folders made here: loads, slices, seeds, lengths, and what is wrong with one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import traces
from traces import ReadOptions, TraceError

IDLE = "{start},0,0,,0,0"


def client(folder: Path, number: int, windows: list[str], **fields: str) -> None:
    (folder / f"chunk-{number}-trace.csv").write_text("\n".join(windows) + "\n")
    if fields:
        dataset = {"0": fields, "21600": dict.fromkeys(fields, "{9: 1.0}")}
        (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(dataset))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two clients with lengths, one without; windows of 600 s with 60, 0 and 120, and 30 requests."""
    client(
        tmp_path,
        0,
        ["0,0.1,1.2,Gamma,0.7,14.2", "600,0,0,,0,0", "1200,0.2,1,Weibull,0.5,99"],
        input_tokens="{100: 0.5, 200: 0.5}",
        output_tokens="{7: 1.0}",
    )
    client(
        tmp_path,
        10,
        ["0,0,0,,0,0", "600,0.05,1,Gamma,1,20", "1200,0,0,,0,0"],
        text_tokens="{10: 1.0}",
        image_tokens="{500: 1.0}",
        image_count="{3: 1.0}",
        output_tokens="{1: 1.0}",
    )
    client(tmp_path, 2, ["0,0.1,1,Gamma,1,10", "600,0,0,,0,0", "1200,0,0,,0,0"])
    return tmp_path


def test_every_window_has_its_requests_and_prompts_are_sums(folder: Path) -> None:
    trace = traces.load(folder)
    assert trace.provenance.format == "servegen"
    assert trace.arrival_s is not None
    assert len(trace) == 60 + 30 + 120
    for start_s, requests in ((0.0, 60), (600.0, 30), (1200.0, 120)):
        assert len(traces.load(folder, options=ReadOptions(start_s=start_s, end_s=start_s + 600))) == requests
    assert set(trace.prompt_tokens.tolist()) == {100, 200, 510}
    assert np.all(np.diff(trace.arrival_s) >= 0)
    assert "clients without a dataset left out: 2 (22.2 % of the load)" in trace.provenance.notes


def test_equal_seeds_equal_bytes(folder: Path) -> None:
    first, again, other = (traces.load(folder, options=ReadOptions(seed=seed)) for seed in (1, 1, 2))
    assert first.arrival_s is not None
    assert again.arrival_s is not None
    assert other.arrival_s is not None
    assert first.arrival_s.tobytes() == again.arrival_s.tobytes()
    assert first.prompt_tokens.tobytes() == again.prompt_tokens.tobytes()
    assert not np.array_equal(first.arrival_s, other.arrival_s)


def test_a_slice_has_the_requests_that_the_whole_has_there(folder: Path) -> None:
    whole = traces.load(folder)
    part = traces.load(folder, options=ReadOptions(start_s=1300.0, end_s=1500.0))
    assert whole.arrival_s is not None
    assert part.arrival_s is not None
    gaps = np.diff(part.arrival_s)
    everywhere = np.diff(whole.arrival_s)
    starts = [
        i for i in range(len(everywhere)) if np.allclose(everywhere[i : i + len(gaps)], gaps[: len(everywhere) - i])
    ]
    assert len(starts) == 1
    assert 0 < len(part) < 120


def test_scale_multiplies_the_load(folder: Path) -> None:
    assert len(traces.load(folder, options=ReadOptions(scale=2.0))) == 420
    thinned = [len(traces.load(folder, options=ReadOptions(scale=0.011, seed=seed))) for seed in range(60)]
    assert np.mean(thinned) == pytest.approx(2.31, abs=0.3)  # fractions are drawn, not cut off


@pytest.mark.parametrize(
    ("windows", "fields", "message"),
    [
        (["0,x,1,Gamma,1,1"], {"input_tokens": "{1: 1.0}"}, r"chunk-0-trace\.csv: line 1: value 2 of"),
        (["0,1,1,Pareto,1,1"], {"input_tokens": "{1: 1.0}"}, "line 1: pattern of .*Pareto.* is none of Gamma, Weibull"),
        (["0,0.1,1,Gamma,1,1"], {"input_tokens": "{}"}, r"chunk-0-dataset\.json: entry '0': input_tokens is '{}'"),
        (["0,0.1,1,Gamma,1,1"], {"input_tokens": "nonsense"}, "input_tokens is 'nonsense'"),
        (["0,0,0,,0,0"], {"input_tokens": "{1: 1.0}"}, "no client has a request in this span"),
    ],
)
def test_broken_folders_are_refused(tmp_path: Path, windows: list[str], fields: dict[str, str], message: str) -> None:
    client(tmp_path, 0, windows, **fields)
    with pytest.raises(TraceError, match=message):
        traces.load(tmp_path)


def test_options_are_checked(folder: Path) -> None:
    with pytest.raises(TraceError, match="scale is 0"):
        traces.load(folder, options=ReadOptions(scale=0.0))
    with pytest.raises(TraceError, match="more than 5000000; read a slice"):
        traces.load(folder, options=ReadOptions(scale=1e6))
