"""The estimator in the loop: what a policy's latency model said of each step at launch, and how long it took."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sim.plots.equality import against
from sim.plots.looks import BLUE, GREY, ORANGE, VERMILION
from sim.plots.style import figure, styled
from sim.records import StepLog

Floats = NDArray[np.float64]

LIMIT = 0.1
"""Half the width of the band about equality."""

BINS = 60
LANE_INKS = {"prefill": VERMILION, "decode": BLUE, "main": BLUE, "link": ORANGE}


def prediction(steps: StepLog, *, start_s: float = 0.0, end_s: float | None = None) -> Figure:
    """A panel a lane of predicted against measured seconds, and below them the error over time of all lanes.

    The error is predicted over measured less one, in percent: the median of the steps that began in each sixtieth of
    the span, with a band from P10 to P90. Raises ValueError where no step with a prediction began between ``start_s``
    and ``end_s`` (by default the run's end).
    """
    end_s = float(steps.end_s.max(initial=0.0)) if end_s is None else end_s
    inside = (steps.start_s >= start_s) & (steps.start_s < end_s) & (steps.predicted_s > 0)
    inside &= steps.end_s > steps.start_s
    lanes = {name: np.flatnonzero(inside & (steps.lane == code)) for code, name in enumerate(steps.lane_names)}
    lanes = {name: rows for name, rows in lanes.items() if len(rows)}
    if not lanes:
        raise ValueError(f"no step that was predicted began between {start_s:g} s and {end_s:g} s")
    edges = np.linspace(start_s, end_s, BINS + 1)
    with styled():
        drawing = figure(max(4.6, 2.4 * len(lanes)), 4.4)
        (above,), (below,) = drawing.subfigures(2, 1, squeeze=False, height_ratios=(3, 2))
        panels = above.subplots(1, len(lanes), squeeze=False)[0]
        errors = below.subplots()
        for axes, (name, rows) in zip(panels, lanes.items(), strict=True):
            ink = LANE_INKS.get(name, GREY)
            measured = 1e3 * (steps.end_s[rows] - steps.start_s[rows])
            against(axes, measured, 1e3 * steps.predicted_s[rows], LIMIT, ink)
            axes.set(title=name, xlabel="measured (ms)")
            _draw_error(errors, edges, steps, rows, name, ink)
        panels[0].set_ylabel("predicted (ms)")
        errors.axhspan(-100 * LIMIT, 100 * LIMIT, color=GREY, alpha=0.15, linewidth=0)
        errors.axhline(0, color=GREY, linewidth=0.7)
        errors.set(xlabel="Time (s)", ylabel="Error of prediction (%)", xlim=(start_s, end_s))
        errors.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(lanes))
    return drawing


def errors_over_time(edges: Floats, steps: StepLog, rows: NDArray[np.intp]) -> Floats:
    """P10, median and P90, shape (3, bins), of predicted over measured less one, by the steps' start; NaN for none."""
    ratio = steps.predicted_s[rows] / (steps.end_s[rows] - steps.start_s[rows]) - 1
    place = np.clip(np.searchsorted(edges, steps.start_s[rows], side="right") - 1, 0, len(edges) - 2)
    found = np.full((3, len(edges) - 1), np.nan)
    for one in np.unique(place):
        found[:, one] = np.quantile(ratio[place == one], (0.1, 0.5, 0.9))
    return found


def _draw_error(axes: Axes, edges: Floats, steps: StepLog, rows: NDArray[np.intp], name: str, ink: str) -> None:
    low, median, high = 100 * errors_over_time(edges, steps, rows)
    middles = (edges[:-1] + edges[1:]) / 2
    known = ~np.isnan(median)
    axes.fill_between(middles[known], low[known], high[known], color=ink, alpha=0.2, linewidth=0)
    axes.plot(middles[known], median[known], color=ink, linewidth=1.1, label=name)
