"""How fast simulations run on one core, and how soon the command answers. Prints Markdown.

    python benchmarks/speed.py [FOLDER] [--repeats 3] [--json] [--compiled .venv-fast]

Serves azure-llm-2023/AzureLLMInferenceTrace_conv.csv in FOLDER (default: shared/traces beside the repository; skipped
where absent), as recorded, under three policies; see benchmarks/whole_traces.py for the settings. Timed is the serving
loop, from the first arrival to the columns of its result: not reading the trace, not metrics or files.

Machines differ, and neighbours on one slow it down. So a loop in plain Python is timed in bursts all along each run,
which do not count as part of it: one iteration puts an event on a heap of 64 and takes the earliest off, counts it in a
dictionary, and calls a method that adds to an attribute, which is what simulating is made of. "Loop iterations" are a
run's CPU time over that of one iteration: to be compared between machines, while requests/s are for this one.
Requests/s are by wall time, and best is what the machine can do when its neighbours let it.

Long traces, and the memory that they take: benchmarks/scale.py. One decision of Bullet: benchmarks/decisions.py.

Commands are timed from start to exit, in processes of their own, and the least that any Python takes beside them.

``--compiled`` times what `make fast` installed in that environment, by its Python and from a copy of this folder:
beside the sources these would be imported instead.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import heappushpop
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.data import FOLDER  # noqa: E402
from benchmarks.paper_kernels import cpu_name, table  # noqa: E402
from benchmarks.whole_traces import TRACES, configs  # noqa: E402
from sim import loop  # noqa: E402
from sim.config import RunConfig  # noqa: E402
from sim.scenarios import DEVICE, MODEL  # noqa: E402
from sim.simulate import prepare  # noqa: E402

TRACE = "conversation"
BURST_ITERATIONS, BURST_EVERY = 20_000, 512
COMMAND_RUNS = 5

REQUIRED_PER_S = {"chunked": 20000.0, "bullet": 3000.0, "disaggregation": 10000.0}
"""Requests/s at least, by policy."""

HELP = "bulletsim --help"
FIVE_REQUESTS = "bulletsim simulate, 5 requests"
REQUIRED_S = {HELP: 0.3, FIVE_REQUESTS: 0.7}
"""Seconds from start to exit at most, by command."""

SIMULATE = f"simulate --trace workload:sharegpt --rate 4 --requests 5 --policy bullet --model {MODEL} --device {DEVICE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Repeats of one run: seconds by the clock, of CPU, and CPU seconds of an iteration of the reference loop."""

    policy: str
    requests: int
    steps: int
    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...]
    reference_s: tuple[float, ...]

    @property
    def best_s(self) -> float:
        return min(self.wall_s)

    @property
    def median_s(self) -> float:
        return statistics.median(self.wall_s)

    @property
    def iterations(self) -> float:
        """Iterations of the reference loop in the CPU time of a run; the median over repeats."""
        return statistics.median(run / one for run, one in zip(self.cpu_s, self.reference_s, strict=True))


class _Counter:
    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0.0

    def add(self, amount: float) -> None:
        self.total += amount


class Reference:
    """The reference loop; ``wall_s`` and ``cpu_s`` are what its bursts have taken so far."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0
        self._bursts = 0

    def burst(self, finished: int = 0, now_s: float = 0.0) -> None:
        """Runs it for some milliseconds. A run may call this to report its progress, each BURST_EVERY requests."""
        if finished % BURST_EVERY:
            return
        wall, cpu = time.perf_counter(), time.process_time()
        heap = [(float(i), i) for i in range(64)]
        counts: dict[int, int] = {}
        counter = _Counter()
        at_s = 64.0
        for i in range(BURST_ITERATIONS):
            at_s, key = heappushpop(heap, (at_s + 1.5, i & 63))
            counts[key] = counts.get(key, 0) + 1
            counter.add(at_s)
        self.cpu_s += time.process_time() - cpu
        self.wall_s += time.perf_counter() - wall
        self._bursts += 1

    @property
    def iteration_s(self) -> float:
        """CPU seconds of one iteration."""
        return self.cpu_s / (self._bursts * BURST_ITERATIONS)


def speed(config: RunConfig, repeats: int) -> Speed:
    """Runs ``config`` so many times, each with everything built anew."""
    walls, cpus, references = [], [], []
    for _ in range(repeats):
        prepared, reference = prepare(config), Reference()
        wall, cpu = time.perf_counter(), time.process_time()
        # A run of few requests reports no progress.
        reference.burst()
        result = prepared.run(progress=reference.burst)
        cpus.append(time.process_time() - cpu - reference.cpu_s)
        walls.append(time.perf_counter() - wall - reference.wall_s)
        references.append(reference.iteration_s)
    return Speed(
        policy=config.policy.name,
        requests=len(result.records),
        steps=len(result.steps),
        wall_s=tuple(walls),
        cpu_s=tuple(cpus),
        reference_s=tuple(references),
    )


def command_s(command: Sequence[str]) -> list[float]:
    """Wall seconds of each of COMMAND_RUNS runs, after one in which Python may have had sources to compile.

    What it compiles it keeps, unless this environment says otherwise, which those who run a command twice do not want.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    found = []
    for _ in range(1 + COMMAND_RUNS):
        start = time.perf_counter()
        subprocess.run(
            command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        found.append(time.perf_counter() - start)
    return found[1:]


def commands() -> dict[str, list[float]]:
    """Wall seconds by command: Python alone, --help, and a simulation of five requests."""
    installed = Path(sysconfig.get_path("scripts")) / "bulletsim"
    program = "from cli.entry import main; main()"
    start = [str(installed)] if installed.is_file() else [sys.executable, "-c", program]
    return {
        "python -c pass": command_s([sys.executable, "-c", "pass"]),
        HELP: command_s([*start, "--help"]),
        FIVE_REQUESTS: command_s([*start, *SIMULATE.split()]),
    }


def machine() -> dict[str, object]:
    """What the numbers are for.

    ``compiled``: whether the serving loop is. ``load``: the mean number of runnable processes of the last minute.
    """
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "compiled": not loop.__file__.endswith(".py"),
        "load": round(os.getloadavg()[0], 1),
    }


