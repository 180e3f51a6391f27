"""Simulated against measured serving points on H100 and H200. Prints Markdown.

    python benchmarks/hopper.py [--shared DIR] [--rounds 10] [--jobs N] [--rows FILE]

DIR/silicon/dense_hopper.csv (default: shared/silicon beside the repository) holds mean TTFT and TPOT of vLLM, SGLang
and TensorRT-LLM in closed loops at a fixed concurrency, with fixed prompt and output lengths. Each row is served by one
simulated instance under the engine's default schedule (benchmarks/engines.py), with the latency model that a run's
settings give and no setting changed but fp8 weights where the row has them.

Each of the row's ``concurrency`` clients sends its next request when the last one ends. All start at once and send
ROUNDS requests each; all of them count, the burst at the start included, for that is how the rows were taken
(AIConfigurator's genai_perf_runner.py: ten requests a client, after warm-up requests that a simulator has no use for).

TPOT depends little on how clients start. TTFT does: requests of equal lengths that start together end together, and
come back together, wave after wave; jitter of clients and network, which nobody recorded, breaks the waves up. It also
holds tokenisation and the network, and waiting where an engine ran fewer requests at once than there were clients.

The last table fits what is left of each unquantised row's TPOT, measured - simulated, by a constant and a time for each
request in the batch: the host's share of a step, as far as the model has not got it yet.

``--rows`` writes one CSV line a row. Exit status 2 where the file is absent.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import joblib
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.data import FOLDER, NOTHING_CHECKED  # noqa: E402
from benchmarks.engines import ENGINES  # noqa: E402
from benchmarks.paper_kernels import table  # noqa: E402
from sim.config import RunConfig, checked  # noqa: E402
from sim.metrics import tpot_s, ttft_s  # noqa: E402
from sim.simulate import prepare  # noqa: E402

FILE = "silicon/dense_hopper.csv"
DEVICES = {"h100_sxm": "H100", "h200_sxm": "H200"}
MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": "Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B": "Llama-3.1-70B",
    "Qwen/Qwen3-32B": "Qwen3-32B",
}
"""Presets by the names that the rows use."""

ROUNDS = 10
TTFT_NOTE = (
    "TTFT is no test of the model: it depends on how clients start and drift apart, on queues before the engine, on "
    "tokenisation and the network, none of which the rows record."
)
TARGETS = {"Llama-3.1-8B TP1": 0.08, "TP above 1": 0.12}
"""Median absolute error of TPOT asked for, by group."""


class Point(NamedTuple):
    """One measured row; TTFT and TPOT in seconds."""

    backend: str
    model: str
    device: str
    fp8: bool
    prompt_tokens: int
    output_tokens: int
    concurrency: int
    tensor_parallel: int
    ttft_s: float
    tpot_s: float


class Pair(NamedTuple):
    """A measured row and its simulated means, in seconds. ``batch``: requests that decode at once, on average."""

    point: Point
    ttft_s: float
    tpot_s: float

    @property
    def ttft_error(self) -> float:
        return self.ttft_s / self.point.ttft_s - 1

    @property
    def tpot_error(self) -> float:
        return self.tpot_s / self.point.tpot_s - 1

    @property
    def batch(self) -> float:
        decoding = self.tpot_s * (self.point.output_tokens - 1)
        return self.point.concurrency * decoding / (decoding + self.ttft_s)


def read_points(path: Path) -> list[Point]:
    """Every row of the file. Raises ValueError for a model, device or engine that has no counterpart here."""
    with path.open(newline="") as file:
        return [_point(row) for row in csv.DictReader(file)]


def _point(row: dict[str, str]) -> Point:
    for name, known in (("backend", ENGINES), ("model", MODELS), ("system", DEVICES)):
        if row[name] not in known:
            raise ValueError(f"{name} is {row[name]!r}; known: {', '.join(known)}")
    return Point(
        backend=row["backend"],
        model=MODELS[row["model"]],
        device=DEVICES[row["system"]],
        fp8=row["gemm_quant_mode"].startswith("fp8"),
        prompt_tokens=int(row["prompt_tokens"]),
        output_tokens=int(row["output_tokens"]),
        concurrency=int(float(row["concurrency_setting"])),
        tensor_parallel=int(float(row["tp_size"])),
        ttft_s=float(row["silicon_ttft_ms"]) / 1e3,
        tpot_s=float(row["silicon_tpot_ms"]) / 1e3,
    )


def config(point: Point, trace: Path) -> RunConfig:
    """The run that serves ``point``, its requests being those of ``trace``."""
    settings = {
        "trace": str(trace),
        "arrivals": f"closed:{point.concurrency}",
        "policy": dict(ENGINES[point.backend]),
        "model": point.model,
        "device": point.device,
        "tensor_parallel": point.tensor_parallel,
        "latency": {"dtype": "fp8"} if point.fp8 else {},
    }
    return checked(RunConfig, settings, "row")


def serve(point: Point, rounds: int = ROUNDS) -> Pair:
    """Simulates one row: ``rounds`` requests of each client."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "lengths.csv"
        line = f"{point.prompt_tokens},{point.output_tokens}\n"
        trace.write_text("prompt_tokens,output_tokens\n" + line * (rounds * point.concurrency))
        records = prepare(config(point, trace)).run().records
    return Pair(point, float(np.mean(ttft_s(records))), float(np.mean(tpot_s(records))))


