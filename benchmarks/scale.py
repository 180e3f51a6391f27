"""Time and memory of long traces from end to end, and whether the cost of a request stays flat. Prints Markdown.

    python benchmarks/scale.py [FOLDER] [--policy chunked] [--requests 10000 100000 1000000]

The conversation trace (azure-llm-2023/AzureLLMInferenceTrace_conv.csv in FOLDER, default: shared/traces beside the
repository) again and again, as long as asked for, saved as Parquet. Each length is served in a process of its own: the
trace read, the run, its metrics, its files written; its memory is the most that the process held.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.data import FOLDER, nothing_there  # noqa: E402
from benchmarks.paper_kernels import table  # noqa: E402
from benchmarks.speed import machine  # noqa: E402
from benchmarks.whole_traces import INSTANCES, TRACES  # noqa: E402
from sim.config import RunConfig, checked  # noqa: E402
from sim.metrics import summarise  # noqa: E402
from sim.rundir import write_run  # noqa: E402
from sim.scenarios import DEVICE, MODEL  # noqa: E402
from sim.simulate import prepare  # noqa: E402
from traces import Trace, open_trace, save  # noqa: E402

FILE, SLO = TRACES["conversation"]

REQUIRED_REQUESTS, REQUIRED_S, REQUIRED_MIB = 1_000_000, 120.0, 1024.0
"""What so many requests may take from end to end."""


def repeated(trace: Trace, requests: int) -> Trace:
    """``trace`` over and over, as many requests of it."""
    assert trace.arrival_s is not None
    place = np.arange(requests) % len(trace)
    span_s = float(trace.arrival_s[-1]) * len(trace) / (len(trace) - 1)
    arrival_s = trace.arrival_s[place] + span_s * (np.arange(requests) // len(trace))
    prompts, outputs = trace.prompt_tokens[place], trace.output_tokens[place]
    columns = replace(trace, request_ids=None, session_ids=None)
    return replace(columns, arrival_s=arrival_s, prompt_tokens=prompts, output_tokens=outputs)


def serve(trace: str, policy: str, out: str) -> dict[str, float]:
    """One trace from end to end: seconds of the loop, those of its CPU, and of all, steps, and bytes at most."""
    start = time.perf_counter()
    settings = {"trace": trace, "policy": policy, "model": MODEL, "device": DEVICE, "slo": SLO}
    config = checked(RunConfig, settings | {"instances": INSTANCES.get(policy, 1)}, policy)
    prepared = prepare(config)
    begin, cpu = time.perf_counter(), time.process_time()
    result = prepared.run()
    loop_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    metrics = summarise(result, config.slo.value(), config.gpus)
    write_run(Path(out), prepared.config, result, metrics)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    all_s = time.perf_counter() - start
    return {"loop_s": loop_s, "cpu_s": cpu_s, "all_s": all_s, "steps": len(result.steps), "peak": peak}


def served_apart(trace: Trace, policy: str, requests: int) -> dict[str, float]:
    """``serve`` in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "trace.parquet"
        save(repeated(trace, requests), file)
        command = [sys.executable, __file__, "--policy", policy, "--serve", str(file), str(Path(name) / "out")]
        found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        return found


def show(policy: str, found: Sequence[tuple[int, dict[str, float]]]) -> None:
    """Print one row a length, and what was asked of the longest."""
    rows, required = [], []
    for requests, one in found:
        us, mib = 1e6 * one["cpu_s"] / requests, one["peak"] / 2**20
        rows.append((requests, one["steps"], f"{one['loop_s']:.1f}", f"{us:.1f}", f"{one['all_s']:.1f}", f"{mib:.0f}"))
        if requests == REQUIRED_REQUESTS:
            asked = (("end to end, s", REQUIRED_S, one["all_s"]), ("peak memory, MiB", REQUIRED_MIB, mib))
            required = [(what, f"{most:g}", f"{got:.4g}", "yes" if got <= most else "NO") for what, most, got in asked]
    header = ("requests", "steps", "loop, s", "CPU us a request", "end to end, s", "peak memory, MiB")
    table(f"{policy}: the conversation trace over and over", header, rows)
    if required:
        table(f"Required of {REQUIRED_REQUESTS} requests", ("what", "at most", "found", "met"), required)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; 2 where the trace is absent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--policy", default="chunked")
    parser.add_argument("--requests", type=int, nargs="+", default=[10_000, 100_000, REQUIRED_REQUESTS])
    parser.add_argument("--serve", nargs=2, metavar=("TRACE", "OUT"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve:
        print(json.dumps(serve(given.serve[0], given.policy, given.serve[1])))
        return 0
    if not (given.folder / FILE).is_file():
        return nothing_there(given.folder, [FILE])
    about, trace = machine(), open_trace(str(given.folder / FILE), 0, None)
    print(
        f"{about['cpu']}, {about['cores']} cores, Python {about['python']}, load {about['load']} before the first run"
    )
    show(given.policy, [(requests, served_apart(trace, given.policy, requests)) for requests in given.requests])
    return 0


if __name__ == "__main__":
    sys.exit(main())
