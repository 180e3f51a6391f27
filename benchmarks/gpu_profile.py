"""Profiles the GPU of a machine that has no network and perhaps not all packages, within a time limit, into one tar.

    python benchmarks/gpu_profile.py --wheels wheels --limit-s 480 --out out/h200.tar

It needs Python 3.11 or later and torch; the folder of wheels holds what else is missing there (simpy, typer, pydantic,
pooch and what these need). The tar holds the journal, the profile of what was measured, and a log, also where the time
runs out or the script is told to end; started again with the tar's journal beside it, it goes on. ``--check`` first
compares the kernels with the CPU's, by the tests that need a GPU.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
GRACE_S = 20.0
"""What a point that was begun may take beyond the limit, before its process is ended."""

COMMAND = "from cli.main import main; main()"
RECOVER = "import pathlib, sys; from profiler.measure import campaign; campaign.recover(pathlib.Path(sys.argv[1]))"
TESTS = "tests/test_measure_gpu.py"


class Told(Exception):
    """A signal to end."""


def main(arguments: Sequence[str]) -> int:
    """The exit status: of the profile, or 1 where a check failed or nothing came about."""
    options = parsed(arguments)
    before = signal.signal(signal.SIGTERM, _told)
    deadline = time.monotonic() + options.limit_s
    folder = options.out.resolve().with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    status = 1
    try:
        with log.open("a", encoding="utf-8") as file:
            status = _all(options, folder, deadline, file)
    except (KeyboardInterrupt, Told):
        print("told to end; what is measured is kept", file=sys.stderr)
    finally:
        _pack(folder, options.out)
        signal.signal(signal.SIGTERM, before)
    print(log.read_text(encoding="utf-8")[-4000:])
    print(f"{options.out}: {', '.join(path.name for path in sorted(folder.iterdir()))}")
    return status


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheels", type=Path, help="a folder of wheels to install into a temporary place")
    parser.add_argument("--limit-s", type=float, default=480.0, help="seconds for all of it (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="the tar to write; a folder of its name is left beside")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="Llama-3.1-8B")
    parser.add_argument("--quick", action="store_true", help="end after the coarse grid, which comes first anyway")
    parser.add_argument("--kernels", default="")
    parser.add_argument("--check", action="store_true", help="run the tests that need a GPU first")
    options = parser.parse_args(arguments)
    if not options.limit_s > 0:
        parser.error(f"--limit-s is {options.limit_s:g}; it must be above 0 seconds")
    if options.wheels and not list(options.wheels.glob("*.whl")):
        parser.error(f"--wheels {options.wheels} holds no wheel")
    return options


def _all(options: argparse.Namespace, folder: Path, deadline: float, log: IO[str]) -> int:
    with tempfile.TemporaryDirectory() as site:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), site, os.environ.get("PYTHONPATH", "")]),
            "PYTHONUNBUFFERED": "1",
            "CUDA_DEVICE_MAX_CONNECTIONS": "32",
        }
        if options.wheels:
            wheels = map(str, sorted(options.wheels.resolve().glob("*.whl")))
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", site, *wheels]
            if _run(pip, environment, deadline, log):
                return 1
        checked = 0
        if options.check:
            tests = [sys.executable, "-m", "pytest", "-q", "-o", "filterwarnings=", TESTS]
            checked = _run(tests, environment, deadline, log)
        profile = folder / "profile"
        status = _profile(options, profile, environment, deadline, log)
        if not profile.with_suffix(".parquet").exists():
            _run([sys.executable, "-c", RECOVER, str(profile)], environment, time.monotonic() + GRACE_S, log)
        return status or min(checked, 1)


def _profile(options: argparse.Namespace, out: Path, environment: dict[str, str], deadline: float, log: IO[str]) -> int:
    command = [sys.executable, "-c", COMMAND, "profile", "--device", options.device, "--model", options.model]
    command += ["--out", str(out), "--limit-s", f"{max(1.0, deadline - time.monotonic()):.0f}"]
    command += ["--quick"] if options.quick else []
    command += ["--kernels", options.kernels] if options.kernels else []
    return _run(command, environment, deadline + GRACE_S, log)


def _run(command: list[str], environment: dict[str, str], deadline: float, log: IO[str]) -> int:
    """The exit status of a command that is ended at the deadline; 124 then."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        return int(process.wait(max(1.0, deadline - time.monotonic())))
    except subprocess.TimeoutExpired:
        return 124
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _pack(folder: Path, out: Path) -> None:
    partial = out.with_name(f"{out.name}.partial")
    with tarfile.open(partial, "w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, arcname=path.name)
    partial.replace(out)


def _told(number: int, frame: FrameType | None) -> None:
    raise Told


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
