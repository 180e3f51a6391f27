"""How much of Bullet's results rests on what the paper leaves open: one choice changed at a time.

    python -m benchmarks.paper.sensitivity [--out out/paper] [--seeds 2] [--jobs N] [--requests N]

Figure 15's setting at a rate below each workload's knee and one above. Attainment, mean TTFT and mean TPOT.
"""

from __future__ import annotations

from typing import Any

from benchmarks.paper.command import Swept, options, sweep
from benchmarks.paper.runs import mean
from benchmarks.paper.setting import System
from benchmarks.paper_kernels import table

RATES = {"ShareGPT": (16.0, 20.0), "Azure-Code": (4.0, 5.0), "arXiv-Summary": (0.6, 0.8)}

CHOICES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "1 layer a step": {"layers_per_step": 1},
    "2 layers a step": {"layers_per_step": 2},
    "8 layers a step": {"layers_per_step": 8},
    "32 layers a step": {"layers_per_step": 32},
    "P80": {"percentile": 0.8},
    "P95": {"percentile": 0.95},
    "batches to 0.5 of a long prompt's FLOP/s": {"batch_fill": 0.5},
    "batches to 0.7": {"batch_fill": 0.7},
    "batches to all of it": {"batch_fill": 1.0},
    "shares in steps of 6 SMs": {"sm_step": 6},
    "shares in steps of 12 SMs": {"sm_step": 12},
    "16 waiting requests forecast": {"queue_horizon": 16},
    "256 waiting requests forecast": {"queue_horizon": 256},
    "a burst is TTFTs in danger": {"pause_on_queue": False},
    "decode never pauses": {"pause_decode": False},
    "alpha as calibrated, never refreshed": {"recalibrate": False},
    "decode no longer than the prefill beside it": {"cap_at_drain": True},
    "decode in a hurry while KV is short": {"hurry_for_kv": True},
    "queue in the order of most on time": {"on_time": True},
}


def rows(swept: Swept) -> list[tuple[str, ...]]:
    """A row a choice: attainment, mean TTFT and mean TPOT at each rate."""
    return [
        (
            choice,
            *(
                f"{mean(seeds, 'attainment'):.3f}, {mean(seeds, 'ttft_s'):.2f} s, {1e3 * mean(seeds, 'tpot_s'):.0f} ms"
                for name, rates in RATES.items()
                for seeds in (swept[name, choice, rate] for rate in rates)
            ),
        )
        for choice in CHOICES
    ]


def main() -> None:
    """See the module."""
    chosen = options(__doc__, seeds=2)
    systems = {choice: System(policy="bullet", settings=settings) for choice, settings in CHOICES.items()}
    header = [f"{name} {rate:g}/s" for name, rates in RATES.items() for rate in rates]
    table("### What the paper leaves open", ("choice", *header), rows(sweep(RATES, systems, chosen)))


if __name__ == "__main__":
    main()
