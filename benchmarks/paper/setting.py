"""What all figures of the paper have in common here: workloads, systems, and the constants that stand for its testbed.

The constants below are the same for all workloads, and were chosen on figure 15's curves of Bullet and SGLang alone.
``python -m benchmarks.paper.constants`` shows what each of them does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.csv as pacsv  # type: ignore[import-untyped]

from benchmarks.data import FOLDER
from sim.config import RunConfig, checked
from traces import open_trace

MODEL, DEVICE = "Llama-3.1-8B", "A100-80G"

LATENCY: dict[str, float] = {
    "pace": 1.15,
    "prefill_pass_overhead_s": 10e-3,
    "prefill_sequence_overhead_s": 0.12e-3,
    "repartition_s": 4.1e-6,
    "handover_s": 0.21e-3,
}
"""pace: kernels on the paper's GPUs against the tables that our A100 is fitted to, which are of an SXM board; a server
    whose GPUs reach each other at 20 GB/s has PCIe boards, which draw 300 W instead of 400.
prefill_pass_overhead_s, prefill_sequence_overhead_s: what the engines' host takes to ready and launch a pass with
    prompts in it, as a whole and for each sequence.
repartition_s, handover_s: the paper's own measurements (section 5)."""

ASYNCHRONOUS = {"nanoflow": {"prefill_sequence_overhead_s": 0.0}}
"""By policy, what differs from ``LATENCY``: NanoFlow readies the sequences of an iteration while the one before runs
(arXiv 2408.12757, asynchronous scheduling)."""

PROMPT_SHARE = 0.95
"""Chunk handling: what SGLang fills of the budget that decodes leave. TPOT says how long its iterations are and TTFT
under overload how many prompt tokens a second go through them; their product falls short of the budget."""

VLLM_RESIDENT = 160
"""Requests that vLLM runs at once. From 14 ShareGPT requests/s on its TPOT stays at 62 ms while TTFT grows: what is
full is not the iteration. TTFT under overload says that 12.5 requests/s go through, and 12.5/s * 201 tokens * 62 ms =
156 requests (Little's law)."""

TTFT_FLOOR_S = 0.3
"""The reading of the normalised TTFT: a request's limit is that of its own prompt, but no less than this, about one
iteration over 4,096 tokens; see ``python -m benchmarks.paper.readings``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload of section 6.1.

    file: lengths, below the folder of traces. stand_in: the built-in workload that is fitted to it, and used where the
    file is absent.
    requests: how many a run serves. The artifact's ShareGPT runs have 1,000; at Azure-Code's rates as many take four
        minutes, and at those of arXiv-Summary 150 do.
    """

    name: str
    file: str
    stand_in: str
    requests: int
    ttft_per_token_s: float
    tpot_s: float
    mean_answer: int


WORKLOADS = {
    "ShareGPT": Workload(
        name="ShareGPT",
        file="sharegpt-lengths/first_exchange.csv",
        stand_in="workload:sharegpt",
        requests=1000,
        ttft_per_token_s=3.0e-3,
        tpot_s=0.150,
        mean_answer=201,
    ),
    "Azure-Code": Workload(
        name="Azure-Code",
        file="azure-llm-2023/AzureLLMInferenceTrace_code.csv",
        stand_in="workload:code",
        requests=1000,
        ttft_per_token_s=1.5e-3,
        tpot_s=0.200,
        mean_answer=28,
    ),
    "arXiv-Summary": Workload(
        name="arXiv-Summary",
        file="arxiv-long/arxiv_sample.csv",
        stand_in="workload:summary",
        requests=150,
        ttft_per_token_s=1.5e-3,
        tpot_s=0.175,
        mean_answer=471,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system of the evaluation: its policy, and settings that hold for every workload."""

    policy: str
    settings: dict[str, Any]

    def of(self, workload: Workload) -> dict[str, Any]:
        """The policy and its settings. SGLang's clients ask for as many tokens as the answer has."""
        asked = {"max_new_tokens": workload.mean_answer} if self.policy == "sglang-chunked" else {}
        return {"name": self.policy, "settings": {**self.settings, **asked}}


SYSTEMS = {
    "Bullet": System(policy="bullet", settings={}),
    "SGLang-1024": System(policy="sglang-chunked", settings={"budget_tokens": 1024, "prompt_share": PROMPT_SHARE}),
    "SGLang-2048": System(policy="sglang-chunked", settings={"budget_tokens": 2048, "prompt_share": PROMPT_SHARE}),
    "vLLM-1024": System(
        policy="vllm-chunked",
        settings={
            "budget_tokens": 1024,
            "max_resident": VLLM_RESIDENT,
            "whole_prompt_fits": False,
        },
    ),
    "NanoFlow-1024": System(policy="nanoflow", settings={"budget_tokens": 1024}),
}


def slo(workload: Workload, floor_s: float = TTFT_FLOOR_S) -> dict[str, float]:
    """The paper's limits, in seconds, under the reading with this floor."""
    return {"ttft_per_token_s": workload.ttft_per_token_s, "ttft_floor_s": floor_s, "tpot_s": workload.tpot_s}


def sample(workload: Workload, seed: int, folder: Path, requests: int | None = None) -> str:
    """A trace for a run: as many lengths of the file, drawn without repetition, written to ``folder``.

    The built-in workload where the file is absent: it draws its own.
    """
    source = FOLDER / workload.file
    if not source.exists():
        return workload.stand_in
    count = requests or workload.requests
    path = folder / "samples" / f"{workload.name}-{count}-{seed}.csv"
    if not path.exists():
        whole = open_trace(str(source))
        chosen = np.random.default_rng(seed).permutation(len(whole))[:count]
        columns = {"prompt_tokens": whole.prompt_tokens[chosen], "output_tokens": whole.output_tokens[chosen]}
        path.parent.mkdir(parents=True, exist_ok=True)
        pacsv.write_csv(pa.table(columns), path)
    return str(path)


def config(
    workload: Workload, policy: dict[str, Any], rate: float, seed: int, folder: Path, **changes: Any
) -> RunConfig:
    """One run on one GPU of the testbed; ``changes`` are other settings of the run."""
    requests = changes.get("requests") or workload.requests
    settings: dict[str, Any] = {
        "trace": sample(workload, seed, folder, requests),
        "requests": requests,
        "rate": rate,
        "arrivals": f"poisson:{rate:g}",
        "policy": policy,
        "model": MODEL,
        "device": DEVICE,
        "slo": slo(workload),
        "seed": seed,
        "oversized": "reject",
        "latency": LATENCY | ASYNCHRONOUS.get(policy["name"], {}),
    }
    return checked(RunConfig, settings | changes, f"{workload.name} at {rate:g} req/s")
