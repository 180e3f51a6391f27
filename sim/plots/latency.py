"""Mean and P90 of TTFT and TPOT against offered load, with the SLO's limits."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.plots.frontier import X_LABEL, draw_metric, limit_line
from sim.plots.series import panels
from sim.plots.style import figure, legend_above, looks, row_title, styled
from sim.results import Row


def latency(rows: Sequence[Row]) -> Figure:
    """Four panels a workload. A TTFT limit that grows with the prompt is drawn as its floor, if it has one.

    Raises ValueError where no row has a rate.
    """
    found = panels(rows)
    with styled():
        drawing = figure(7.2, 0.55 + 1.9 * len(found))
        grid = drawing.subplots(len(found), 4, squeeze=False)
        shown = looks((curve.label, curve.policy) for panel in found for curve in panel.curves)
        for panel, row in zip(found, grid, strict=True):
            row_title(row[0], panel.title)
            growing = panel.slo["slo_ttft_per_token_s"] is not None
            limit = (panel.slo["slo_ttft_floor_s"] or None) if growing else panel.slo["slo_ttft_s"]
            for axes, part, name in ((row[0], "mean", "Mean"), (row[1], "p90", "P90")):
                draw_metric(axes, panel, f"ttft_{part}_s", f"{name} TTFT (s)", shown, log=True)
                limit_line(axes, limit, name="SLO\nfloor" if growing else "SLO")
            for axes, part, name in ((row[2], "mean", "Mean"), (row[3], "p90", "P90")):
                draw_metric(axes, panel, f"tpot_{part}_s", f"{name} TPOT (ms)", shown, scale=1e3)
                limit_line(axes, panel.slo["slo_tpot_s"], scale=1e3)
            _share_y(row[0], row[1])
            _share_y(row[2], row[3])
        drawing.supxlabel(X_LABEL, fontsize=8)
        legend_above(drawing, *(row[0] for row in grid))
    return drawing


def _share_y(left: Axes, right: Axes) -> None:
    low = min(left.get_ylim()[0], right.get_ylim()[0])
    high = max(left.get_ylim()[1], right.get_ylim()[1])
    left.set_ylim(low, high)
    right.set_ylim(low, high)
