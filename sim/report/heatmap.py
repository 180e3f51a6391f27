"""SLO attainment for every pair of a TTFT and a TPOT limit, from the requests of one run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.api import SLO
from sim.metrics import FINISHED, TARGET_ATTAINMENT, Mask, tpot_s, ttft_limits_s, ttft_s
from sim.records import Records
from sim.report.axes import Axis
from sim.report.charts import Chart
from sim.report.marks import series
from sim.report.markup import Markup, tag
from sim.report.words import number, percent, seconds

Floats = NDArray[np.float64]

COLUMNS, ROWS = 24, 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeatMap:
    """``attained`` has shape (rows, columns): the share of requests within a TPOT and a TTFT limit.

    ttft: limits, shape (columns,), in seconds, or where ``relative`` as multiples of each request's own limit, for an
    SLO that grows with the prompt. tpot_s: limits, shape (rows,). slo: the run's own limits among them, if it has both.
    """

    ttft: Floats
    tpot_s: Floats
    attained: Floats
    relative: bool
    slo: tuple[float, float] | None


def heat_map(records: Records, slo: SLO, inside: Mask) -> HeatMap | None:
    """Of the requests ``inside``, shape (n,), which all count; None where none of them finished.

    Limits run from what hardly a request meets to what all finished ones do, evenly on a log scale, the SLO's own
    among them. A request of one token meets every TPOT limit.
    """
    relative = slo.ttft_per_token_s is not None
    ttft = ttft_s(records) / ttft_limits_s(records, slo) if relative else ttft_s(records)
    done = inside & (records.state == FINISHED)
    if not done.any():
        return None
    tpot = np.nan_to_num(tpot_s(records), nan=0.0)
    own = (1.0 if relative else slo.ttft_s, slo.tpot_s)
    columns, rows = _limits(ttft[done], COLUMNS, own[0]), _limits(tpot[done], ROWS, own[1])
    counts = [
        np.searchsorted(np.sort(ttft[done & (tpot <= limit)]), columns, side="right").astype(np.float64)
        for limit in rows
    ]
    return HeatMap(
        ttft=columns,
        tpot_s=rows,
        attained=np.array(counts) / inside.sum(),
        relative=relative,
        slo=None if own[0] is None or own[1] is None else (own[0], own[1]),
    )


def _limits(values: Floats, count: int, own: float | None) -> Floats:
    """Rising limits, shape (count,), one of which is ``own``; None leaves it out."""
    known = values[values > 0] if (values > 0).any() else np.ones(1)
    low, high = float(np.quantile(known, 0.02)), 1.05 * float(known.max())
    if own is not None:
        low, high = min(low, own / 1.5), max(high, own * 1.5)
    limits = np.geomspace(low, max(high, 1.5 * low), count)
    if own is not None:
        limits[int(np.argmin(np.abs(np.log(limits / own))))] = own
    return limits


def drawn(found: HeatMap, title: str) -> Markup:
    """As a chart: a cell a pair of limits, darker the more meet both; a line about those that keep the target."""
    unit = "TTFT limit, as a multiple of the SLO's" if found.relative else "TTFT limit, s"
    edges, heights = _edges(found.ttft), _edges(found.tpot_s)
    x = Axis(label=unit, low=edges[0], high=edges[-1], log=True)
    y = Axis(label="TPOT limit, ms", low=heights[0], high=heights[-1], log=True, scale=1e3)
    chart = Chart(title, x, y)
    chart.add(*_cells(chart, found, edges, heights))
    chart.add(tag("path", d=_edge(chart, found, edges, heights), class_="edge"))
    if found.slo is not None:
        attained = found.attained[
            int(np.searchsorted(found.tpot_s, found.slo[1])), int(np.searchsorted(found.ttft, found.slo[0]))
        ]
        tip = {"data-tip": f"the run's SLO: {percent(float(attained))} attain it"}
        chart.add(series("var(--bad)", chart.mark(found.slo, "D", class_="m", **tip)))
    return chart.svg()


def _edges(limits: Floats) -> list[float]:
    """Between limits the geometric means, and as far beyond the first and the last."""
    middles = np.sqrt(limits[:-1] * limits[1:])
    return [float(limits[0] ** 2 / middles[0]), *middles.tolist(), float(limits[-1] ** 2 / middles[-1])]


def _cells(chart: Chart, found: HeatMap, edges: list[float], heights: list[float]) -> Iterator[Markup]:
    # Rounded before they are subtracted, so that no gap is between neighbours.
    sides = [round(chart.at((edge, heights[0]))[0], 1) for edge in edges]
    tops = [round(chart.at((edges[0], height))[1], 1) for height in heights]
    for row, tpot in enumerate(found.tpot_s.tolist()):
        for column, ttft in enumerate(found.ttft.tolist()):
            share = float(found.attained[row, column])
            limit = f"{number(ttft)} times the SLO's" if found.relative else seconds(ttft)
            yield tag(
                "rect",
                x=f"{sides[column]:g}",
                y=f"{tops[row + 1]:g}",
                width=f"{sides[column + 1] - sides[column]:.1f}",
                height=f"{tops[row] - tops[row + 1]:.1f}",
                class_="h",
                **{"fill-opacity": f"{share**2:.2f}"},
                **{"data-tip": f"TTFT {limit}, TPOT {seconds(tpot)}: {percent(share)} meet both"},
            )


def _edge(chart: Chart, found: HeatMap, edges: list[float], heights: list[float]) -> str:
    """Stairs between the cells that keep the target and those that do not: attainment rises along both limits."""
    kept = found.attained >= TARGET_ATTAINMENT
    path = ""
    for column in range(len(found.ttft)):
        rows = np.flatnonzero(kept[:, column])
        if not len(rows):
            continue
        left, y = chart.at((edges[column], heights[int(rows[0])]))
        right = chart.at((edges[column + 1], heights[0]))[0]
        path += f"V{y:.1f}H{right:.1f}" if path else f"M{left:.1f} {_top(chart)}V{y:.1f}H{right:.1f}"
    return path


def _top(chart: Chart) -> str:
    return f"{chart.at((chart.x.low, chart.y.high))[1]:.1f}"
