"""The comparison that ``bulletsim demo`` makes: the paper's workloads, limits and policies, in one place.

Limits are the paper's (section 6.1): TTFT so many milliseconds per prompt token, and a TPOT. Read literally they
give a prompt of ten tokens 30 ms, less than one step of the model takes, so that short prompts would miss whatever
the policy. Here the TTFT limit of a prompt is therefore the product or ``TTFT_FLOOR_S``, whichever is larger.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.sweep_spec import Cell, PolicyEntry, SweepSpec, cells

TTFT_FLOOR_S = {"sharegpt": 1.0, "code": 1.0}

PAPER_SLOS = {
    "sharegpt": {"ttft_per_token_s": 3.0e-3, "ttft_floor_s": TTFT_FLOOR_S["sharegpt"], "tpot_s": 0.150},
    "code": {"ttft_per_token_s": 1.5e-3, "ttft_floor_s": TTFT_FLOOR_S["code"], "tpot_s": 0.200},
}
"""By built-in workload, in seconds."""

MODEL, DEVICE, INSTANCES = "Llama-3.1-8B", "A100-80G", 2

POLICIES = (
    PolicyEntry(name="chunked", label="2x chunked prefill"),
    PolicyEntry(name="bullet", label="2x Bullet"),
    PolicyEntry(name="disaggregation", label="1P1D disaggregation"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Rates per GPU in requests/s, around the policies' knees, and how many requests each run serves.

    Above its knee a queue grows for as long as requests come, so a short run puts the knee too high.
    """

    rates_per_gpu: tuple[float, ...]
    requests: int


FULL = {
    "sharegpt": Grid(rates_per_gpu=(8, 16, 20, 23, 26, 29, 32), requests=2000),
    "code": Grid(rates_per_gpu=(2, 3, 4, 5, 6, 7, 8, 9), requests=800),
}
QUICK = {
    "sharegpt": Grid(rates_per_gpu=(16, 24, 30), requests=200),
    "code": Grid(rates_per_gpu=(2, 4, 6), requests=150),
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
