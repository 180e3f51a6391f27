"""What becomes of the stages of a script for a GPU machine that is itself killed, and numbers that are no limits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import gpu_check
from tests.test_real_cpu import running

ROOT = Path(__file__).parents[1]

BOX = """
import os, pathlib, sys
from benchmarks import gpu_box
stage = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"]
gpu_box._logged(stage, os.environ, (lambda: 60.0,), pathlib.Path(sys.argv[1]), None)
"""


def test_a_box_that_is_killed_leaves_no_stage(tmp_path: Path) -> None:
    log, limit = tmp_path / "log.txt", time.monotonic() + 30
    box = subprocess.Popen([sys.executable, "-c", BOX, str(log)], cwd=ROOT)
    while not (said := log.read_text() if log.exists() else "").rpartition("\n")[0].rpartition("\n")[2].isdigit():
        assert time.monotonic() < limit, said
        time.sleep(0.02)
    box.kill()
    assert box.wait() == -signal.SIGKILL
    stage = int(said.split()[-1])
    while running(stage):
        assert time.monotonic() < limit, f"{stage} is an orphan"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--until", "0"], "--until is 0; it must be above 0"),
        (["--until", "inf"], "--until is inf; it must be above 0, and finite"),
        (["--rate", "2", "--rate", "inf"], "--rate is inf; it must be above 0, and finite"),
        (["--limit-s", "inf"], "--limit-s is inf; it must be above 0 seconds, and finite"),
        (["--limit-s", "nan"], "--limit-s is nan; it must be above 0 seconds"),
    ],
)
def test_numbers_that_are_no_limits(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        gpu_check.main(["--out", f"{os.devnull}.tar", *options])
    assert said in capsys.readouterr().err
