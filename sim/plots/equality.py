"""Two times of the same thing, one against the other, on equal logarithmic axes."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter
from numpy.typing import NDArray

from sim.plots.style import GREY

Floats = NDArray[np.float64]

MOST_POINTS = 2000
FEW_POINTS = 100
"""More than these go into a figure as pixels, which stay small."""


def against(axes: Axes, x: Floats, y: Floats, limit: float, colour: str, *, hollow: bool = False) -> None:
    """Points on two equal logarithmic axes with the diagonal; at most MOST_POINTS of them, evenly chosen."""
    known = np.flatnonzero((x > 0) & (y > 0))
    known = known[:: -(-len(known) // MOST_POINTS) or 1]
    if not len(known):
        axes.text(0.5, 0.5, "no value in both worlds", transform=axes.transAxes, ha="center", color=GREY)
        return
    face = "none" if hollow else colour
    axes.scatter(
        x[known],
        y[known],
        s=9,
        facecolors=face,
        edgecolors=colour if hollow else "none",
        linewidths=0.6,
        alpha=0.55,
        rasterized=len(known) > FEW_POINTS,
        zorder=3,
    )
    _diagonal(axes, x[known], y[known], limit)


def _diagonal(axes: Axes, x: Floats, y: Floats, limit: float) -> None:
    low, high = min(x.min(), y.min()) / 1.2, max(x.max(), y.max()) * 1.2
    if axes.get_xscale() == "log":
        low, high = min(low, axes.get_xlim()[0]), max(high, axes.get_xlim()[1])
    else:
        axes.set(xscale="log", yscale="log", aspect="equal")
        axes.tick_params(axis="x", rotation=45)
    axes.set(xlim=(low, high), ylim=(low, high))
    steps = (1.0,) if high > 300 * low else (1.0, 2.0, 5.0) if high > 5 * low else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=steps))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_locator(NullLocator())
    ends = np.array([low, high])
    axes.plot(ends, ends, color=GREY, linewidth=0.7, zorder=2)
    axes.fill_between(ends, ends * (1 - limit), ends * (1 + limit), color=GREY, alpha=0.15, linewidth=0, zorder=1)
