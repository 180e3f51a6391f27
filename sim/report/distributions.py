"""Distributions of latency: the share of requests at or below a time, a curve a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.slo import SLO
from sim.metrics import e2e_s, tpot_s, ttft_limits_s, ttft_s
from sim.plots.looks import Look
from sim.records import Records
from sim.report.axes import Axis, fitted
from sim.report.charts import Chart, Point
from sim.report.marks import series
from sim.report.markup import Markup
from sim.rundir import Run

Floats = NDArray[np.float64]

MOST_POINTS = 200
METRICS: Mapping[str, Callable[[Records], Floats]] = {"TTFT": ttft_s, "TPOT": tpot_s, "End to end": e2e_s}


@dataclass(frozen=True, slots=True)
class _Drawing:
    """How each run looks, and the attributes of its curves."""

    looks: Mapping[str, Look]
    attributes: Mapping[str, Mapping[str, str]]


def distribution_charts(
    runs: Mapping[str, Run], looks: Mapping[str, Look], attributes: Mapping[str, Mapping[str, str]] | None = None
) -> list[Markup]:
    """TTFT, TPOT and end-to-end time of the requests in each run's window; limits where all runs have the same.

    Where the TTFT limit grows with the prompt there is a fourth chart, of TTFT over each request's limit.
    ``attributes`` are of each run's curves.
    """
    drawing = _Drawing(looks, attributes or {})
    slos = {run.config.slo.value() for run in runs.values()}
    slo = slos.pop() if len(slos) == 1 else SLO()
    values = {name: {run: _inside(entry, of) for run, entry in runs.items()} for name, of in METRICS.items()}
    fixed = slo.ttft_s if slo.ttft_per_token_s is None and not slo.ttft_floor_s else None
    limits = {"TTFT": fixed, "TPOT": slo.tpot_s}
    found = [_chart(name, "s", columns, drawing, limits.get(name)) for name, columns in values.items()]
    if slo.ttft_per_token_s is not None:
        ratios = {run: _inside(entry, lambda records: _over_limit(records, slo)) for run, entry in runs.items()}
        found.insert(1, _chart("TTFT over its limit", "times the SLO's limit", ratios, drawing, 1.0))
    return found


def _over_limit(records: Records, slo: SLO) -> Floats:
    found: Floats = ttft_s(records) / ttft_limits_s(records, slo)
    return found


def _inside(run: Run, of: Callable[[Records], Floats]) -> Floats:
    values = of(run.records)[run.config.window.value().mask(run.records)]
    return np.sort(values[values > 0])


def _chart(name: str, unit: str, columns: Mapping[str, Floats], drawing: _Drawing, limit: float | None) -> Markup:
    ends = [float(value) for values in columns.values() if len(values) for value in (values[0], values[-1])]
    x = fitted(unit, [*ends, *([] if limit is None else [limit])], log=True)
    chart = Chart(name, x, Axis(label="% of requests", low=0.0, high=1.0, scale=100.0))
    if limit is not None:
        chart.add(chart.upright(limit, "SLO"))
    for run, values in columns.items():
        look = drawing.looks[run]
        line = chart.line(curve(values), dash=look.line, stepped=True)
        chart.add(series(look.colour, line, **drawing.attributes.get(run, {})))
    return chart.svg()


def curve(values: Floats) -> list[Point]:
    """(value, share at or below it) of sorted values, at most MOST_POINTS of them with both ends."""
    rows = np.unique(np.linspace(0, len(values) - 1, min(MOST_POINTS, len(values))).round().astype(np.int64))
    return [(float(values[row]), (row + 1) / len(values)) for row in rows.tolist()]
