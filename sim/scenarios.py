"""The comparison that ``bulletsim demo`` makes: the paper's workloads, limits and policies, in one place.

Limits are the paper's (section 6.1): TTFT so many milliseconds per prompt token, and a TPOT. The paper leaves open over
which prompt TTFT is normalised. Read request by request it gives a prompt of ten tokens 30 ms, less than one step of
the model takes, and such prompts would miss at any rate, while the paper's attainment is 1.0 at low rates. Here a
request's limit is that of its own prompt, but never less than that of a prompt of the workload's mean length.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.sweep_cells import Cell, cells
from sim.sweep_spec import PolicyEntry, SweepSpec

MEAN_PROMPT_TOKENS = {"sharegpt": 312, "code": 2048}
"""Of the workloads' sources; see docs/traces.md."""


def _slo(workload: str, ttft_per_token_s: float, tpot_s: float) -> dict[str, float]:
    floor_s = round(ttft_per_token_s * MEAN_PROMPT_TOKENS[workload], 3)
    return {"ttft_per_token_s": ttft_per_token_s, "ttft_floor_s": floor_s, "tpot_s": tpot_s}


PAPER_SLOS = {"sharegpt": _slo("sharegpt", 3.0e-3, 0.150), "code": _slo("code", 1.5e-3, 0.200)}
"""By built-in workload, in seconds."""

MODEL, DEVICE, INSTANCES = "Llama-3.1-8B", "A100-80G", 2

POLICIES = (
    PolicyEntry(name="chunked", label="2x chunked prefill"),
    PolicyEntry(name="bullet", label="2x Bullet"),
    PolicyEntry(name="bullet-eager", label="2x Bullet, eager"),
    PolicyEntry(name="disaggregation", label="1P1D disaggregation"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Rates per GPU in requests/s, around the policies' knees, and how many requests each run serves.

    Above its knee a queue grows for as long as requests come, so a short run puts the knee too high: arrivals last a
    minute or more at the knees, several times the longest time that an answer takes at its TPOT limit.
    """

    rates_per_gpu: tuple[float, ...]
    requests: int


FULL = {
    "sharegpt": Grid(rates_per_gpu=(8, 16, 20, 22, 25, 28, 31, 34), requests=3500),
    "code": Grid(rates_per_gpu=(2, 3, 4, 5, 6, 7, 8, 9), requests=2400),
}
QUICK = {
    "sharegpt": Grid(rates_per_gpu=(16, 24, 30), requests=60),
    "code": Grid(rates_per_gpu=(2, 4, 6), requests=60),
}


def demo_cells(grids: dict[str, Grid]) -> list[Cell]:
    """Every run of the comparison: workloads, then rates, then policies."""
    spec = SweepSpec(
        base={"model": MODEL, "device": DEVICE, "instances": INSTANCES},
        policies=list(POLICIES),
        cases=[
            {
                "trace": f"workload:{name}",
                "slo": PAPER_SLOS[name],
                "requests": grid.requests,
                "grid": {"rate_per_gpu": list(grid.rates_per_gpu)},
            }
            for name, grid in grids.items()
        ],
    )
    return cells(spec, "demo")
