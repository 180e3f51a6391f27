"""A machine that is lent for minutes, without a network and perhaps without all packages: stages, a deadline, one tar.

Needs nothing but Python. Packages that are missing come from a folder of wheels, into a temporary place. Each stage is
a process that is told to end at its limit, and killed where it does not; after each the tar is written anew, so that
there is one however this ends.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: the signal that a process gets when its parent has died."""

PATIENCE_S = 15.0
"""What a process that was told to end may take to keep what it has."""

BUNDLE_BYTES = 12 << 20
"""The most that files of single runs may bring a tar to."""

RECORDING = "answers.jsonl"
LOG = "log.txt"
BULLETSIM = ("-c", "from cli.entry import main; main()")
"""The command, installed or not."""


Limits = Sequence[Callable[[], float]]
"""Seconds that a process may take, asked for one after the other."""


class Told(Exception):
    """A signal to end."""


class Stage(NamedTuple):
    """What became of a stage. status: ok, failed, cut off or skipped; note: why it was not ok."""

    name: str
    status: str
    seconds: float = 0.0
    limit_s: float = 0.0
    note: str = ""


class Box:
    """The stages of one run of a script, the folder that they fill, and the tar made of it.

    environment: of the stages' processes. deadline: of ``time.monotonic``, for all of it.
    """

    def __init__(self, out: Path, folder: Path, deadline: float, environment: Mapping[str, str]) -> None:
        self.out, self.folder, self.deadline = out, folder, deadline
        self.environment = dict(environment)
        self.stages: list[Stage] = []
        self.before_packing: Callable[[], object] = lambda: None

    def left_s(self, reserve_s: float = 0.0) -> float:
        """Seconds until the deadline, less a reserve; 0 where there are none."""
        return max(0.0, self.deadline - reserve_s - time.monotonic())

    def run(
        self,
        name: str,
        command: Sequence[str],
        limit_s: float,
        out: Path | None = None,
        more_s: Callable[[], float] = lambda: 0.0,
    ) -> Stage:
        """A stage: Python with ``command``. What it prints goes to the log, standard output to ``out`` if given.

        ``more_s`` is asked at the limit for how much longer it may go on.
        """
        print(f"{name}, at most {limit_s:.0f} s", flush=True)
        begun, log = time.monotonic(), self.folder / LOG
        try:
            limits = (lambda: limit_s, more_s)
            code = _logged([sys.executable, *command], self.environment, limits, log, out)
        except Told:
            self.stages.append(Stage(name, "cut off", time.monotonic() - begun, limit_s, "told to end"))
            raise
        status, note = "ok" if code == 0 else "failed" if code is not None else "cut off", ""
        if code:
            note = f"killed by signal {-code}" if code < 0 else _last_line(log)
        return self.add(Stage(name, status, time.monotonic() - begun, limit_s, note))

    def skip(self, name: str, why: str) -> Stage:
        return self.add(Stage(name, "skipped", note=why))

    def add(self, stage: Stage) -> Stage:
        """Notes a stage and packs what there is."""
        self.stages.append(stage)
        print(f"  {stage.status}, {stage.seconds:.0f} s {stage.note}".rstrip(), flush=True)
        self.pack()
        return stage

    def pack(self) -> None:
        self.before_packing()
        pack(self.folder, self.out)