def group(point: Point) -> str:
    """Which line of the table a row belongs to."""
    if point.fp8:
        return "fp8"
    if point.tensor_parallel > 1:
        return "TP above 1"
    return f"{point.model} TP1"


class Errors(NamedTuple):
    """Relative errors of some rows: median and mean of their absolute values, and the mean with its sign."""

    rows: int
    median: float
    mean: float
    bias: float


def errors(found: Iterable[float]) -> Errors:
    values = np.fromiter(found, np.float64)
    sizes = np.abs(values)
    return Errors(len(values), float(np.median(sizes)), float(sizes.mean()), float(values.mean()))


def breakdown(pairs: Sequence[Pair], key: Callable[[Point], tuple[str, ...]]) -> list[tuple[object, ...]]:
    """One line for each value of ``key``: TPOT and TTFT errors in percent."""
    lines: list[tuple[object, ...]] = []
    for value in sorted({key(pair.point) for pair in pairs}):
        members = [pair for pair in pairs if key(pair.point) == value]
        tpot, ttft = errors(p.tpot_error for p in members), errors(p.ttft_error for p in members)
        lines.append((*value, tpot.rows, *_percent(tpot), *_percent(ttft)))
    return lines


def _percent(found: Errors) -> tuple[str, str, str]:
    return f"{100 * found.median:.1f}", f"{100 * found.mean:.1f}", f"{100 * found.bias:+.1f}"


class Residual(NamedTuple):
    """TPOT measured - simulated of some rows, as ``step_s`` + ``request_s`` * batch, by least relative squares."""

    rows: int
    step_s: float
    request_s: float
    left: Errors


def residual(pairs: Sequence[Pair]) -> Residual:
    """What a step and a request in it take longer than simulated; ``left`` are the errors with both added."""
    measured = np.array([pair.point.tpot_s for pair in pairs])
    simulated = np.array([pair.tpot_s for pair in pairs])
    parts = np.array([(1.0, pair.batch) for pair in pairs])
    solution = np.linalg.lstsq(parts / measured[:, None], (measured - simulated) / measured, rcond=None)[0]
    left = errors((simulated + parts @ solution) / measured - 1)
    return Residual(len(pairs), float(solution[0]), float(solution[1]), left)


def residuals(pairs: Sequence[Pair]) -> list[tuple[object, ...]]:
    """Residuals of unquantised rows by engine and tensor parallelism; sets of fewer than ten rows are left out."""
    lines: list[tuple[object, ...]] = []
    for backend in ENGINES:
        members = [pair for pair in pairs if pair.point.backend == backend and not pair.point.fp8]
        degrees = sorted({pair.point.tensor_parallel for pair in members})
        sets = [(f"TP{n}", [pair for pair in members if pair.point.tensor_parallel == n]) for n in degrees]
        for name, chosen in [*sets, ("all", members)]:
            if len(chosen) >= 10:
                one = residual(chosen)
                cells = f"{1e3 * one.step_s:.2f}", f"{1e6 * one.request_s:.1f}", f"{100 * one.left.median:.1f}"
                lines.append((backend, name, one.rows, *cells))
    return lines


def write_rows(path: Path, pairs: Iterable[Pair]) -> None:
    """One line a row: what it is, what was measured and what was simulated, in seconds."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow((*Point._fields, "simulated_ttft_s", "simulated_tpot_s"))
        writer.writerows((*pair.point, pair.ttft_s, pair.tpot_s) for pair in pairs)


def report(pairs: Sequence[Pair]) -> None:
    """Print every table."""
    columns = ("rows", "TPOT median", "mean", "bias", "TTFT median", "mean", "bias")
    for name, schedule in ENGINES.items():
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in schedule['settings'].items())}")
    table("Errors in percent", ("group", *columns), breakdown(pairs, lambda point: (group(point),)))
    print(f"\n{TTFT_NOTE}")

    def in_full(point: Point) -> tuple[str, ...]:
        return group(point), point.backend, point.model, f"TP{point.tensor_parallel}"

    table("By engine", ("group", "engine", "model", "TP", *columns), breakdown(pairs, in_full))
    header = ("engine", "TP", "rows", "ms a step", "us a request", "median error then, %")
    table("TPOT measured - simulated, unquantised rows", header, residuals(pairs))
    asked = []
    for name, target in TARGETS.items():
        members = [pair.tpot_error for pair in pairs if group(pair.point) == name]
        if members:
            found = errors(members).median
            asked.append((name, f"{100 * target:.0f}", f"{100 * found:.1f}", "yes" if found <= target else "NO"))
    table("Median absolute error of TPOT, percent", ("group", "at most", "found", "met"), asked)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve every row and print the tables; 2 if there are none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=FOLDER.parent)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--jobs", type=int, default=-1)
    parser.add_argument("--rows", type=Path)
    given = parser.parse_args(arguments)
    path = given.shared / FILE
    if not path.is_file():
        print(f"error: {given.shared} has no {FILE}; give the folder that holds it as --shared", file=sys.stderr)
        return NOTHING_CHECKED
    served = joblib.Parallel(n_jobs=given.jobs)(joblib.delayed(serve)(p, given.rounds) for p in read_points(path))
    pairs: list[Pair] = list(served)
    if given.rows:
        write_rows(given.rows, pairs)
    report(pairs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
