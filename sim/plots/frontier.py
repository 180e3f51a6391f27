"""Latency and SLO attainment against offered load: who keeps the SLO, and up to what rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from sim.metrics import TARGET_ATTAINMENT
from sim.plots.series import Panel, has_slo, panels
from sim.plots.style import GREY, Look, PlainLog, figure, legend_above, looks, row_title, styled
from sim.results import Row

X_LABEL = "Offered load (requests/s per GPU)"


def frontier(rows: Sequence[Row]) -> Figure:
    """P90 TTFT, P90 TPOT and attainment with its knees; one row of panels a workload.

    Raises ValueError where no row has a rate.
    """
    found = panels(rows)
    with styled():
        drawing = figure(7.2, 0.55 + 2.0 * len(found))
        grid = drawing.subplots(len(found), 3, squeeze=False)
        shown = looks((curve.label, curve.policy) for panel in found for curve in panel.curves)
        for panel, (ttft, tpot, met) in zip(found, grid, strict=True):
            row_title(ttft, panel.title)
            draw_metric(ttft, panel, "ttft_p90_s", "P90 TTFT (s)", shown, log=True)
            draw_metric(tpot, panel, "tpot_p90_s", "P90 TPOT (ms)", shown, scale=1e3)
            limit_line(tpot, panel.slo["slo_tpot_s"], scale=1e3)
            _draw_attainment(met, panel, shown)
        for axes in grid[-1]:
            axes.set_xlabel(X_LABEL)
        legend_above(drawing, *(row[0] for row in grid))
    return drawing


def draw_metric(
    axes: Axes,
    panel: Panel,
    column: str,
    label: str,
    shown: Mapping[str, Look],
    *,
    scale: float = 1.0,
    log: bool = False,
) -> None:
    """One column of every curve, times ``scale``, with a band where there are several seeds."""
    for curve in panel.curves:
        points, band = curve.points(column), curve.band(column)
        look = shown[curve.label]
        look.plot(axes, [x for x, _ in points], [y * scale for _, y in points], curve.label)
        if band:
            low, high = ([scale * one[place] for one in band] for place in (1, 2))
            axes.fill_between([rate for rate, *_ in band], low, high, color=look.colour, alpha=0.15, linewidth=0)
    axes.set_ylabel(label)
    rates = [rate for curve in panel.curves for rate, _ in curve.rows]
    axes.set_xlim(0, 1.025 * max(rates))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    if log and any(value > 0 for curve in panel.curves for _, value in curve.points(column)):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(PlainLog())
    else:
        axes.set_ylim(bottom=0)


def limit_line(axes: Axes, limit: float | None, *, scale: float = 1.0, name: str = "SLO") -> None:
    """A limit as a grey dashed line, named outside the data on its right; nothing where it lies below the axis."""
    if limit is None:
        return
    height = limit * scale
    low, high = axes.get_ylim()
    if height < low:  # of a logarithmic axis, which it would stretch until nothing else can be seen
        return
    axes.set_ylim(low, max(high, 1.06 * height))
    axes.axhline(height, color=GREY, linestyle=(0, (4, 3)), linewidth=0.8, zorder=1)
    axes.annotate(
        name,
        (1, height),
        xycoords=("axes fraction", "data"),
        xytext=(2, 0),
        textcoords="offset points",
        va="center",
        fontsize=7,
        color=GREY,
    )


def _draw_attainment(axes: Axes, panel: Panel, shown: Mapping[str, Look]) -> None:
    draw_metric(axes, panel, "attainment", "SLO attainment (%)", shown, scale=100.0)
    axes.set_ylim(0, 102)
    limit_line(axes, TARGET_ATTAINMENT, scale=100.0, name=f"{TARGET_ATTAINMENT:.0%}")
    knees = [(shown[curve.label], found) for curve in panel.curves if (found := curve.knee())]
    for look, found in knees:
        if found.kind == "crossing" and found.rate is not None:
            _ring(axes, found.rate, look)
    for place, (look, found) in enumerate(reversed(knees)):
        height = 0.06 + 0.09 * place
        axes.plot(0.05, height, look.marker, color=look.colour, markersize=3.5, transform=axes.transAxes, zorder=4)
        text = str(found).replace(">=", "\N{GREATER-THAN OR EQUAL TO}")
        _write(axes, 0.09, height, text, look.colour)
    if not has_slo(panel):
        _write(axes, 0.36, 0.5, "no SLO given", GREY)
    if knees:
        _write(axes, 0.03, 0.06 + 0.09 * len(knees), "knee", GREY)


def _ring(axes: Axes, rate: float, look: Look) -> None:
    axes.plot(
        [rate],
        [100 * TARGET_ATTAINMENT],
        marker="o",
        markersize=6.5,
        markerfacecolor="none",
        markeredgecolor=look.colour,
        linestyle="none",
        zorder=5,
    )


def _write(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    """Small text at a place given in shares of the panel."""
    axes.text(x, y, text, transform=axes.transAxes, color=colour, fontsize=7, va="center", zorder=4)
