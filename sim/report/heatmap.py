"""The chart of SLO attainment for every pair of a TTFT and a TPOT limit."""

from __future__ import annotations

from collections.abc import Iterator

from sim.plots.otherlimits import HeatMap, edges_of
from sim.report.axes import Axis
from sim.report.charts import Chart
from sim.report.marks import series
from sim.report.markup import Markup, tag
from sim.report.words import number, percent, seconds


def drawn(found: HeatMap, title: str) -> Markup:
    """As a chart: a cell a pair of limits, darker the more meet both; a line about those that keep the target."""
    unit = "TTFT limit, as a multiple of the SLO's" if found.relative else "TTFT limit, s"
    edges, heights = edges_of(found.ttft), edges_of(found.tpot_s)
    x = Axis(label=unit, low=edges[0], high=edges[-1], log=True)
    y = Axis(label="TPOT limit, ms", low=heights[0], high=heights[-1], log=True, scale=1e3)
    chart = Chart(title, x, y)
    chart.add(*_cells(chart, found, edges, heights))
    chart.add(tag("path", d=_edge(chart, found, edges, heights), class_="edge"))
    if found.slo is not None:
        tip = {"data-tip": f"the run's SLO: {percent(found.attained_at(*found.slo))} attain it"}
        chart.add(series("var(--bad)", chart.mark(found.slo, "D", class_="m", **tip)))
    return chart.svg()


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
    path = ""
    for column, row in enumerate(found.least_tpot()):
        if row is None:
            continue
        left, y = chart.at((edges[column], heights[row]))
        right = chart.at((edges[column + 1], heights[0]))[0]
        path += f"V{y:.1f}H{right:.1f}" if path else f"M{left:.1f} {_top(chart)}V{y:.1f}H{right:.1f}"
    return path


def _top(chart: Chart) -> str:
    return f"{chart.at((chart.x.low, chart.y.high))[1]:.1f}"
