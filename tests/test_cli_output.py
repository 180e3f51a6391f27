"""What commands show of work that takes long, where stderr is no terminal."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from cli.output import _Pace, progress, shares, stage, table


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr("cli.output.time", SimpleNamespace(monotonic=lambda: now.s))
    return now


def test_a_line_now_and_then_with_the_time_left(clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("measuring", 1000, quiet=False) as tell:
        for done in range(0, 1001, 10):
            tell(done, "gemm")
            clock.s += 0.2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "measuring: 100/1000 gemm, about 18 s left"
    assert lines[-1] == "measuring: 1000/1000 gemm"


def test_what_is_done_within_a_second_says_nothing(clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("fitting", 10, quiet=False) as tell:
        for done in range(11):
            tell(done, "")
            clock.s += 0.09
    assert capsys.readouterr().err == ""


def test_slow_work_says_each_minute_that_it_goes_on(clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    with shares("reading", quiet=False) as tell:
        for share in (0.0, 0.01, 0.02, 0.03):
            tell(share)
            clock.s += 61
    assert capsys.readouterr().err.splitlines() == [
        "reading: 1/100 %, about 1.7 h left",
        "reading: 2/100 %, about 1.7 h left",
        "reading: 3/100 %, about 1.6 h left",
    ]


def test_work_whose_end_nobody_knows_says_how_far_it_is(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress("fetching", None, quiet=False) as tell:
        for done in (0, 20, 50):
            tell(done, "MB")
            clock.s += 61
    assert capsys.readouterr().err.splitlines() == ["fetching: 20 MB", "fetching: 50 MB"]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("fetching", None, quiet=False) as tell:
        for done in (0, 20, 50):
            tell(done, "MB")
    shown = capsys.readouterr().err
    assert "50 MB" in shown
    assert "left" not in shown
    assert "None" not in shown


def test_a_cell_of_several_lines() -> None:
    assert table(["a", "b"], [["x = 1\ny = 2", "3"]]) == "a      b\n-----  -\nx = 1  3\ny = 2"


def test_work_says_that_it_starts_until_its_steps_are_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with stage("measuring", quiet=False) as begin:
        begin(3)(1, "gemm")
    capsys.readouterr()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    with stage("measuring", quiet=False):
        pass
    assert capsys.readouterr().err == ""


def test_the_time_left_is_known_once_a_step_is_over_and_counts_down(clock: SimpleNamespace) -> None:
    pace = _Pace(10)
    pace.told(4)  # had been done before
    clock.s += 6
    assert pace.left_s() is None
    pace.told(6)  # 3 s a step
    assert pace.left_s() == 12
    clock.s += 2
    assert pace.left_s() == 10
    clock.s += 20  # the step under way takes longer than those before
    assert pace.left_s() == 9
    pace.told(10)
    assert pace.left_s() == 0
