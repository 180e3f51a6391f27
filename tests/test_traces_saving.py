"""Our own form: what is saved comes back; files appear whole; statistics by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traces
from traces import Provenance, Trace, TraceError
from traces.picture import bars, draw, length_counts

TOKENS = st.integers(1, 2**31 - 1)


@st.composite
def any_trace(draw: st.DrawFn) -> Trace:
    requests = draw(st.integers(1, 8))

    def column(of: st.SearchStrategy[object], unique: bool = False) -> list[object]:
        return draw(st.lists(of, min_size=requests, max_size=requests, unique=unique))

    prompts = np.array(column(st.integers(1, 40)), np.int64)
    word = st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1, max_size=6)
    blocks = tuple(tuple(range(-(-int(tokens) // 16))) for tokens in prompts) if draw(st.booleans()) else None
    return Trace(
        provenance=Provenance(source="here", format="test"),
        prompt_tokens=prompts,
        output_tokens=np.array(column(TOKENS), np.int64),
        arrival_s=np.sort(np.array(column(st.floats(0, 1e7)), float)) if draw(st.booleans()) else None,
        request_ids=tuple(map(str, column(word, unique=True))) if draw(st.booleans()) else None,
        session_ids=tuple(column(st.none() | word)) if draw(st.booleans()) else None,  # type: ignore[arg-type]
        block_hashes=blocks,
        block_tokens=None if blocks is None else 16,
    )


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@given(trace=any_trace())
@settings(max_examples=40, deadline=None)
def test_what_is_saved_comes_back(tmp_path_factory: pytest.TempPathFactory, ending: str, trace: Trace) -> None:
    path = tmp_path_factory.mktemp("saved") / f"t{ending}"
    traces.save(trace, path)
    first = path.read_bytes()
    back = traces.load(path, options=traces.ReadOptions(block_tokens=16))
    assert list(back) == list(trace)
    assert back.block_tokens == trace.block_tokens
    assert (back.arrival_s is None) == (trace.arrival_s is None)
    traces.save(trace, path)
    assert path.read_bytes() == first
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_parquet_keeps_where_the_trace_came_from(tmp_path: Path) -> None:
    trace = traces.poisson(traces.workload("code", 3), 2)
    traces.save(trace, tmp_path / "t.parquet")
    notes = traces.load(tmp_path / "t.parquet").provenance.notes
    assert notes[0] == "made from workload:code (workload)"
    assert notes[-1] == "arrivals: Poisson, 2 requests/s, seed 0"


def test_requests_of_one_name_are_not_saved(tmp_path: Path) -> None:
    """Reading them back would be refused."""
    trace = traces.workload("code", 3).select(np.array([0, 1, 1]))
    with pytest.raises(TraceError, match="requests 1 and 2 are both called '1'"):
        traces.save(trace, tmp_path / "t.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text("before")

    def fail(trace: Trace, path: Path, progress: object) -> None:
        path.write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr("traces.saving._write_csv", fail)
    with pytest.raises(OSError, match="disk full"):
        traces.save(traces.workload("code", 3), path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_other_endings_are_refused_and_folders_made(tmp_path: Path) -> None:
    trace = traces.workload("code", 3)
    with pytest.raises(TraceError, match=r"saved as \.csv or \.parquet"):
        traces.save(trace, tmp_path / "t.txt")
    traces.save(trace, tmp_path / "made" / "for it" / "t.csv")
    assert len(traces.load(tmp_path / "made" / "for it" / "t.csv")) == 3
    with pytest.raises(TraceError, match=r"a picture is \.png, \.svg, \.pdf"):
        draw(trace, tmp_path / "t.txt")


def test_parquet_of_another_shape_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "t.parquet"
    for columns, message in (
        ({"a": [1]}, "no column 'prompt_tokens'"),
        ({"prompt_tokens": [1, -2], "output_tokens": [1, 1]}, "row 1: prompt_tokens is '-2'"),
        ({"prompt_tokens": [1, None], "output_tokens": [1, 1]}, "prompt_tokens has empty values"),
        ({"prompt_tokens": [[1]], "output_tokens": [1]}, "prompt_tokens is of type list"),
        ({"prompt_tokens": pa.array([], pa.int64()), "output_tokens": pa.array([], pa.int64())}, "no rows"),
    ):
        pq.write_table(pa.table(columns), path)
        with pytest.raises(TraceError, match=message):
            traces.load(path)


def test_statistics_by_hand() -> None:
    trace = Trace(
        provenance=Provenance(source="here", format="test"),
        prompt_tokens=np.array([1, 2, 3, 4, 5]),
        output_tokens=np.array([5, 5, 1, 1, 1]),
        arrival_s=np.array([0.0, 0.0, 20.0, 20.0, 40.0]),
    )
    found = traces.summarise(trace)
    assert found.requests == 5
    assert (found.prompt_tokens.mean, found.prompt_tokens.p50, found.prompt_tokens.p90) == (3, 3, 4.6)
    assert (found.output_tokens.max, found.output_tokens.total) == (5, 13)
    # Ranks 1..5 against 4.5, 4.5, 2, 2, 2: covariance -7.5 over sqrt(10 * 7.5).
    assert found.rank_correlation == pytest.approx(-7.5 / np.sqrt(10 * 7.5))
    arrivals = found.arrivals
    assert arrivals is not None
    assert (arrivals.span_s, arrivals.rate) == (40, 0.1)
    assert arrivals.gap_cv == pytest.approx(1.0)  # gaps 0, 20, 0, 20
    assert (arrivals.silences, arrivals.silent_s) == (2, 40)
    assert arrivals.window_s == 2  # 20 windows; 2 arrivals in the first and in the eleventh
    assert arrivals.peak_to_mean == pytest.approx(2 / 0.2)
    assert arrivals.dispersion == pytest.approx((2 * 4 / 20 - 0.04) / 0.2)


def test_statistics_that_do_not_exist_are_none() -> None:
    one = traces.summarise(traces.poisson(traces.workload("code", 1), 4))
    assert one.rank_correlation is None
    assert one.arrivals is not None
    assert (one.arrivals.rate, one.arrivals.gap_cv, one.arrivals.span_s) == (None, None, 0)
    assert traces.summarise(traces.workload("code", 1)).arrivals is None


def test_bars_and_bins() -> None:
    assert bars(np.array([0, 1, 800])) == " ▁█"
    assert bars(np.array([0, 1, 800]), "ascii") == bars(np.array([0, 1, 800]), "latin-1") == " .@"
    counts, edges = length_counts(np.array([1, 1, 10, 100]), 2)
    assert (counts.tolist(), edges.tolist()) == ([2, 2], pytest.approx([1, 10, 100]))
    assert length_counts(np.array([7, 7]), 3)[0].sum() == 2


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_pictures_are_drawn_and_equal(tmp_path: Path, ending: str) -> None:
    for arrivals in ("poisson:4", None):
        trace = traces.workload("code", 50)
        trace = trace if arrivals is None else traces.parse_arrivals(arrivals).apply(trace)
        draw(trace, tmp_path / f"a.{ending}")
        draw(trace, tmp_path / f"b.{ending}")
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_pictures_of_one_request(tmp_path: Path) -> None:
    draw(traces.poisson(traces.workload("code", 1), 4), tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 1000
