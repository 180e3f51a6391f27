"""What overlapping kernels come to, beside what NanoFlow and POD-Attention report. Prints Markdown.

    python benchmarks/overlap.py [--requests 1500]

Latency models fitted to an A100. NanoFlow's ablation is of a 70B model on eight of them: an iteration of 2,048 tokens
cut in two, without overlap and with it. POD-Attention's gains are of hybrid batches with contexts of 4k to 20k tokens;
here all combinations of such contexts, chunks and batches that fit the device, each chunk at steps of 2,048 tokens
through its prompt, so that the mean is of another set of batches than the paper's. Last the tokens/s of an 8B model on
one A100 when all requests come at once, under the three policies whose batches are the same.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.paper_kernels import table  # noqa: E402
from profiler import Overlap, Work, fitted  # noqa: E402
from profiler.kernelsum import KernelSumModel  # noqa: E402
from profiler.overlap import nano_batches  # noqa: E402
from sim.config import PolicySettings, RunConfig  # noqa: E402
from sim.simulate import simulate  # noqa: E402

DEVICE, SMALL, LARGE, WAYS = "A100-80G", "Llama-3.1-8B", "Llama-3.1-70B", 8

ITERATIONS = {
    "prefill only": (Work(prefill=((2048, 0),)), 1.07),
    "half decodes of 1,024 tokens": (Work(((1024, 0),), 1024, 1024 * 1024), 1.17),
}
"""2,048 tokens each, and the gain that the paper's ablation has for prefill only and for decode-heavy traffic."""

CONTEXTS = (4096, 8192, 12288, 16384, 20480)
CHUNKS = (512, 1024, 2048)
BATCHES = (16, 32, 64, 96, 128, 192, 256)
EVERY_TOKENS = 2048

WORKLOADS = ("sharegpt", "chat")
AT_ONCE_PER_S = 200.0


@dataclass(frozen=True, slots=True)
class Cut:
    """An iteration in two nano-batches: its time without overlap over the uncut one's, and the uncut one's over that
    with overlap."""

    alone: float
    gain: float


def cut(work: Work, model: KernelSumModel) -> Cut:
    """Device times alone, the host's left out."""
    sms = model.device.sms
    whole = model.device_seconds(work, sms)
    parts = sum(model.device_seconds(part, sms) for part in nano_batches(work, 2))
    return Cut(parts / whole, whole / model.device_seconds(work._replace(overlap=Overlap(nano_batches=2)), sms))


def hybrid_batches(kv_tokens: int) -> Iterator[Work]:
    """The hybrid batches whose decodes fit so many KV tokens."""
    for context, chunk, batch in itertools.product(CONTEXTS, CHUNKS, BATCHES):
        if batch * context <= kv_tokens:
            for done in range(0, context, EVERY_TOKENS):
                yield Work(((chunk, done),), batch, batch * context)


def fused_gain(work: Work, model: KernelSumModel) -> float:
    """Attention of a hybrid batch in two kernels over the same in one."""
    sms = model.device.sms
    names = ("attention_prefill", "attention_decode")
    apart = sum(part.seconds for part in model.breakdown(work, sms) if part.kernel.name in names)
    saved = model.device_seconds(work, sms) - model.device_seconds(
        work._replace(overlap=Overlap(fused_attention=True)), sms
    )
    return apart / (apart - saved)


def tokens_per_s(policy: str, workload: str, requests: int) -> float:
    """Of prompts and answers, when all come at once."""
    result = simulate(
        RunConfig(
            trace=f"workload:{workload}",
            rate=AT_ONCE_PER_S,
            requests=requests,
            policy=PolicySettings(name=policy),
            model=SMALL,
            device=DEVICE,
        )
    )
    return float((result.records.prompt_tokens + result.records.generated_tokens).sum()) / result.end_s


def main() -> int:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1500)
    requests: int = parser.parse_args().requests
    large, small = fitted(LARGE, DEVICE, WAYS), fitted(SMALL, DEVICE)
    cuts = {name: (cut(work, large), paper) for name, (work, paper) in ITERATIONS.items()}
    table(
        f"{LARGE} on {WAYS} x {DEVICE}, an iteration in two nano-batches",
        ("iteration", "cut alone, over uncut (paper: 1.13)", "gain with overlap", "paper"),
        [(name, found.alone, found.gain, paper) for name, (found, paper) in cuts.items()],
    )
    gains = [fused_gain(work, small) for work in hybrid_batches(small.kv_capacity_tokens(0.9))]
    table(
        f"{SMALL} on {DEVICE}, attention of {len(gains)} hybrid batches in one kernel: gain",
        ("", "mean", "least", "most"),
        [("here", statistics.mean(gains), min(gains), max(gains)), ("paper", 1.28, "", 1.59)],
    )
    policies = ("chunked", "nanoflow", "pod")
    speeds = [[tokens_per_s(policy, workload, requests) for policy in policies] for workload in WORKLOADS]
    table(
        f"{SMALL} on {DEVICE}, {requests} requests at once: tokens/s",
        ("traffic", *policies, "nanoflow over chunked", "pod over chunked"),
        [
            (name, *map(round, row), row[1] / row[0], row[2] / row[0])
            for name, row in zip(WORKLOADS, speeds, strict=True)
        ],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
