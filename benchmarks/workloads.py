"""Check the built-in workloads against the traces they were fitted to, or fit them again.

    python benchmarks/workloads.py [FOLDER] [--requests 10000] [--seeds 20] [--fit]

FOLDER holds the source traces under the paths of SOURCES (default: shared/traces beside the repository); one that is
absent is skipped. For each workload the mean, P50 and P90 of
prompt and output tokens and the rank correlation of the two are printed for the source and for the
workload, as the worst of the seeds. Exit status 1 if a length is off by more than 5 % or a correlation
by more than 0.05, 2 if every source is absent. ``--fit`` first writes traces/workloads.json anew, and needs
all sources.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import traces  # noqa: E402
from benchmarks.data import FOLDER, NOTHING_CHECKED, nothing_there  # noqa: E402
from traces.request import FloatColumn, IntColumn  # noqa: E402
from traces.statistics import rank_correlation  # noqa: E402
from traces.workloads import FITTED, Margin, Workload, workloads  # noqa: E402

SOURCES = {
    "code": ("azure-llm-2023/AzureLLMInferenceTrace_code.csv", "code completion", "Azure 2023, CC-BY-4.0"),
    "chat": ("azure-llm-2023/AzureLLMInferenceTrace_conv.csv", "conversation", "Azure 2023, CC-BY-4.0"),
    "sharegpt": (
        "sharegpt-lengths/first_exchange.csv",
        "first exchange of ShareGPT conversations",
        "ShareGPT V3, Apache-2.0 as its card states",
    ),
    "summary": (
        "arxiv-long/arxiv_sample.csv",
        "summaries of long articles",
        "arXiv sample of microsoft/vattention, MIT",
    ),
}
KNOTS = 64
LENGTH_TOLERANCE, CORRELATION_TOLERANCE = 0.05, 0.05
TAIL = (0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995)


def fit_margin(tokens: IntColumn) -> Margin:
    """At most KNOTS knots, each put where the interpolated distribution is furthest from the empirical."""
    values, counts = np.unique(tokens, return_counts=True)
    shares = np.cumsum(counts) / len(tokens)
    chosen = {0, len(values) - 1, *np.searchsorted(shares, TAIL).tolist()}
    while len(chosen) < min(KNOTS, len(values)):
        knots = sorted(chosen)
        between = np.interp(np.log(values), np.log(values[knots]), shares[knots])
        error = np.abs(between - shares)
        error[knots] = 0
        chosen.add(int(np.argmax(error)))
    knots = sorted(chosen)
    return Margin(tokens=tuple(values[knots].tolist()), shares=tuple(round(s, 6) for s in shares[knots].tolist()))


def correlation_of(prompt: IntColumn, output: IntColumn) -> float:
    found = rank_correlation(prompt, output)
    assert found is not None, "a source with one length has no rank correlation"
    return found


def fit_correlation(prompt: Margin, output: Margin, wanted: float) -> float:
    """The normals' correlation at which the drawn lengths have the rank correlation ``wanted`` (bisection)."""
    low, high = -0.999, 0.999
    for _ in range(20):
        middle = (low + high) / 2
        drawn = _trial(prompt, output, middle).draw(200_000, seed=0)
        low, high = (middle, high) if correlation_of(*drawn) < wanted else (low, middle)
    return round((low + high) / 2, 4)


def _trial(prompt: Margin, output: Margin, correlation: float) -> Workload:
    return Workload(
        name="trial",
        about="",
        prompt=prompt,
        output=output,
        correlation=correlation,
        source="",
        sha256="",
        source_rows=0,
    )


