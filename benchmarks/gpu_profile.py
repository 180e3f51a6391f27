"""Profiles the GPU of a machine that has no network and perhaps not all packages, within a time limit, into one tar.

    python benchmarks/gpu_profile.py --wheels wheels --limit-s 480 --out out/h200.tar

It needs Python 3.11 or later and torch; the folder of wheels holds what else is missing there (simpy, typer, pydantic,
pooch and what these need). The tar holds the journal, the profile of what was measured, and a log, also where the time
runs out or the script is told to end; started again with the tar's journal beside it, it goes on. ``--check`` first
compares the kernels with the CPU's, by the tests that need a GPU. ``gpu_check.py`` does more, on the coarse grid.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.gpu_box import BULLETSIM, LOG, Box, add_options, check, folder_of, opened  # noqa: E402

GRACE_S = 20.0
"""What a point that was begun may take beyond the limit, before its process is ended."""

COMMAND = BULLETSIM
RECOVER = "import pathlib, sys; from profiler.measure import campaign; campaign.recover(pathlib.Path(sys.argv[1]))"
TESTS = "tests/test_measure_gpu.py"


def main(arguments: Sequence[str]) -> int:
    """The exit status: 0 where all was measured in time, else 1."""
    options = parsed(arguments)
    found = None
    with opened(options) as box:
        found = box
        _all(options, box)
    print((folder_of(options) / LOG).read_text(encoding="utf-8")[-4000:])
    return int(found is None or any(stage.status != "ok" for stage in found.stages))


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, 480.0)
    parser.add_argument("--quick", action="store_true", help="end after the coarse grid, which comes first anyway")
    parser.add_argument("--kernels", default="")
    parser.add_argument("--check", action="store_true", help="run the tests that need a GPU first")
    options = parser.parse_args(arguments)
    check(parser, options)
    return options


def _all(options: argparse.Namespace, box: Box) -> None:
    if options.check:
        box.run("tests", ["-m", "pytest", "-q", "-o", "filterwarnings=", TESTS], box.left_s())
    out = box.folder / "profile"
    command = [*COMMAND, "profile", "--device", options.device, "--model", options.model, "--out", str(out)]
    command += ["--limit-s", f"{max(1.0, box.left_s()):.0f}"]
    command += ["--quick"] if options.quick else []
    command += ["--kernels", options.kernels] if options.kernels else []
    box.run("profile", command, box.left_s() + GRACE_S)
    recover(box, out)


def recover(box: Box, out: Path) -> None:
    """Makes a profile of the journal that a measurement left without finishing."""
    if not out.with_suffix(".parquet").exists():
        box.run("recover", ["-c", RECOVER, str(out)], GRACE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
