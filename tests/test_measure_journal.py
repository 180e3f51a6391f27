"""The journal: what survives, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiler.measure.device import Sample, host_seconds
from profiler.measure.grid import Target, Variant
from profiler.measure.journal import Header, Journal, read_journal

HEADER = Header(
    {
        "device": "cpu",
        "machine": "a processor",
        "sms": 2,
        "dtype": "fp32",
        "model": "tiny",
        "quick": False,
        "kernels": ("gemm",),
        "repeats": 3,
        "rounds": 3,
        "grid": "abc",
    },
    {"date": "2026-01-01", "points": 3},
)
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


@pytest.mark.parametrize("kept", range(0, 520, 13))
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
        (1, "[" * 100_000, "line 2 is damaged; remove that line"),
        (1, '{"sms": NaN}', "line 2 is damaged; remove that line"),
        (0, "[1]", "line 1 is damaged; remove the file to measure"),
        (1, '{"kernel": "gemm"}', "line 2: shape is null; gemm has m, n, k; remove that line, or the file"),
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


POINT = {"kernel": "gemm", "shape": [2, 3, 4], "sms": 2, "seconds": [0.5]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": "softmax"}, 'kernel is "softmax"; known: gemm'),
        ({"kernel": ["gemm"]}, r'kernel is \["gemm"\]; known: gemm'),
        ({"shape": [2, 3]}, r"shape is \[2, 3\]; gemm has m, n, k"),
        ({"shape": [2, 3, 0]}, "k in shape is 0; it must be a whole number, 1 or more"),
        ({"shape": [2, 3, 1.5]}, "k in shape is 1.5"),
        ({"shape": [2, 3, 10**30]}, "k in shape is 10{30}"),
        ({"sms": 0}, "sms is 0; it must be 1 to the device's 2"),
        ({"sms": 3}, "sms is 3; it must be 1 to the device's 2"),
        ({"sms": True}, "sms is true"),
        ({"seconds": []}, r"seconds is \[\]; it must be a list of times above 0"),
        ({"seconds": None, "failed": "out of memory"}, "seconds is null"),
        ({"seconds": 0.5}, "seconds is 0.5"),
        ({"seconds": [0.5, 0]}, r"seconds is \[0.5, 0\]"),
        ({"seconds": ["1"]}, r'seconds is \["1"\]'),
        ({"seconds": [10**400]}, "seconds is "),
        ({"gap": "much"}, 'gap is "much"; it must be a share'),
        ({"failed": 1}, "failed is 1; it must be a text"),
        ({"beside": 1}, "beside is 1; it must be an object"),
        ({"beside": {"kernel": "copy", "shape": [], "sms": 1}}, r"beside: shape is \[\]; copy has bytes"),
        ({"beside": {"kernel": "copy", "shape": [64]}}, "beside: sms is null"),
    ],
)
def test_a_point_that_cannot_be_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "p.journal.jsonl"
    write(path, ALONE)
    with path.open("a") as file:
        file.write(json.dumps({**POINT, **change}) + "\n")
    before = path.read_bytes()
    for read in (lambda: Journal.open(path, HEADER), lambda: read_journal(path)):
        with pytest.raises(ValueError, match=f"p.journal.jsonl, line 3: {message}.*; remove that line, or the file"):
            read()
    assert path.read_bytes() == before


def test_a_time_that_overflows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.journal.jsonl"
    write(path)
    path.write_text(path.read_text() + json.dumps(POINT).replace("0.5", "1e999") + "\n")
    with pytest.raises(ValueError, match=r"line 2: seconds is \[Infinity\]; it must be"):
        read_journal(path)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("settings", None, "settings is null; it must be an object"),
        ("about", [1], r"about is \[1\]; it must be an object"),
        ("settings", {"sms": 0}, "sms in settings is 0; it must be a number, 1 or more"),
        ("settings", {"rounds": 0}, "rounds in settings is 0"),
        ("settings", {"dtype": "int4"}, 'dtype in settings is "int4"; known: bf16, fp8, fp32'),
        ("settings", {"model": None}, "model in settings is null; it must be a text"),
        ("settings", {"machine": ""}, 'machine in settings is ""; it must be a text'),
        ("settings", {"kernels": "gemm"}, 'kernels in settings is "gemm"; it must be a list'),
        ("about", {"date": 2026}, "date in about is 2026; it must be a text"),
        ("about", {"points": "3"}, 'points in about is "3"'),
    ],
)
def test_a_header_without_what_the_profile_needs_is_refused(
    tmp_path: Path, part: str, change: dict[str, object] | None, message: str
) -> None:
    path = tmp_path / "p.journal.jsonl"
    write(path, ALONE)
    first, *others = path.read_text().splitlines()
    head = json.loads(first)
    head[part] = {**head[part], **change} if isinstance(change, dict) else change
    path.write_text("\n".join([json.dumps(head), *others, ""]))
    with pytest.raises(ValueError, match=f"p.journal.jsonl, line 1: {message}.*; remove the file to measure all again"):
        read_journal(path)


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
