"""The roofline model against the paper's statements about kernels, and against measured kernels. Prints Markdown.

    python benchmarks/paper_kernels.py [--shared DIR]

Everything is computed from the defaults; nothing here is fitted. The measured tables are read from DIR/profiles (by
default ../shared beside the repository) and skipped where absent.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from profiler import RooflineModel, Work, device, roofline  # noqa: E402
from profiler.tiles import idle_share, plan_gemm, waves  # noqa: E402

PAPER_TABLE_2 = {
    1024: (11.1, 21.0, 40.7, 13.0, 19.4),
    2048: (11.1, 5.2, 21.0, 7.6, 10.4),
    4096: (11.1, 5.2, 5.2, 7.6, 9.1),
    16384: (1.9, 0.2, 0.2, 0.4, 0.5),
}
"""Idle SM share in percent: QKV, attention, O, MLP, whole layer."""

WAVE_KERNELS = ("qkv", "attention_prefill", "o", "gate_up", "down")
PROMPT = 16384
HALVING_PROMPTS = (512, 1024, 2048, 4096, 8192, 16384)
HALVING_BATCHES = (1, 4, 16, 32, 64, 96, 128, 256)
HALVING_CONTEXTS = (512, 2048, 8192, 16384)

RTX4090_TOKENS = (1, 16, 64, 256, 1024, 2048)

PROFILES = {
    "A100-80G": "a100_sxm_sglang-0.5.10",
    "H100": "h100_sxm_vllm-0.24.0",
    "H200": "h200_sxm_vllm-0.24.0",
}


def llama_on_a100() -> RooflineModel:
    """The paper's main setting."""
    return roofline("Llama-3.1-8B", "A100-80G")


class IdleShares(NamedTuple):
    """Percent of SM time idle by waves. The MLP as the paper adds it up, and weighted by time; so the layer."""

    qkv: float
    attention: float
    o: float
    mlp_sum: float
    mlp_weighted: float
    layer: float


def idle_shares(tokens: int) -> IdleShares:
    """One row of table 2."""
    model = llama_on_a100()
    parts = {part.kernel.name: part for part in model.breakdown(Work(prefill=((tokens, 0),)), 108)}
    idle = {name: 100 * idle_share(parts[name].kernel.blocks or 0, 108) for name in WAVE_KERNELS}

    def weighted(names: Sequence[str]) -> float:
        total = sum(parts[name].seconds for name in names)
        return sum(idle[name] * parts[name].seconds for name in names) / total

    mlp = ("gate_up", "down")
    return IdleShares(
        idle["qkv"],
        idle["attention_prefill"],
        idle["o"],
        sum(idle[name] for name in mlp),
        weighted(mlp),
        weighted(WAVE_KERNELS),
    )


class Chunking(NamedTuple):
    """A 16k prompt in chunks: against the whole prompt at once, last chunk over first, and shares of the peak."""

    total_ratio: float
    last_over_first: float
    first_efficiency: float
    last_efficiency: float
    first_s: float


def chunking(chunk: int) -> Chunking:
    """Figure 5 for one chunk size."""
    model = llama_on_a100()
    works = [Work(prefill=((chunk, done),)) for done in range(0, PROMPT, chunk)]
    times = [model.estimate(work, 108).seconds for work in works]
    whole = model.estimate(Work(prefill=((PROMPT, 0),)), 108).seconds
    return Chunking(
        total_ratio=sum(times) / whole,
        last_over_first=times[-1] / times[0],
        first_efficiency=_efficiency(model, works[0]),
        last_efficiency=_efficiency(model, works[-1]),
        first_s=times[0],
    )


def layer_efficiency(tokens: int) -> float:
    """Useful FLOP/s of the layers of a prefill, as a share of the peak."""
    model = llama_on_a100()
    return _efficiency(model, Work(prefill=((tokens, 0),), layers=32, head=False))


def _efficiency(model: RooflineModel, work: Work) -> float:
    return model.cost(work)[0] / model.estimate(work, 108).seconds / model.device.bf16_flops


