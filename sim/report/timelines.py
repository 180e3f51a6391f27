"""A run over time within a page: SM shares, tokens in flight, queue and free KV of each instance, and its lanes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sim.plots.levels import BINS, MOST_INSTANCES, Floats, in_flight, level, rows_of, shares
from sim.plots.looks import BLUE, GREY, LANE_COLOURS, ORANGE, VERMILION
from sim.records import StepLog
from sim.report.axes import Axis, fitted
from sim.report.charts import Chart, Point
from sim.report.marks import series, swatch
from sim.report.markup import Markup, table, tag
from sim.report.words import number, percent, seconds
from sim.rundir import Run, device_sms


def timeline_sections(run: Run) -> Iterator[Markup]:
    """Charts of each instance, of the first MOST_INSTANCES, on one axis of time."""
    steps = run.steps
    if not len(steps):
        yield tag("p", "No step ran.", class_="note")
        return
    instances = np.unique(steps.instance)
    edges = np.linspace(0.0, float(steps.end_s.max()), BINS + 1)
    sms = device_sms(run)
    lanes = [name for name in steps.lane_names if name != "link"]
    yield tag("p", *(tag("span", swatch(LANE_COLOURS.get(name, GREY)), name) for name in lanes), class_="legend")
    for instance in instances[:MOST_INSTANCES].tolist():
        here = rows_of(steps, instance)
        if len(instances) > 1:
            yield tag("h3", f"Instance {instance}")
        yield tag("div", *_charts(steps, here, edges, sms), class_="charts")
    if len(instances) > MOST_INSTANCES:
        yield tag("p", f"The first {MOST_INSTANCES} of {len(instances)} instances.", class_="note")


def _charts(steps: StepLog, here: NDArray[np.intp], edges: Floats, sms: int) -> Iterator[Markup]:
    stacked = shares(steps, here, edges, sms)
    chart = Chart("SM share", _time(edges), Axis(label="%", low=0.0, high=104.0))
    low = np.zeros(len(edges) - 1)
    for name, share in stacked.items():
        chart.add(series(LANE_COLOURS.get(name, GREY), chart.area(_points(edges, low), _points(edges, low + share))))
        low = low + share
    yield chart.svg()
    began, waiting, free = steps.start_s[here], steps.waiting[here], steps.free_blocks[here]
    tokens, decode = (in_flight(steps, here, edges, column) for column in (steps.prefill_tokens, steps.decode_requests))
    yield _level("Prompt tokens in flight", "tokens", edges, tokens, ORANGE)
    yield _level("Requests decoding", "requests", edges, decode, BLUE)
    yield _level("Waiting requests", "requests", edges, level(edges, began, waiting.astype(np.float64)), VERMILION)
    yield _level("Free KV", "blocks", edges, level(edges, began, free.astype(np.float64)), BLUE)


def _time(edges: Floats) -> Axis:
    return Axis(label="time, s", low=float(edges[0]), high=float(edges[-1]))


def _level(title: str, unit: str, edges: Floats, values: Floats, colour: str) -> Markup:
    chart = Chart(title, _time(edges), fitted(unit, values.tolist()))
    points = _points(edges, values)
    base = [(x, 0.0) for x, _ in points]
    chart.add(series(colour, chart.area(base, points, class_="b"), chart.line(points)))
    return chart.svg()


def _points(edges: Floats, values: Floats) -> list[Point]:
    middles = (edges[:-1] + edges[1:]) / 2
    return list(zip(middles.tolist(), values.tolist(), strict=True))


LANES_HEAD = (
    "instance",
    "lane",
    "steps",
    "busy",
    "of the time",
    "SMs, mean",
    "SMs, least",
    "SMs, most",
    "error, median",
)


def lanes_table(run: Run) -> Markup:
    """What each lane did: how long it was at a step, of the time from the run's start to its last step's end, on how
    many SMs, and by how much the policy's predictions were off, without sign.
    """
    steps = run.steps
    span_s = float(steps.end_s.max(initial=0.0))
    lines = []
    for instance in np.unique(steps.instance).tolist():
        for lane, name in enumerate(steps.lane_names):
            rows = np.flatnonzero((steps.instance == instance) & (steps.lane == lane))
            if len(rows):
                lines.append((str(instance), name, *_lane(steps, rows, span_s)))
    return table(LANES_HEAD, lines, left=2)


def _lane(steps: StepLog, rows: NDArray[np.intp], span_s: float) -> tuple[str, ...]:
    took_s = steps.end_s[rows] - steps.start_s[rows]
    busy_s, sms = float(took_s.sum()), steps.sms[rows]
    known = (took_s > 0) & (steps.predicted_s[rows] > 0)
    errors = np.abs(steps.predicted_s[rows][known] / took_s[known] - 1)
    return (
        str(len(rows)),
        seconds(busy_s),
        percent(busy_s / span_s) if span_s else percent(None),
        number(float(np.average(sms, weights=took_s)) if busy_s else None),
        str(int(sms.min())),
        str(int(sms.max())),
        percent(float(np.median(errors)) if len(errors) else None),
    )
