"""Which policy holds the SLO to the highest rate: the table of a sweep, on a terminal, as CSV and as Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from cli.output import number, table
from sim.plots.knees import common_rate, shown
from sim.plots.series import Curve, Panel, has_slo, slo_text

HEAD = ("policy", "knee", "SLO met (%)", "P90 TTFT (ms)", "P90 TPOT (ms)")


def knee_tables(panels: Sequence[Panel]) -> str:
    """For a terminal, at most 80 columns: rates in requests/s per GPU, the rest at one rate for all policies."""
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
        rate = common_rate(panel)
        for curve in panel.curves:
            knee = curve.knee()
            found = [curve.at(column, rate) for column in ("attainment", "ttft_p90_s", "tpot_p90_s")]
            kind = knee.kind if knee else None
            writer.writerow((panel.workload, curve.label, knee and knee.rate, kind, rate, *found))
    return text.getvalue()


def _caption(panel: Panel) -> str:
    rate = common_rate(panel)
    if not has_slo(panel):
        return f"{panel.title}\nknee: no SLO given, so there is none; other columns at {rate:g} requests/s per GPU"
    seeds = any(curve.knee_half_width() is not None for curve in panel.curves)
    chance = " (\N{PLUS-MINUS SIGN}: 95 % over seeds)" if seeds else ""
    return (
        f"{panel.title}\nSLO: {slo_text(panel.slo)}\n"
        f"knee: highest requests/s per GPU with 90 % in the SLO{chance}; other columns at {rate:g}"
    )


def _rows(panel: Panel) -> list[list[str]]:
    rate = common_rate(panel)
    return [
        [
            curve.label,
            _shown_with_chance(curve),
            number(curve.at("attainment", rate), 100),
            number(curve.at("ttft_p90_s", rate), 1e3),
            number(curve.at("tpot_p90_s", rate), 1e3),
        ]
        for curve in panel.curves
    ]


def _shown_with_chance(curve: Curve) -> str:
    """The knee, and how far it may be off by the chance of its seeds."""
    half = curve.knee_half_width()
    return shown(curve.knee()) + ("" if half is None else f" \N{PLUS-MINUS SIGN} {number(half, digits=2)}")