def fit(folder: Path) -> None:
    """Write the fitted numbers of all workloads to traces/workloads.json."""
    fitted: dict[str, dict[str, object]] = {}
    for name, (file, about, origin) in SOURCES.items():
        trace = traces.load(folder / file)
        prompt, output = fit_margin(trace.prompt_tokens), fit_margin(trace.output_tokens)
        wanted = correlation_of(trace.prompt_tokens, trace.output_tokens)
        fitted[name] = {
            "about": about,
            "source": f"{Path(file).name} ({origin})",
            "sha256": trace.provenance.sha256,
            "source_rows": len(trace),
            "correlation": fit_correlation(prompt, output, wanted),
            "prompt": list(zip(prompt.tokens, prompt.shares, strict=True)),
            "output": list(zip(output.tokens, output.shares, strict=True)),
        }
    FITTED.write_text(_document(fitted), encoding="utf-8")
    workloads.cache_clear()


def _document(fitted: dict[str, dict[str, object]]) -> str:
    """JSON with one field a line, so that a refit can be read as a difference."""
    about = "Knots [tokens, P(X <= tokens)] fitted by benchmarks/workloads.py --fit; see traces/workloads.py"
    entries = []
    for name, entry in fitted.items():
        fields = ",\n".join(f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in entry.items())
        entries.append(f"   {json.dumps(name)}: {{\n{fields}\n   }}")
    return f'{{\n "about": {json.dumps(about)},\n "workloads": {{\n' + ",\n".join(entries) + "\n }\n}\n"


def measures(prompt: IntColumn, output: IntColumn) -> FloatColumn:
    """Mean, P50, P90 of prompts, the same of outputs, rank correlation: shape (7,)."""
    lengths = [f(column) for column in (prompt, output) for f in (np.mean, np.median, _p90)]
    return np.array([*lengths, correlation_of(prompt, output)], float)


def _p90(column: IntColumn) -> float:
    return float(np.quantile(column, 0.9))


def check(folder: Path, requests: int, seeds: int) -> bool:
    """Print the table; whether every seed of every workload is within the tolerances."""
    names = ("prompt mean", "prompt P50", "prompt P90", "output mean", "output P50", "output P90", "rank corr.")
    print(f"{requests} requests, worst of {seeds} seeds (error in %, of the rank correlation as difference)")
    print(f"{'workload':9} {'measure':12} {'source':>10} {'workload':>10} {'error':>8}")
    good = True
    for name, (file, _, _) in SOURCES.items():
        if not (folder / file).is_file():
            print(f"{name} skipped: FOLDER has no {file}")
            continue
        source = traces.load(folder / file)
        wanted = measures(source.prompt_tokens, source.output_tokens)
        drawn = [traces.workload(name, requests, seed) for seed in range(seeds)]
        found = np.array([measures(t.prompt_tokens, t.output_tokens) for t in drawn])  # (seeds, 7)
        errors = found - wanted
        errors[:, :6] /= wanted[:6]
        worst = np.argmax(np.abs(errors), axis=0)
        for i, label in enumerate(names):
            error, value = errors[worst[i], i], found[worst[i], i]
            limit = LENGTH_TOLERANCE if i < 6 else CORRELATION_TOLERANCE
            good = good and abs(error) <= limit
            shown = f"{100 * error:+7.2f}%" if i < 6 else f"{error:+8.3f}"
            print(f"{name:9} {label:12} {wanted[i]:10.3f} {value:10.3f} {shown}")
    print("all within tolerance" if good else "OUT OF TOLERANCE")
    return good


def main(given: Sequence[str] | None = None) -> int:
    """Print the table; 1 if something is out of tolerance, 2 if there was nothing to check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER, help="folder of the source traces")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--fit", action="store_true", help="write traces/workloads.json first")
    arguments = parser.parse_args(given)
    files = [file for file, _, _ in SOURCES.values()]
    absent = [file for file in files if not (arguments.folder / file).is_file()]
    if len(absent) == len(files):
        return nothing_there(arguments.folder, files)
    if arguments.fit and absent:
        print(f"error: {arguments.folder} has no {absent[0]}; --fit needs every source", file=sys.stderr)
        return NOTHING_CHECKED
    if arguments.fit:
        fit(arguments.folder)
    return 0 if check(arguments.folder, arguments.requests, arguments.seeds) else 1


if __name__ == "__main__":
    sys.exit(main())
