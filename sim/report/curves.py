"""Attainment, latency and goodput against offered load, with knees: the panels of a page that compares policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sim.metrics import TARGET_ATTAINMENT
from sim.plots.knees import common_rate, shown
from sim.plots.series import Curve, Panel, has_slo, slo_text
from sim.report.axes import Axis, fitted
from sim.report.cells import amount
from sim.report.charts import Chart
from sim.report.facets import Facets
from sim.report.marks import series
from sim.report.markup import Markup, table, tag
from sim.report.words import number
from sim.results import Row

X_LABEL = "offered load, requests/s per GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A column as a chart; ``limit`` finds in a panel's SLO what is drawn as its limit."""

    column: str
    title: str
    unit: str
    scale: float = 1.0
    log: bool = False
    top: float | None = None
    limit: Callable[[Row], float | None] = lambda slo: None


def _ttft_limit(slo: Row) -> float | None:
    """One that grows with the prompt is shown as its floor, if it has one."""
    growing = slo["slo_ttft_per_token_s"] is not None
    limit: float | None = (slo["slo_ttft_floor_s"] or None) if growing else slo["slo_ttft_s"]
    return limit


def _tpot_limit(slo: Row) -> float | None:
    limit: float | None = slo["slo_tpot_s"]
    return limit


MEASURES = (
    Measure(column="ttft_p50_s", title="Median TTFT", unit="s", log=True, limit=_ttft_limit),
    Measure(column="ttft_p90_s", title="P90 TTFT", unit="s", log=True, limit=_ttft_limit),
    Measure(column="tpot_p50_s", title="Median TPOT", unit="ms", scale=1e3, limit=_tpot_limit),
    Measure(column="tpot_p90_s", title="P90 TPOT", unit="ms", scale=1e3, limit=_tpot_limit),
    Measure(column="goodput_per_s_per_gpu", title="Goodput", unit="requests/s per GPU"),
    Measure(column="requests_per_s_per_gpu", title="Throughput", unit="requests/s per GPU"),
    Measure(column="utilisation", title="SM utilisation", unit="%", scale=100.0, top=1.0),
)
ATTAINMENT = Measure(column="attainment", title="SLO attainment", unit="%", scale=100.0, top=1.0)


def panel_section(panel: Panel, facets: Facets, places: dict[int, int]) -> Markup:
    """The charts of a panel and its knees. ``places`` are the numbers of rows among the page's cells, by identity."""
    charts = [_attainment(panel, facets, places)] if has_slo(panel) else []
    charts += [chart for one in MEASURES if (chart := _measured(panel, one, facets, places))]
    attributes = facets.attributes("device", "trace", row=panel.slo)
    parts = [
        tag("h3", panel.title),
        tag("p", slo_text(panel.slo), class_="note"),
        tag("div", *charts, class_="charts"),
        _knees(panel, facets),
    ]
    return tag("section", *parts, class_="panel", **attributes)


def _x(panel: Panel) -> Axis:
    return fitted(X_LABEL, [rate for curve in panel.curves for rate, _ in curve.rows])


def _attainment(panel: Panel, facets: Facets, places: dict[int, int]) -> Markup:
    chart = Chart(ATTAINMENT.title, _x(panel), Axis(label="%", low=0.0, high=1.04, scale=100.0))
    chart.add(chart.across(TARGET_ATTAINMENT, f"{TARGET_ATTAINMENT:.0%}"))
    for curve in panel.curves:
        parts = [*_curve(chart, curve, ATTAINMENT, facets, places)]
        knee = curve.knee()
        if knee is not None and knee.kind == "crossing" and knee.rate is not None:
            tip = f"{curve.label}\nknee: {knee} requests/s per GPU"
            ring = {"data-tip": tip, "fill": "none", "pointer-events": "all"}
            x, y = chart.at((knee.rate, TARGET_ATTAINMENT))
            parts.append(tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r="7", class_="k", **ring))
        chart.add(_coloured(curve, facets, parts))
    return chart.svg()


def _measured(panel: Panel, one: Measure, facets: Facets, places: dict[int, int]) -> Markup | None:
    values = [value for curve in panel.curves for _, value in curve.points(one.column)]
    if not values:
        return None
    limit = one.limit(panel.slo)
    held = [*values, *([] if limit is None else [limit])]
    chart = Chart(one.title, _x(panel), fitted(one.unit, held, log=one.log, scale=one.scale, top=one.top))
    if limit is not None:
        chart.add(chart.across(limit, "SLO, floor" if one.log and panel.slo["slo_ttft_per_token_s"] else "SLO"))
    for curve in panel.curves:
        chart.add(_coloured(curve, facets, _curve(chart, curve, one, facets, places)))
    return chart.svg()


def _coloured(curve: Curve, facets: Facets, parts: Iterable[Markup]) -> Markup:
    row = curve.rows[0][1][0]
    return series(facets.looks[curve.label].colour, *parts, **facets.attributes("policy", row=row))


def _curve(chart: Chart, curve: Curve, one: Measure, facets: Facets, places: dict[int, int]) -> Iterable[Markup]:
    """A line through means, a band where there are several seeds, and a mark for each cell."""
    look = facets.looks[curve.label]
    band = curve.band(one.column)
    if band:
        yield chart.area([(x, low) for x, low, _ in band], [(x, high) for x, _, high in band], class_="b")
    yield chart.line(curve.points(one.column), dash=look.line)
    for rate, rows in curve.rows:
        for row in rows:
            value = row.get(one.column)
            if value is not None:
                yield chart.mark((rate, value), look.marker, **{"data-cell": str(places[id(row)])})


def _knees(panel: Panel, facets: Facets) -> Markup:
    rate = common_rate(panel)
    head = ("policy", "knee, requests/s per GPU", *(_at(name, rate) for name in ("SLO met", "P90 TTFT", "P90 TPOT")))
    lines, attributes = [], []
    for curve in panel.curves:
        half = curve.knee_half_width()
        knee = shown(curve.knee()) + ("" if half is None else f" \N{PLUS-MINUS SIGN} {number(half)}")
        columns = ("attainment", "ttft_p90_s", "tpot_p90_s")
        lines.append((curve.label, knee, *(amount(name, curve.at(name, rate)) for name in columns)))
        attributes.append(facets.attributes("policy", row=curve.rows[0][1][0]))
    return table(head, lines, attributes=attributes)


def _at(name: str, rate: float) -> str:
    return f"{name} at {rate:g}"


def frontier(panels: Sequence[Panel], rows: Sequence[Row], facets: Facets) -> Iterable[Markup]:
    """All panels of a page; ``rows`` are its cells, in their order."""
    places = {id(row): place for place, row in enumerate(rows)}
    for panel in panels:
        yield panel_section(panel, facets, places)
