"""Serve the requests of one real vLLM run as it served them, and compare. Prints Markdown.

    python benchmarks/vllm_run.py [FOLDER] [--without-reuse]

FOLDER holds the run's requests.jsonl and meta.json (default: shared/silicon/vllm_rtx4090_llama31_8b beside the
repository). Policy, token budget, places and KV blocks are what meta.json says the engine had; requests arrive when the
engine queued them. The latency model is whatever ``sim.simulate.latency_model`` gives for the model and the device.

Three tables: latencies of all requests and the makespan; TPOT by how many requests were decoding; and the first steps,
of which the data tells what was in them. Until the first answer ends nobody who was pre-empted comes back, so the token
times of the run are the ends of known steps: first of steps that prompts fill to the token budget, then of steps that
only decode. ``--without-reuse`` simulates an engine whose pre-empted requests recompute all that they had.

Exit status 2 where the run is absent.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.data import NOTHING_CHECKED  # noqa: E402
from benchmarks.paper_kernels import table  # noqa: E402
from sim import RunResult, StepLog  # noqa: E402
from sim.config import RunConfig, checked  # noqa: E402
from sim.simulate import simulate  # noqa: E402

FOLDER = ROOT.parent / "shared" / "silicon" / "vllm_rtx4090_llama31_8b"
REQUESTS, META = "requests.jsonl", "meta.json"

NAMES = {"meta-llama/Llama-3.1-8B": "Llama-3.1-8B", "NVIDIA GeForce RTX 4090": "RTX-4090"}
"""Names of the run as this project calls them."""

BATCHES = (25, 30, 32, 34, 36, 38)
"""Borders between the batch sizes that TPOT is told by."""

STAMPS_APART_S = 1e-3
"""Stamps closer than this are of one step."""

Array = NDArray[np.float64]
Measure = Callable[[Array], float]

STATISTICS: dict[str, Measure] = {
    "mean": lambda values: float(values.mean()),
    "P50": lambda values: float(np.percentile(values, 50)),
    "P99": lambda values: float(np.percentile(values, 99)),
}


class Served(NamedTuple):
    """When each request arrived, left the queue and got its first and last token, and how long its answer was."""

    arrival_s: Array
    scheduled_s: Array
    first_s: Array
    last_s: Array
    output_tokens: NDArray[np.int64]

    @property
    def ttft_s(self) -> Array:
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> Array:
        return (self.last_s - self.first_s) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> Array:
        return self.last_s - self.arrival_s

    @property
    def makespan_s(self) -> float:
        return float(self.last_s.max() - self.arrival_s.min())


class Comparison(NamedTuple):
    """One quantity, measured and simulated, in seconds."""

    name: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """Simulated over measured, less 1."""
        return self.simulated / self.measured - 1


class Steps(NamedTuple):
    """Mean duration of steps of one kind, and the fewest and most requests that decoded in them."""

    kind: str
    number: int
    fewest: int
    most: int
    measured_s: float
    simulated_s: float


def configuration(folder: Path) -> RunConfig:
    """The engine of the run, as meta.json describes it. vLLM keeps one KV block for padding."""
    meta = json.loads((folder / META).read_text(encoding="utf-8"))
    engine, cache = meta["engine_kwargs"], meta["kv_cache"]
    budget = {"budget_tokens": engine["max_num_batched_tokens"], "max_resident": engine["max_num_seqs"]}
    settings: dict[str, Any] = {
        "trace": str(folder / REQUESTS),
        "policy": {"name": "chunked", "settings": budget},
        "model": NAMES[meta["model"]],
        "device": NAMES[meta["hardware"]["device_name"]],
        "kv_blocks": cache["num_gpu_blocks"] - 1,
        "block_tokens": cache["block_size"],
        "reuse_preempted": cache["enable_prefix_caching"],
    }
    return checked(RunConfig, settings, str(folder / META))


def measured(folder: Path) -> Served:
    """The run itself. Its clock starts at the first arrival."""
    lines = (folder / REQUESTS).read_text(encoding="utf-8").splitlines()
    requests = sorted((json.loads(line) for line in lines), key=lambda request: request["queued_ts"])
    start = requests[0]["queued_ts"]

    def seconds(name: str) -> Array:
        return np.array([request[name] - start for request in requests])

    outputs = np.array([request["output_toks"] for request in requests])
    times = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
    return Served(*(seconds(name) for name in times), outputs)


def simulated(result: RunResult) -> Served:
    """The same of a simulated run in which everybody finished."""
    records = result.records
    times = (records.arrival_s, records.scheduled_s, records.first_token_s, records.last_token_s)
    return Served(*times, records.output_tokens)


def compare(real: Served, ours: Served) -> list[Comparison]:
    """Latencies over all requests, and the makespan."""
    pairs = (
        ("TTFT", real.ttft_s, ours.ttft_s),
        ("TPOT", real.tpot_s, ours.tpot_s),
        ("end to end", real.e2e_s, ours.e2e_s),
    )
    found = [
        Comparison(f"{name}, {label}", statistic(there), statistic(here))
        for name, there, here in pairs
        for label, statistic in STATISTICS.items()
    ]
    return [*found, Comparison("makespan", real.makespan_s, ours.makespan_s)]


def tpot_by_batch(real: Served, ours: Served, log: StepLog) -> Iterator[tuple[str, int, Comparison]]:
    """Median TPOT by how many requests decoded at a time in the simulated run, on average, and how many had it."""
    decoding = np.concatenate([[0], np.cumsum(log.decode_requests)])
    begin, end = (np.searchsorted(log.end_s, at - 1e-9) + 1 for at in (ours.first_s, ours.last_s))
    batch = (decoding[end] - decoding[begin]) / (end - begin)
    borders = (0, *BATCHES, int(batch.max()) + 1)
    for low, high in pairwise(borders):
        inside = (low <= batch) & (batch < high)
        if inside.any():
            medians = (float(np.median(served.tpot_s[inside])) for served in (real, ours))
            yield f"{low} to {high}", int(inside.sum()), Comparison("TPOT", *medians)


def first_steps(real: Served, ours: Served, log: StepLog) -> list[Steps]:
    """The steps until the first answer ended."""
    ended = int(real.last_s.argmin())
    until_s = real.last_s[ended]
    filled_s = real.first_s[real.first_s < until_s].max()
    found = []
    full = list(_full_steps(real, ours, log, until_s))
    if full:
        steps = [step for step, _ in full]
        took = float(np.mean(log.end_s[steps] - log.start_s[steps]))
        known = float(np.mean([seconds for _, seconds in full]))
        found.append(Steps("prompts fill the budget", len(full), *_range(log.decode_requests[steps]), known, took))
    # The answer that ended had one token a step; those from its own first to everybody's took prompts in.
    number = int(real.output_tokens[ended]) - 1 - _step_ends(real, real.first_s[ended], filled_s)
    begin = _step(log, ours.first_s[int(real.first_s.searchsorted(filled_s))])
    end = _step(log, ours.last_s.min())
    batch = _range(log.decode_requests[begin + 1 : end + 1])
    took = float(log.end_s[end] - log.end_s[begin]) / (end - begin)
    return [*found, Steps("decodes alone", number, *batch, float(until_s - filled_s) / number, took)]


def _step_ends(real: Served, after_s: float, to_s: float) -> int:
    """Steps that ended in a span in which every one of them let somebody out of the queue or gave a first token."""
    seen = np.sort(np.concatenate([real.scheduled_s, real.first_s]))
    seen = seen[(seen > after_s + STAMPS_APART_S) & (seen < to_s + STAMPS_APART_S)]
    return int((np.diff(seen) > STAMPS_APART_S).sum()) + 1


def _full_steps(real: Served, ours: Served, log: StepLog, until_s: float) -> Iterator[tuple[int, float]]:
    """Simulated steps at whose start and end the same requests got first tokens in the real run; and its seconds.

    Those with less than nine tenths of the longest step's tokens are left out.
    """
    theirs, mine = _groups(real.first_s), _groups(ours.first_s)
    tokens = log.prefill_tokens + log.decode_requests
    at = {requests: end_s for end_s, requests in mine}
    for (begin_s, before), (end_s, after) in pairwise(theirs):
        if end_s >= until_s or before not in at or after not in at:
            continue
        step = _step(log, at[after])
        if step == _step(log, at[before]) + 1 and tokens[step] >= 0.9 * tokens.max():
            yield step, end_s - begin_s


def _groups(first_s: Array) -> list[tuple[float, frozenset[int]]]:
    """Which requests got their first token at one instant, in order of time."""
    found: defaultdict[float, set[int]] = defaultdict(set)
    for request, at in enumerate(first_s):
        found[float(at)].add(request)
    return [(at, frozenset(found[at])) for at in sorted(found)]


def _step(log: StepLog, end_s: float) -> int:
    return int(np.searchsorted(log.end_s, end_s - 1e-9))


def _range(values: NDArray[np.int64]) -> tuple[int, int]:
    return int(values.min()), int(values.max())


def percent(error: float) -> str:
    return f"{100 * error:+.1f} %"


def shown(rows: Iterable[Comparison]) -> Iterator[tuple[str, str, str, str]]:
    """Cells of a table: milliseconds for TPOT, seconds for the rest."""
    for row in rows:
        unit, factor = ("ms", 1e3) if row.name.startswith("TPOT") else ("s", 1.0)
        there, here = (f"{value * factor:.2f}" for value in (row.measured, row.simulated))
        yield f"{row.name}, {unit}", there, here, percent(row.error)


def print_tables(config: RunConfig, folder: Path, result: RunResult) -> None:
    """The three tables."""
    real, ours, log = measured(folder), simulated(result), result.steps
    preempted, reused = int(result.records.preemptions.sum()), int(result.records.cached_tokens.sum())
    counts = f"{preempted} pre-emptions, {reused} tokens reused, {len(log)} steps"
    table(
        f"{len(ours.first_s)} requests, {config.model} on {config.device}; simulated: {counts}",
        ("", "measured", "simulated", "difference"),
        shown(compare(real, ours)),
    )
    rows: list[tuple[object, ...]] = []
    for batch, number, medians in tpot_by_batch(real, ours, log):
        ((_, *cells),) = shown([medians])
        rows.append((batch, number, *cells))
    table("TPOT by batch", ("decoding", "requests", "measured, ms", "simulated, ms", "difference"), rows)
    rows = []
    for step in first_steps(real, ours, log):
        there, here = (f"{1e3 * seconds:.2f}" for seconds in (step.measured_s, step.simulated_s))
        error = percent(step.simulated_s / step.measured_s - 1)
        rows.append((step.kind, step.number, f"{step.fewest} to {step.most}", there, here, error))
    header = ("step", "number", "decoding", "measured, ms", "simulated, ms", "difference")
    table("Steps until the first answer ended", header, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the three tables; 2 if there is no run to compare with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--without-reuse", action="store_true")
    given = parser.parse_args(arguments)
    folder: Path = given.folder
    if not all((folder / name).is_file() for name in (REQUESTS, META)):
        print(f"error: {folder} lacks {REQUESTS} or {META}; give the folder of a vLLM run as argument", file=sys.stderr)
        return NOTHING_CHECKED
    config = configuration(folder)
    if given.without_reuse:
        config = config.model_copy(update={"reuse_preempted": False})
    print_tables(config, folder, simulate(config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
