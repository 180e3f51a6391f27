"""Serve two public traces from end to end and check that nothing was lost. Prints Markdown.

    python benchmarks/whole_traces.py [FOLDER] [--requests N] [--kv-blocks N]

FOLDER holds azure-llm-2023/AzureLLMInferenceTrace_code.csv and ..._conv.csv (default: shared/traces beside the
repository); one that is absent is skipped. Each is served as recorded by chunked prefill and Bullet on one instance and
by 1P1D disaggregation on two, with the limits that `bulletsim demo` uses for code and for conversations. For each run:

- every request finished or was rejected;
- what a request generated is what the trace says it should;
- the ledger of KV blocks agrees with the requests that hold some, and at the end every block of every instance is free;
- the same settings, read back from the run's config.json by another process, give the same bytes.

Exit status 1 where one of these does not hold, 2 where both traces are absent. ``--requests`` serves only the first N,
``--kv-blocks`` gives every instance N blocks of 16 tokens, such as too few for all, so that requests are pre-empted.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.data import FOLDER, nothing_there  # noqa: E402
from benchmarks.paper_kernels import table  # noqa: E402
from sim import RunResult, ServingLoop  # noqa: E402
from sim.config import RunConfig, checked  # noqa: E402
from sim.metrics import FINISHED, REJECTED, summarise  # noqa: E402
from sim.rundir import REQUESTS, STEPS, write_run  # noqa: E402
from sim.scenarios import DEVICE, MODEL, PAPER_SLOS  # noqa: E402
from sim.simulate import Prepared, prepare  # noqa: E402

TRACES = {
    "code": ("azure-llm-2023/AzureLLMInferenceTrace_code.csv", PAPER_SLOS["code"]),
    "conversation": ("azure-llm-2023/AzureLLMInferenceTrace_conv.csv", PAPER_SLOS["sharegpt"]),
}
"""By name: the file in FOLDER, and the SLO of the workload it is most like."""

INSTANCES = {"chunked": 1, "bullet": 1, "disaggregation": 2}
"""By policy. Loads per GPU differ: this compares no policies."""

REPEAT = "import sys; from cli.main import run; sys.exit(run(sys.argv[1:]))"


def configs(folder: Path, name: str, requests: int | None, kv_blocks: int | None) -> Iterator[RunConfig]:
    """One run a policy over the trace ``name``."""
    file, slo = TRACES[name]
    for policy, instances in INSTANCES.items():
        settings = {
            "trace": str(folder / file),
            "policy": policy,
            "model": MODEL,
            "device": DEVICE,
            "instances": instances,
            "slo": slo,
            "requests": requests,
            "kv_blocks": kv_blocks,
        }
        yield checked(RunConfig, settings, f"{policy} on {name}")


class Outcome(NamedTuple):
    """What a run came to. ``wall_s`` covers the serving loop alone, ``sha256`` its requests.parquet.

    exact: every finished request generated the tokens that the trace gives it.
    ledger: nothing, or what is wrong with the KV blocks.
    repeated: another process got the same requests.parquet and steps.parquet.
    """

    requests: int
    finished: int
    rejected: int
    exact: bool
    preemptions: int
    steps: int
    free_blocks: int
    total_blocks: int
    ledger: str
    sha256: str
    repeated: bool
    wall_s: float

    @property
    def faults(self) -> list[str]:
        """What should not be; empty for a good run."""
        found = []
        if self.finished + self.rejected != self.requests:
            found.append(f"{self.requests - self.finished - self.rejected} requests neither finished nor rejected")
        if not self.exact:
            found.append("tokens generated differ from the trace's")
        if self.ledger:
            found.append(self.ledger)
        if self.free_blocks != self.total_blocks:
            found.append(f"{self.total_blocks - self.free_blocks} KV blocks not given back")
        if not self.repeated:
            found.append("a second run gave other bytes")
        return found


def serve_whole(config: RunConfig) -> Outcome:
    """Serves, checks, writes and repeats one run."""
    prepared = prepare(config)
    loop = prepared.loop()
    start = time.perf_counter()
    result = loop.run()
    wall_s = time.perf_counter() - start
    ledger = ledger_fault(loop)
    free, total = sum(loop.free_blocks()), prepared.limits.total_blocks * config.instances
    sha256, repeated = written_twice(prepared, result)
    records = result.records
    finished = records.state == FINISHED
    return Outcome(
        requests=len(prepared.trace),
        finished=int(finished.sum()),
        rejected=int((records.state == REJECTED).sum()),
        exact=bool(np.array_equal(records.generated_tokens[finished], prepared.trace.output_tokens[finished])),
        preemptions=int(records.preemptions.sum()),
        steps=len(result.steps),
        free_blocks=free,
        total_blocks=total,
        ledger=ledger,
        sha256=sha256,
        repeated=repeated,
        wall_s=wall_s,
    )


def ledger_fault(loop: ServingLoop) -> str:
    """What ``loop.check()`` objects to; empty if nothing."""
    try:
        loop.check()
    except AssertionError as error:
        return str(error)
    return ""


def written_twice(prepared: Prepared, result: RunResult) -> tuple[str, bool]:
    """SHA-256 of the run's requests, and whether its config.json gives the same files in a process of its own."""
    config = prepared.config
    metrics = summarise(result, config.slo.value(), config.gpus, config.window.value())
    with tempfile.TemporaryDirectory() as name:
        first, second = Path(name) / "first", Path(name) / "second"
        write_run(first, config, result, metrics)
        options = ("simulate", "--config", str(first / "config.json"), "--out", str(second), "--quiet")
        subprocess.run([sys.executable, "-c", REPEAT, *options], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        same = all(digest(first / file) == digest(second / file) for file in (REQUESTS, STEPS))
        return digest(first / REQUESTS), same


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def row(name: str, policy: str, outcome: Outcome) -> tuple[object, ...]:
    """One line of the table."""
    return (
        name,
        policy,
        outcome.requests,
        outcome.finished,
        outcome.rejected,
        outcome.preemptions,
        outcome.steps,
        f"{outcome.free_blocks} of {outcome.total_blocks}",
        "balanced" if not outcome.ledger else "WRONG",
        f"{outcome.sha256[:12]}, {'equal' if outcome.repeated else 'DIFFERENT'}",
        f"{outcome.wall_s:.1f}",
    )


HEADER = (
    "trace",
    "policy",
    "requests",
    "finished",
    "rejected",
    "pre-emptions",
    "steps",
    "KV blocks free",
    "ledger",
    "requests.parquet, twice",
    "wall, s",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and what is wrong; 1 if anything is, 2 if there was nothing to check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--kv-blocks", type=int)
    given = parser.parse_args(arguments)
    files = [file for file, _ in TRACES.values()]
    if not any((given.folder / file).is_file() for file in files):
        return nothing_there(given.folder, files)
    rows, faults = [], []
    for name, (file, _) in TRACES.items():
        if not (given.folder / file).is_file():
            print(f"{name} skipped: FOLDER has no {file}")
            continue
        for config in configs(given.folder, name, given.requests, given.kv_blocks):
            outcome = serve_whole(config)
            rows.append(row(name, config.policy.name, outcome))
            faults += [f"{config.policy.name} on {name}: {fault}" for fault in outcome.faults]
    table(f"{MODEL} on {DEVICE}, arrivals as recorded", HEADER, rows)
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