@contextmanager
def opened(options: argparse.Namespace) -> Iterator[Box]:
    """A box by the options of :func:`add_options`, its wheels installed; packed at the end, whatever ends it.

    SIGTERM and Ctrl-C end it with a line, not with an exception. Raises OSError where nothing can be written.
    """
    folder = folder_of(options)
    for place in (folder, options.out.resolve().parent):
        place.mkdir(parents=True, exist_ok=True)
    # Also where a shell started this with Ctrl-C ignored: by that stages are told to end.
    before = [(number, signal.signal(number, _told)) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        with tempfile.TemporaryDirectory() as site:
            box = Box(options.out, folder, time.monotonic() + options.limit_s, _environment(Path(site)))
            _register(Path(site))
            try:
                if options.wheels:
                    wheels = map(str, sorted(options.wheels.resolve().glob("*.whl")))
                    pip = ["-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", site, *wheels]
                    box.run("wheels", pip, box.left_s())
                yield box
            finally:
                box.pack()
    except Told:
        print("told to end; what is done is kept", file=sys.stderr)
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def add_options(parser: argparse.ArgumentParser, limit_s: float) -> None:
    """What every such script is told."""
    parser.add_argument("--wheels", type=Path, help="a folder of wheels to install into a temporary place")
    parser.add_argument("--limit-s", type=float, default=limit_s, help="seconds for all of it (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="the tar to write")
    parser.add_argument("--folder", type=Path, help="of what it is made of (default: beside it, by its name)")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--model", default="Llama-3.1-8B")


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends with one line for options that cannot be."""
    if not 0 < options.limit_s < math.inf:
        parser.error(f"--limit-s is {options.limit_s:g}; it must be above 0 seconds, and finite")
    if options.wheels and not list(options.wheels.glob("*.whl")):
        parser.error(f"--wheels {options.wheels} holds no wheel")
    if ".tar" not in options.out.suffixes:
        parser.error(f"--out is {options.out}, which is no tar; name one, such as {options.out}.tar")
    if options.out.is_dir():
        parser.error(f"--out {options.out} is a folder; name a tar")


def folder_of(options: argparse.Namespace) -> Path:
    """The folder that becomes the tar: the one given, else the tar's name without .tar or .tar.gz, beside it."""
    if options.folder is not None:
        return Path(options.folder).resolve()
    whole = Path(options.out).resolve()
    return whole.with_name(whole.name.partition(".tar")[0])


def pack(folder: Path, out: Path) -> None:
    """Writes the tar, or replaces it, with all files but hidden ones, as far as they fit.

    Those in the folder, or one below, in any case; then those of single runs, and their recordings last.
    """
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    files = {path: (folder / path).stat().st_size for path in paths if not _hidden(path)}
    partial = out.with_name(f".{out.name}.partial")
    taken = left_out = 0
    with tarfile.open(partial, "w:gz" if out.suffix == ".gz" else "w") as tar:
        for path in sorted(files, key=lambda path: (_rank(path), files[path], str(path))):
            if _rank(path) and taken + files[path] > BUNDLE_BYTES:
                left_out += 1
                continue
            taken += files[path]
            tar.add(folder / path, arcname=str(path))
    partial.replace(out)
    if left_out:
        print(f"  {left_out} files left out of {out.name}, which are in {folder}", flush=True)


def _rank(path: Path) -> int:
    return 2 if path.name == RECORDING else int(len(path.parts) > 2)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _environment(site: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(site), os.environ.get("PYTHONPATH", "")]),
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    }


def _register(site: Path) -> None:
    """Lets Python know of the working tree as the installed package: runs are stamped with its version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = project["name"], project["version"]
    about = site / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")


def _logged(
    command: list[str], environment: Mapping[str, str], limits: Limits, log: Path, out: Path | None
) -> int | None:
    with ExitStack() as files:
        errors = files.enter_context(log.open("a", encoding="utf-8"))
        errors.write(f"\n== {' '.join(command[1:])}\n")
        errors.flush()
        printed = files.enter_context(out.open("w", encoding="utf-8")) if out else errors
        return _ended(command, environment, limits, printed, errors)


def _ended(
    command: list[str], environment: Mapping[str, str], limits: Limits, out: IO[str], log: IO[str]
) -> int | None:
    """The exit status of a command; None where it was told to end, all its limits after each other over."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=out, stderr=log, process_group=0, preexec_fn=_bound
    )
    try:
        for limit_s in limits:
            with suppress(subprocess.TimeoutExpired):
                return int(process.wait(max(0.1, limit_s())))
        return None
    finally:
        _end(process)


def _bound() -> None:
    """In a stage's process, before its program: it is told to end when this one dies, killed before it could tell."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Tells a process to end, and kills it and what it started if it does not."""
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace")[-2000:].split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:200]


def _told(number: int, frame: FrameType | None) -> None:
    raise Told