def requirements(speeds: Sequence[Speed], walls: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """What was asked for and what was found; requests/s by the best repeat, seconds by the median run."""
    found: list[dict[str, Any]] = []
    for one in speeds:
        if one.policy in REQUIRED_PER_S:
            asked, got = REQUIRED_PER_S[one.policy], one.requests / one.best_s
            found.append({"what": f"{one.policy}, requests/s", "asked": asked, "found": got, "met": got >= asked})
    for command, asked in REQUIRED_S.items():
        got = statistics.median(walls[command])
        found.append({"what": f"{command}, seconds", "asked": asked, "found": got, "met": got <= asked})
    return found


def show_runs(speeds: Sequence[Speed]) -> None:
    """Print one row a policy."""
    header = (
        "policy",
        "requests/s, best",
        "median",
        "requests/CPU s, best",
        "steps/s, best",
        "median",
        "us/step, best",
        "median",
        "loop iterations a request",
        "a step",
    )
    rows = [
        (
            one.policy,
            f"{one.requests / one.best_s:.0f}",
            f"{one.requests / one.median_s:.0f}",
            f"{one.requests / min(one.cpu_s):.0f}",
            f"{one.steps / one.best_s:.0f}",
            f"{one.steps / one.median_s:.0f}",
            f"{1e6 * one.best_s / one.steps:.1f}",
            f"{1e6 * one.median_s / one.steps:.1f}",
            f"{one.iterations / one.requests:.0f}",
            f"{one.iterations / one.steps:.0f}",
        )
        for one in speeds
    ]
    iteration_s = statistics.median(seconds for one in speeds for seconds in one.reference_s)
    first = speeds[0]
    title = f"{first.requests} requests, repeats: {len(first.wall_s)}, a loop iteration: {1e9 * iteration_s:.0f} ns"
    table(title, header, rows)


def _plain(value: float) -> str:
    """Four digits, and all of those before the point."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def show(about: dict[str, Any], speeds: Sequence[Speed], walls: dict[str, list[float]], asked: list[Any]) -> None:
    """Print everything as tables."""
    python = f"Python {about['python']}{', compiled' if about['compiled'] else ''}"
    print(f"{about['cpu']}, {about['cores']} cores, {python}, load {about['load']} before the first run")
    if speeds:
        show_runs(speeds)
    seconds = [(name, f"{min(values):.3f}", f"{statistics.median(values):.3f}") for name, values in walls.items()]
    table(f"Seconds from start to exit, {COMMAND_RUNS} runs", ("command", "best", "median"), seconds)
    rows = [(one["what"], f"{one['asked']:g}", _plain(one["found"]), "yes" if one["met"] else "NO") for one in asked]
    table("Required", ("what", "asked", "found", "met"), rows)


def in_environment(environment: Path, script: str, arguments: Sequence[str]) -> int:
    """Runs a copy of a script of this folder by the Python of an environment; its exit status.

    Raises ValueError where the environment has none.
    """
    if not (environment / "bin" / "python").exists():
        raise ValueError(f"--compiled {environment}: no bin/python in there; make fast makes .venv-fast")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "benchmarks"
        shutil.copytree(ROOT / "benchmarks", copy, ignore=shutil.ignore_patterns("__pycache__"))
        command = [environment.absolute() / "bin" / "python", copy / script, *arguments]
        return subprocess.run(command, check=False).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or one JSON document. Status 0: a busy machine is no failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--compiled", type=Path, metavar="ENVIRONMENT")
    given = parser.parse_args(arguments)
    if given.repeats < 1:
        parser.error("--repeats must be 1 or more")
    if given.compiled is not None:
        shown = ["--json"] if given.json else []
        rest = [str(given.folder.absolute()), f"--repeats={given.repeats}", *shown]
        try:
            return in_environment(given.compiled, "speed.py", rest)
        except ValueError as error:
            parser.error(str(error))
    about = machine()
    speeds = []
    if (given.folder / TRACES[TRACE][0]).is_file():
        speeds = [speed(config, given.repeats) for config in configs(given.folder, TRACE, None, None)]
    elif not given.json:
        print(f"{TRACE} skipped: FOLDER has no {TRACES[TRACE][0]}\n")
    walls = commands()
    asked = requirements(speeds, walls)
    if given.json:
        document = {
            "machine": about,
            "runs": [asdict(one) | {"iterations": one.iterations} for one in speeds],
            "commands_s": walls,
            "required": asked,
        }
        print(json.dumps(document, indent=2))
    else:
        show(about, speeds, walls, asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
