"""A small model with weights of its own, what transformers makes of it, and runs of it by any policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from profiler.fitting import fit_device
from real.plan import BLOCK_TOKENS
from sim.config import RunConfig, checked
from sim.simulate import Prepared, prepare
from tests.inline_lanes import InlineLanes, Seconds
from tests.reference_model import Reference
from tests.test_real_model import NUMERICS, SPEC, WEIGHTS
from tests.toys import cpu_profile, trace_of
from traces import save

CORES = 8
SLOTS = 8
SLOT_TOKENS = 160
SEED = 3

Rows = Sequence[tuple[float, int, int]]

POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chunked": ("chunked", {"budget_tokens": 24}),
    "bullet": ("bullet", {"layers_per_step": 1}),
    "bullet, eager": ("bullet-eager", {"layers_per_step": 2}),
    "bullet, plain": ("bullet", {"layers_per_step": 3, "reorder": False, "pause_decode": False}),
    "disaggregation": ("disaggregation", {"batch_tokens": 64}),
    "disaggregation, 2P2D": ("disaggregation", {"prefill_instances": 2, "decode_instances": 2}),
    "static-split": ("static-split", {"layers_per_step": 2}),
    "static-split, lent": ("static-split", {"decode_sms": 2, "lend": True}),
    "prefill-first": ("prefill-first", {"batch_tokens": 48, "chunked": True}),
    "vllm-chunked": ("vllm-chunked", {"budget_tokens": 24, "max_resident": 12, "long_prefill_tokens": 16}),
    "sglang-chunked": ("sglang-chunked", {"budget_tokens": 24, "max_new_tokens": 20}),
    "uncapped-streams": ("uncapped-streams", {"batch_tokens": 64}),
    "semi-pd": ("semi-pd", {"batch_tokens": 64}),
    "nexus": ("nexus", {"batch_tokens": 64}),
    "duetserve": ("duetserve", {"budget_tokens": 24}),
}
"""Every built-in policy that a device can serve, cut into small launches, by a label."""


@dataclass(frozen=True)
class Twin:
    """Where the model's folder, a latency model and traces are, and the reference."""

    folder: Path
    reference: Reference

    @classmethod
    def at(cls, folder: Path, cores: int = CORES) -> Twin:
        """Files in ``folder``; the latency model is of a CPU of so many cores."""
        reference = Reference(SPEC, WEIGHTS, NUMERICS)
        reference.save(folder / "twin")
        fit_device(cpu_profile(cores)).save(folder / "latency.json")
        return cls(folder, reference)

    def prepared(self, label: str, rows: Rows, **changes: Any) -> Prepared:
        """A run of (arrival_s, prompt_tokens, output_tokens) rows by a policy of POLICIES; blocks for ten requests."""
        name, settings = POLICIES[label]
        trace = self.folder / f"{abs(hash(tuple(rows)))}.csv"
        if not trace.exists():
            save(trace_of(rows), trace)
        config = {
            "trace": str(trace),
            "policy": {"name": name, "settings": settings},
            "model": str(self.folder / "twin"),
            "device": "cpu",
            "latency": {"model": str(self.folder / "latency.json")},
            "instances": settings.get("prefill_instances", 1) + settings.get("decode_instances", 1)
            if name == "disaggregation"
            else 1,
            "seed": SEED,
            "slo": {"ttft_s": 0.5, "tpot_s": 0.05},
            "kv_blocks": 10 * SLOT_TOKENS // BLOCK_TOKENS,
            "block_tokens": BLOCK_TOKENS,
        }
        return prepare(checked(RunConfig, config | changes, "test"))

    def expected(self, rows: Rows) -> dict[int, list[int]]:
        """The tokens of each request, numbered in order of arrival, by transformers."""
        return {
            number: self.reference.greedy(prompt_of(number, prompt), output)
            for number, (_, prompt, output) in enumerate(rows)
        }


def prompt_of(number: int, tokens: int) -> list[int]:
    """The prompt that a run of this seed draws for the request."""
    drawn: list[int] = np.random.default_rng((SEED, number)).integers(SPEC.vocab, size=tokens).tolist()
    return drawn


def lanes_for(ready: Prepared, seconds: Seconds, seed: int = 0, slots: int = SLOTS) -> InlineLanes:
    """Lanes that the run's policy can be served on, in this process."""
    names = [ready.policy.lanes(role) for role in ready.policy.roles(ready.config.instances)]
    return InlineLanes(
        SPEC,
        WEIGHTS,
        NUMERICS,
        lanes=names,
        slots=slots,
        slot_tokens=SLOT_TOKENS,
        seconds=seconds,
        random=Random(seed),
    )
