"""Which policy holds the SLO to the highest rate: the table of a sweep, on a terminal, as CSV and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.metrics import Knee
    from sim.plots.series import Curve, Panel

HEAD = ("policy", "knee", "SLO met (%)", "P90 TTFT (ms)", "P90 TPOT (ms)")


def knee_tables(panels: Sequence[Panel]) -> str:
    """For a terminal, at most 80 columns: rates in requests/s per GPU, the rest at one rate for all policies."""
    from cli.output import table

    return "\n\n".join(f"{_caption(panel)}\n{table(HEAD, _rows(panel))}" for panel in panels)


def knee_markdown(panels: Sequence[Panel]) -> str:
    """The same as Markdown."""
    blocks = []
    for panel in panels:
        lines = [f"{_caption(panel)}\n", f"| {' | '.join(HEAD)} |", "|---|" + "---:|" * (len(HEAD) - 1)]
        lines += [f"| {' | '.join(row)} |" for row in _rows(panel)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def knee_csv(panels: Sequence[Panel]) -> str:
    """One row a workload and policy, in base units; empty where there is nothing."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        (
            "workload",
            "policy",
            "knee_per_s_per_gpu",
            "knee_kind",
            "rate_per_s_per_gpu",
            "attainment",
            "ttft_p90_s",
            "tpot_p90_s",
        )
    )
    for panel in panels:
        rate = _common_rate(panel)
        for curve in panel.curves:
            knee = curve.knee()
            found = [_at(curve, column, rate) for column in ("attainment", "ttft_p90_s", "tpot_p90_s")]
            kind = knee.kind if knee else None
            writer.writerow((panel.workload, curve.label, knee and knee.rate, kind, rate, *found))
    return text.getvalue()


def verdict(panel: Panel) -> str:
    """One sentence: who keeps the target attainment to the highest rate, and by how much."""
    from sim.plots.series import has_slo

    if not has_slo(panel):
        return f"{panel.workload}: no SLO given, so there is no attainment and no knee."
    knees = [(curve.label, knee) for curve in panel.curves if (knee := curve.knee())]
    reached = [(label, knee, knee.rate) for label, knee in knees if knee.rate is not None]
    if not reached:
        return f"{panel.workload}: no policy keeps 90 % attainment at any rate tested."
    endless = [label for label, knee, _ in reached if knee.kind == "always"]
    if len(endless) > 1:
        return f"{panel.workload}: {' and '.join(endless)} keep 90 % attainment at every rate tested."
    reached.sort(key=lambda entry: (entry[1].kind == "always", entry[2]), reverse=True)
    label, knee, rate = reached[0]
    best = f"{panel.workload}: {label} has the highest knee, {_shown(knee)} requests/s per GPU"
    if len(reached) == 1:
        return f"{best}; no other policy keeps 90 % attainment at any rate tested."
    second, other, other_rate = reached[1]
    return f"{best}, {rate / other_rate - 1:.0%} above {second} ({_shown(other)})."


def _caption(panel: Panel) -> str:
    from sim.plots.series import has_slo, slo_text

    rate = _common_rate(panel)
    if not has_slo(panel):
        return f"{panel.title}\nknee: no SLO given, so there is none; other columns at {rate:g} requests/s per GPU"
    seeds = any(curve.knee_half_width() is not None for curve in panel.curves)
    chance = " (\N{PLUS-MINUS SIGN}: 95 % over seeds)" if seeds else ""
    return (
        f"{panel.title}\nSLO: {slo_text(panel.slo)}\n"
        f"knee: highest requests/s per GPU with 90 % in the SLO{chance}; other columns at {rate:g}"
    )


def _rows(panel: Panel) -> list[list[str]]:
    from cli.output import number

    rate = _common_rate(panel)
    return [
        [
            curve.label,
            _shown_with_chance(curve),
            number(_at(curve, "attainment", rate), 100),
            number(_at(curve, "ttft_p90_s", rate), 1e3),
            number(_at(curve, "tpot_p90_s", rate), 1e3),
        ]
        for curve in panel.curves
    ]


def _shown(knee: Knee | None) -> str:
    return "-" if knee is None else str(knee)


def _shown_with_chance(curve: Curve) -> str:
    """The knee, and how far it may be off by the chance of its seeds."""
    from cli.output import number

    half = curve.knee_half_width()
    return _shown(curve.knee()) + ("" if half is None else f" \N{PLUS-MINUS SIGN} {number(half, digits=2)}")


def _common_rate(panel: Panel) -> float:
    """The highest tested rate that the best policy sustains: where the others show what they lack."""
    rates = sorted({rate for curve in panel.curves for rate, _ in curve.rows})
    knees = [knee.rate for curve in panel.curves if (knee := curve.knee()) and knee.rate is not None]
    return max((rate for rate in rates if rate <= max(knees, default=0.0)), default=rates[0])


def _at(curve: Curve, column: str, rate: float) -> float | None:
    return dict(curve.points(column)).get(rate)
