"""How far fitted kernel times are from measurements that they were not fitted to, on an A100, an H100 and an H200.

Reads AIConfigurator's tables of the three devices and the layer table of an RTX 4090 from a folder beside this
repository, which the project does not ship, and prints Markdown: errors by split for our estimator and its two rivals,
errors by number of samples, products of widths that were left out, chunks behind a cached prefix, and what the
parameters weigh.

    python benchmarks/holdout.py [--shared DIR]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.data import NOTHING_CHECKED  # noqa: E402
from benchmarks.paper_kernels import PROFILES, cpu_name, table  # noqa: E402
from profiler import device  # noqa: E402
from profiler.estimators import CANDIDATES, CalibratedRoofline, rows_of  # noqa: E402
from profiler.holdout import (  # noqa: E402
    LARGEST,
    MOST,
    PAIRS,
    RANDOM,
    WIDE,
    Errors,
    compare,
    errors_of,
    learning_curve,
)
from profiler.importers import aiconfigurator, vllm_tables  # noqa: E402
from profiler.profile import Profile  # noqa: E402

OURS, *RIVALS = CANDIDATES
OPS = ("gemm", "attention_prefill", "attention_decode")
WIDE_ROWS = f"n, k >= {WIDE}"

TARGETS: dict[tuple[str, str, str], tuple[float, float | None]] = {
    ("gemm", RANDOM, WIDE_ROWS): (0.03, 0.10),
    ("gemm", PAIRS, WIDE_ROWS): (0.04, 0.13),
    ("gemm", LARGEST, WIDE_ROWS): (0.06, None),
    ("gemm", MOST, WIDE_ROWS): (0.04, None),
    ("attention_prefill", RANDOM, "all"): (0.02, None),
    ("attention_decode", RANDOM, "all"): (0.013, None),
}
"""Median and 90th percentile that the worst of the three devices must stay below."""

MOST_BYTES = 290_000
"""Of the fitted parameters of the three ops."""

UNMEASURED_WIDTHS = (14336, 28672)
NEIGHBOURS = (12288, 16384)
"""Widths of an MLP of Llama that the tables lack, and the measured ones around the first of them."""

RATIOS = (0, 1, 4, 16, 1024)
CHUNKS = (16, 128, 512, 4096)
"""Borders between classes of cached over new tokens, and of new tokens."""

RTX = "vllm_rtx4090_llama31_8b"


def profiles(shared: Path) -> dict[str, Profile]:
    """Of each device, the tables that are there."""
    found = {}
    for name, prefix in PROFILES.items():
        files = sorted((shared / "profiles").glob(f"{prefix}_*.csv.gz"))
        if files:
            found[name] = aiconfigurator.read_tables(files, name)
    return found


def percent(errors: Errors) -> str:
    """Median / 90th percentile; what is beyond all use is not given to the digit."""
    return " / ".join("> 999" if share > 9.99 else f"{100 * share:.1f}" for share in (errors.median, errors.p90))


def worst(errors: Iterable[Errors]) -> Errors:
    return max(errors, key=lambda found: found.median)


def print_splits(measured: Mapping[str, Sequence[Errors]]) -> bool:
    """Every split; whether the worst of the devices meets the targets."""
    by_device = {name: {(e.op, e.split, e.subset, e.estimator): e for e in errors} for name, errors in measured.items()}
    first = next(iter(by_device.values()))
    rows, met = [], True
    for op, split, subset, estimator in first:
        if estimator != OURS:
            continue
        target = TARGETS.get((op, split, subset))
        each = [found[op, split, subset, OURS] for found in by_device.values()]
        rivals = [worst(found[op, split, subset, name] for found in by_device.values()) for name in RIVALS]
        if target is not None:
            met &= max(e.median for e in each) <= target[0]
            met &= target[1] is None or max(e.p90 for e in each) <= target[1]
        shown = "" if target is None else " / ".join(f"{100 * part:g}" for part in target if part is not None)
        rows.append((op, split, subset, shown, *map(percent, (*each, *rivals))))
    table(
        "Error of held-out rows, median / 90th percentile in percent; rivals at the worst of the devices",
        ("op", "held out", "rows", "target", *(f"{OURS}, {name}" for name in by_device), *RIVALS),
        rows,
    )
    return met


def print_learning(read: Mapping[str, Profile]) -> None:
    """Errors by samples, at the worst of the devices."""
    for op in OPS:
        found: dict[tuple[int, str], list[Errors]] = {}
        for name, profile in read.items():
            errors = learning_curve(profile, op, device(name))
            most = max(e.fitted for e in errors)
            for e in errors:
                found.setdefault((0 if e.fitted == most else e.fitted, e.estimator), []).append(e)
        sizes = sorted({size for size, _ in found}, key=lambda size: size or sys.maxsize)
        rows = [(size or "all others", *(percent(worst(found[size, name])) for name in CANDIDATES)) for size in sizes]
        table(
            f"{op}: error on the same 20 % of all rows by number of samples, percent, worst of the devices",
            ("samples", *CANDIDATES),
            rows,
        )


def print_widths(read: Mapping[str, Profile]) -> None:
    """Products with n or k of a width that was left out."""
    rows = []
    for name, profile in read.items():
        measured = rows_of(profile, "gemm")
        wide = ((measured["n"] >= WIDE) & (measured["k"] >= WIDE)).to_numpy(dtype=bool)
        for width in NEIGHBOURS:
            test = ((measured["n"] == width) | (measured["k"] == width)).to_numpy(dtype=bool)
            cells = []
            for estimator in CANDIDATES.values():
                errors = errors_of(estimator("gemm", device(name)), measured, ~test, test)[wide[test]]
                cells.append(f"{100 * np.median(errors):.1f} / {100 * np.quantile(errors, 0.9):.1f}")
            rows.append((name, width, int((test & wide).sum()), *cells))
    missing = " and ".join(f"{width:,}" for width in UNMEASURED_WIDTHS)
    table(
        f"Products with n or k of a width held out, other side >= {WIDE} (no table has {missing})",
        ("device", "width", "rows", *CANDIDATES),
        rows,
    )


def print_prefixes(shared: Path) -> None:
    """Chunks behind a prefix, by a model that saw prompts without one only."""
    folder = shared / "silicon" / RTX
    if not folder.is_dir():
        print("\nPrefixes skipped: no silicon folder at --shared")
        return
    rows = rows_of(vllm_tables.read_tables(folder, "RTX-4090"), "attention_prefill")
    prefixed = (rows["cached_tokens"] > 0).to_numpy(dtype=bool)
    ours = CalibratedRoofline("attention_prefill", device("RTX-4090"), keep_points=True)
    errors = pd.Series(errors_of(ours, rows, ~prefixed, prefixed))
    asked = rows[prefixed].astype({"new_tokens": int, "cached_tokens": int}).reset_index(drop=True)
    ratios = pd.cut(asked["cached_tokens"] / asked["new_tokens"], RATIOS)
    chunks = pd.cut(asked["new_tokens"], CHUNKS, right=False)
    cells = []
    for chunk in chunks.cat.categories:
        for ratio in [None, *ratios.cat.categories]:
            here = errors[(chunks == chunk) & ((ratios == ratio) if ratio is not None else True)]
            if len(here):
                among = "all" if ratio is None else f"{ratio.left:g} to {ratio.right:g}"
                numbers = (100 * here.median(), 100 * here.quantile(0.9))
                cells.append((f"{chunk.left} to {chunk.right - 1}", among, len(here), *(f"{x:.1f}" for x in numbers)))
    table(
        f"RTX 4090: chunks behind a cached prefix, after {int((~prefixed).sum())} prompts without; percent",
        ("chunk, tokens", "cached over new", "rows", "median", "90th percentile"),
        [*cells, ("all", "all", len(errors), f"{100 * errors.median():.1f}", f"{100 * errors.quantile(0.9):.1f}")],
    )


def print_weights(read: Mapping[str, Profile]) -> bool:
    """Bytes and microseconds of models fitted to all rows; whether they are within the limit."""
    rows, within = [], True
    for name, profile in read.items():
        total, cells = 0, []
        for op in OPS:
            measured = rows_of(profile, op)
            model = CalibratedRoofline(op, device(name)).fit(measured, measured["latency_s"])
            written = len(json.dumps(model.freeze().document(), separators=(",", ":")))
            asked, start = measured[:1000], time.perf_counter()
            model.predict(asked)
            cells.append(f"{written / 1e3:.0f} kB, {1e6 * (time.perf_counter() - start) / len(asked):.0f} us")
            total += written
        within &= total <= MOST_BYTES
        rows.append((name, *cells, f"{total / 1e3:.0f} kB"))
    table(
        f"Fitted parameters as JSON (together at most {MOST_BYTES // 1000} kB), and time a prediction ({cpu_name()})",
        ("device", *OPS, "together"),
        rows,
    )
    return within


def main(arguments: Sequence[str] | None = None) -> int:
    """Print every table; 1 where a target is missed, 2 where there is nothing to read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="holds profiles/ and silicon/")
    shared = parser.parse_args(arguments).shared
    read = profiles(shared)
    if not read:
        print(f"error: {shared}/profiles has no tables of {', '.join(PROFILES)}; give --shared", file=sys.stderr)
        return NOTHING_CHECKED
    met = print_splits({name: compare(profile, device(name), ops=OPS) for name, profile in read.items()})
    print_learning(read)
    print_widths(read)
    print_prefixes(shared)
    within = print_weights(read)
    print(f"\ntargets: {'met' if met else 'MISSED'}; size: {'within the limit' if within else 'ABOVE THE LIMIT'}")
    return 0 if met and within else 1


if __name__ == "__main__":
    sys.exit(main())
