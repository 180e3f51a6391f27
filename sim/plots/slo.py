"""What other limits would have meant: SLO attainment of one run for every pair of a TTFT and a TPOT limit."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import NDArray

from policies.slo import SLO
from sim.metrics import TARGET_ATTAINMENT, Mask
from sim.plots.otherlimits import HeatMap, edges_of, heat_map
from sim.plots.style import BLACK, BLUE, VERMILION, PlainLog, figure, styled
from sim.records import Records

SHADES = LinearSegmentedColormap.from_list("attainment", ["#FFFFFF", BLUE])


def slo(records: Records, limits: SLO, inside: Mask) -> Figure:
    """A heat map of the requests ``inside``, shape (n,): the darker, the more of them meet both limits.

    A line encloses the pairs that keep the target attainment, a diamond is at the run's own ``limits`` where it has
    both. Where the TTFT limit grows with the prompt, its axis is in multiples of it. A policy that reads its SLO might
    have served requests otherwise under another. Raises ValueError where no request finished.
    """
    found = heat_map(records, limits, inside)
    if found is None:
        raise ValueError("no request of this run finished, so there is no attainment to draw")
    with styled():
        drawing = figure(4.6, 3.2)
        axes = drawing.subplots()
        sides, tops = np.array(edges_of(found.ttft)), 1e3 * np.array(edges_of(found.tpot_s))
        shades = axes.pcolormesh(sides, tops, 100 * found.attained, cmap=SHADES, vmin=0, vmax=100, rasterized=True)
        _enclose(axes, found, sides, tops)
        if found.slo is not None:
            share = f"SLO of the run: {found.attained_at(*found.slo):.0%}"
            ttft, tpot_s = found.slo
            axes.plot(ttft, 1e3 * tpot_s, "D", color=VERMILION, markeredgecolor="white", linestyle="none", label=share)
        axes.set(xscale="log", yscale="log", xlim=(sides[0], sides[-1]), ylim=(tops[0], tops[-1]))
        axes.set_xlabel("TTFT limit (multiples of the SLO's)" if found.relative else "TTFT limit (s)")
        axes.set_ylabel("TPOT limit (ms)")
        _plain_numbers(axes)
        drawing.colorbar(shades, ax=axes, label="Requests that meet both (%)", aspect=30).outline.set_visible(False)
        drawing.legend(loc="outside upper left", ncols=2, handlelength=1.6)
    return drawing


def _enclose(axes: Axes, found: HeatMap, sides: NDArray[np.float64], tops: NDArray[np.float64]) -> None:
    """Stairs under the pairs of limits that keep the target attainment."""
    lowest = [np.nan if row is None else tops[row] for row in found.least_tpot()]
    if not np.all(np.isnan(lowest)):
        label = f"{TARGET_ATTAINMENT:.0%} and more"
        axes.stairs(lowest, sides, baseline=None, color=BLACK, linewidth=1.1, label=label)
        first = int(np.argmin(np.isnan(lowest)))
        axes.plot([sides[first]] * 2, [lowest[first], tops[-1]], color=BLACK, linewidth=1.1)


def _plain_numbers(axes: Axes) -> None:
    axes.grid(visible=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(PlainLog())
