"""The journal: what survives, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiler.measure.device import Sample, host_seconds
from profiler.measure.grid import Target, Variant
from profiler.measure.journal import Header, Journal, read_journal

HEADER = Header({"device": "cpu", "grid": "abc", "kernels": ("gemm",), "repeats": 3}, {"date": "2026-01-01"})
COPY, PRODUCT = Target("copy", (64,)), Target("gemm", (2, 3, 4))
ALONE = Sample(COPY, Variant(2), (1.0, 3.0, 2.0), 0.01)
BESIDE = Sample(PRODUCT, Variant(1, COPY, 1), (0.5,))
FAILED = Sample(PRODUCT, Variant(2), (), failed="out of memory")


def write(path: Path, *samples: Sample) -> None:
    with Journal.open(path, HEADER) as journal:
        for sample in samples:
            journal.add(sample)


def test_what_was_added_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "p.journal.jsonl"
    write(path, ALONE, BESIDE)
    write(path, FAILED)
    header, samples = read_journal(path)
    assert samples == [ALONE, BESIDE, FAILED]
    assert header.settings == {**HEADER.settings, "kernels": ["gemm"]}
    assert len(path.read_text().splitlines()) == 4


@pytest.mark.parametrize("kept", range(0, 400, 13))
def test_a_journal_cut_anywhere_goes_on(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "p.journal.jsonl"
    write(path, ALONE, BESIDE)
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    found = max(0, whole[:kept].count(b"\n") - 1)
    with Journal.open(path, HEADER) as journal:
        assert journal.samples == [ALONE, BESIDE][:found]
        for sample in [ALONE, BESIDE][found:]:
            journal.add(sample)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("grid", "xyz", "begun with grid = abc, this run has xyz"),
        ("device", "H200", "begun with device = cpu, this run has H200"),
        ("repeats", 5, "begun with repeats = 3, this run has 5"),
        ("kernels", (), r"begun with kernels = \[\"gemm\"\], this run has \[\]"),
        ("more", 1, "begun with more = null, this run has 1"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, name: str, value: object, message: str) -> None:
    path = tmp_path / "p.journal.jsonl"
    write(path, ALONE)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"{message}; go on with the settings it was begun with, or take another"):
        Journal.open(path, HEADER._replace(settings={**HEADER.settings, name: value}))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (1, "[1]", "line 2 is damaged; remove that line"),
        (1, "nonsense", "line 2 is damaged; remove that line"),
        (1, '{"kernel": "gemm"}', "damaged: 'sms' is missing or wrong"),
        (0, '{"kernel": "gemm"}', "is no journal of bulletsim profile"),
        (0, '{"journal": 2}', "has format 2, this version writes 1"),
    ],
)
def test_damage_is_named(tmp_path: Path, line: int, text: str, message: str) -> None:
    path = tmp_path / "p.journal.jsonl"
    write(path, ALONE, BESIDE)
    lines = path.read_text().splitlines()
    lines[line] = text
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=f"p.journal.jsonl.*{message}"):
        Journal.open(path, HEADER)


def test_one_process_writes_a_journal_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "p.journal.jsonl"
    with Journal.open(path, HEADER), pytest.raises(ValueError, match="being written by another process"):
        Journal.open(path, HEADER)
    Journal.open(path, HEADER).close()


def test_an_empty_journal_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "p.journal.jsonl"
    path.write_text('{"jour')
    with pytest.raises(ValueError, match="holds nothing yet"):
        read_journal(path)


def test_rows_are_medians_and_deviations() -> None:
    row = ALONE.row("fp32")
    assert (row["latency_s"], row["repeats"], row["spread"], row["sms"], row["beside"]) == (2.0, 3, 0.5, 2, "")
    row = BESIDE.row("bf16")
    expected = {"m": 2, "n": 3, "k": 4, "beside": "copy", "beside_bytes": 64, "beside_sms": 1, "dtype": "bf16"}
    assert expected.items() <= row.items()
    assert json.loads(json.dumps(row)) == row


def test_host_time_is_what_the_kernels_leave_and_never_negative() -> None:
    assert host_seconds([5.0, 1.0], [[1.0, 1.0], [2.0, 3.0]]) == (2.0, 1e-6)