def slowdown(work: Work, sms: int) -> float:
    """Time on ``sms`` SMs over time on all of an A100."""
    model = llama_on_a100()
    return model.estimate(work, sms).seconds / model.estimate(work, model.device.sms).seconds


def decode(batch: int, context: int) -> Work:
    """A decode step: ``context`` KV tokens in each of ``batch`` sequences."""
    return Work(decode_requests=batch, decode_context_tokens=batch * context)


def derived_decode_curves(shared: Path) -> Iterator[tuple[str, int, float]]:
    """(shape, SMs, slowdown) of the A100's decode curves for the 8B model in sm_scaling_derived.csv."""
    with (shared / "profiles" / "sm_scaling_derived.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["gpu"], row["model_label"], row["phase"]) == ("A100", "8B", "decode"):
                yield row["shape"], int(row["sms"]), float(row["slowdown_vs_full"])


def measured_gemm_efficiency(shared: Path, name: str) -> list[float]:
    """Measured products with at least 1,024 rows and 4,096 in n and k: efficiency left once waves are counted."""
    spec = device(name)
    found = []
    for row in _rows(shared, name, "gemm"):
        m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
        if m >= 1024 and n >= 4096 and k >= 4096:
            blocks, flops = plan_gemm(m, n, k, spec.sms)
            ideal = waves(blocks, spec.sms) * flops / (spec.bf16_flops / spec.sms)
            found.append(ideal / (float(row["latency_ms"]) / 1e3))
    return found


def measured_skinny_efficiency(shared: Path, name: str) -> list[float]:
    """Measured products with at most 64 rows and 100 MB of weights: DRAM bandwidth over its peak."""
    spec = device(name)
    found = []
    for row in _rows(shared, name, "gemm"):
        m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
        if m <= 64 and n * k >= 50_000_000:
            moved = 2 * (n * k + m * (n + k))
            found.append(moved / (float(row["latency_ms"]) / 1e3) / spec.dram_bytes_per_s)
    return found


def measured_attention_efficiency(shared: Path, name: str) -> list[float]:
    """Measured causal attention, 1,024 tokens or more, 100 us or more: efficiency left once waves are counted."""
    spec = device(name)
    found = []
    for row in _rows(shared, name, "context_attention"):
        tokens, seconds = int(row["isl"]), float(row["latency_ms"]) / 1e3
        if tokens < 1024 or seconds < 100e-6 or int(row["head_dim"]) != 128:
            continue
        row_blocks = math.ceil(tokens / 128)
        flops = 4.0 * 128 * 128 * 128 * (row_blocks + 1) / 2
        blocks = int(row["batch_size"]) * int(row["num_heads"]) * row_blocks
        found.append(waves(blocks, spec.sms) * flops / (spec.bf16_flops / spec.sms) / seconds)
    return found


def _rows(shared: Path, name: str, kind: str) -> Iterator[dict[str, str]]:
    path = shared / "profiles" / f"{PROFILES[name]}_{kind}_perf_bf16.csv.gz"
    with gzip.open(path, "rt", newline="") as file:
        yield from csv.DictReader(file)


def cpu_name() -> str:
    """The CPU as the kernel names it."""
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown CPU"


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print one Markdown table; floats with three digits."""
    print(f"\n{title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        cells = (f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row)
        print(f"| {' | '.join(cells)} |")


def print_paper() -> None:
    """Table 2 and figure 5."""
    header = ("tokens", "QKV", "attention", "O", "MLP, sum", "MLP by time", "layer by time", "paper's layer")
    rows = []
    for tokens, paper in PAPER_TABLE_2.items():
        ours = idle_shares(tokens)
        cells = [f"{mine:.1f} ({theirs:.1f})" for mine, theirs in zip(ours[:4], paper[:4], strict=True)]
        rows.append((tokens, *cells, f"{ours.mlp_weighted:.1f}", f"{ours.layer:.1f}", paper[4]))
    table("Idle SM share in percent by waves, ours (paper's table 2)", header, rows)
    table(
        "Layers' share of the A100's peak (paper: 70-76 %)",
        ("tokens", "share"),
        [(tokens, layer_efficiency(tokens)) for tokens in PAPER_TABLE_2],
    )
    one, two = chunking(1024), chunking(2048)
    rows = [
        ("total over unchunked", one.total_ratio, "1.13", two.total_ratio, ""),
        ("last chunk over first", one.last_over_first, "1.9", two.last_over_first, ""),
        ("efficiency of the first chunk", one.first_efficiency, "0.71", two.first_efficiency, ""),
        ("efficiency of the last chunk", one.last_efficiency, "0.61", two.last_efficiency, ""),
        ("first 2k chunk over first 1k chunk", "", "", two.first_s / one.first_s, "1.86"),
    ]
    table("A 16k prompt in chunks", ("", "1k chunks", "paper", "2k chunks", "paper"), rows)


def print_scaling(shared: Path) -> None:
    """Half of the SMs, and the decode curves of the shared file."""
    table(
        "Prefill on 54 of 108 SMs: slowdown",
        ("tokens", *map(str, HALVING_PROMPTS)),
        [("", *(slowdown(Work(prefill=((tokens, 0),)), 54) for tokens in HALVING_PROMPTS))],
    )
    table(
        "Decode on 54 of 108 SMs: slowdown by batch and context",
        ("batch", *map(str, HALVING_CONTEXTS)),
        [(n, *(slowdown(decode(n, context), 54) for context in HALVING_CONTEXTS)) for n in HALVING_BATCHES],
    )
    if not (shared / "profiles").is_dir():
        print("\nMeasured tables skipped: no profiles folder at --shared")
        return
    rows = []
    for shape, sms, theirs in derived_decode_curves(shared):
        batch, context = (int(part.partition("=")[2]) for part in shape.split())
        work = Work(decode_requests=batch, decode_context_tokens=context)
        rows.append((shape, sms, slowdown(work, sms), theirs))
    table("Decode by SMs, A100, 8B: slowdown", ("shape", "SMs", "ours", "derived curve"), rows)


def print_rtx4090(shared: Path) -> None:
    """One layer's products on an RTX 4090, which nothing here was derived from."""
    folder = shared / "silicon" / "vllm_rtx4090_llama31_8b"
    if not folder.is_dir():
        print("\nRTX 4090 kernels skipped: no silicon folder at --shared")
        return
    with (folder / "kernels_dense.csv").open(newline="") as file:
        measured = {(row["layer"], int(row["tokens"])): float(row["time_us"]) / 1e6 for row in csv.DictReader(file)}
    model, rows = roofline("Llama-3.1-8B", "RTX-4090"), []
    names = {"qkv": "qkv_proj", "o": "o_proj", "gate_up": "gate_up_proj", "down": "down_proj"}
    for tokens in RTX4090_TOKENS:
        parts = model.breakdown(Work(prefill=((tokens, 0),)), model.device.sms)
        ours = {part.kernel.name: part.seconds / part.kernel.runs for part in parts}
        rows.append((tokens, *(ours[name] / measured[theirs, tokens] for name, theirs in names.items())))
    table("RTX 4090, Llama-3.1-8B: time of products over measured time", ("tokens", *names), rows)
    print(f"\nKV capacity at 0.9 of its memory: {model.kv_capacity_tokens(0.9)} tokens (vLLM: 41408)")


def print_measured(shared: Path) -> None:
    """Efficiencies in measured tables that the defaults were not derived from."""
    kinds = (
        ("GEMM", measured_gemm_efficiency),
        ("attention", measured_attention_efficiency),
        ("DRAM, skinny GEMM", measured_skinny_efficiency),
    )
    rows = []
    for name in PROFILES:
        for kind, measure in kinds:
            found = measure(shared, name)
            low, *_, high = statistics.quantiles(found, n=10)
            rows.append((name, kind, low, statistics.median(found), high, len(found)))
    header = ("device", "kind", "10 %", "median", "90 %", "rows")
    table("Efficiency of measured kernels, waves counted apart", header, rows)


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    shared = parser.parse_args().shared
    print_paper()
    print_scaling(shared)
    if (shared / "profiles").is_dir():
        print_measured(shared)
    print_rtx4090(shared)


if __name__ == "__main__":
    main()
