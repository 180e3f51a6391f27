"""Every policy side by side in figure 15's setting: attainment, mean TTFT and mean TPOT.

    python -m benchmarks.paper.field [--out out/paper] [--seeds 1] [--jobs N] [--requests N]

The evaluation's systems have the evaluation's settings, all others their own. Rates are of one GPU: disaggregation has
two, and twice the rate.
"""

from __future__ import annotations

from benchmarks.paper.command import KEY_HEADER, Swept, finish, options, rows_of, sweep
from benchmarks.paper.levels import attained_by_system, print_levels
from benchmarks.paper.setting import SYSTEMS, System

RATES = {"ShareGPT": (14.0, 18.0, 22.0), "Azure-Code": (4.0, 4.4, 5.0), "arXiv-Summary": (0.6, 0.7, 0.8)}
GPUS = 2

ALONE = {
    **SYSTEMS,
    **{
        name: System(policy=name, settings={})
        for name in (
            "bullet-eager",
            "chunked",
            "pod",
            "prefill-first",
            "uncapped-streams",
            "static-split",
            "semi-pd",
            "nexus",
            "duetserve",
            "muxwise",
            "oracle",
        )
    },
}
APART = {"disaggregation, 1P1D": System(policy="disaggregation", settings={})}


def main() -> None:
    """See the module."""
    chosen = options(__doc__)
    doubled = {name: tuple(GPUS * rate for rate in rates) for name, rates in RATES.items()}
    apart = sweep(doubled, APART, chosen, instances=GPUS)
    swept: Swept = {
        **sweep(RATES, ALONE, chosen),
        **{(name, system, rate / GPUS): seeds for (name, system, rate), seeds in apart.items()},
    }
    systems = (*ALONE, *APART)
    finish("field", chosen, attained_by_system(swept, RATES, systems), KEY_HEADER, rows_of(swept), ())
    print_levels(swept, RATES, systems)


if __name__ == "__main__":
    main()
