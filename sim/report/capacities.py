"""The page of a search by bulletsim capacity, from the document that it prints with --json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from sim.config import RunConfig, checked, read_json
from sim.plots.looks import looks
from sim.plots.series import workload_name
from sim.report.axes import Axis, fitted
from sim.report.cells import config_section
from sim.report.charts import Chart
from sim.report.marks import series
from sim.report.markup import Markup, flat, table, tag
from sim.report.page import page
from sim.report.words import number, percent


class Tried(BaseModel):
    """A rate, in requests/s over all GPUs, the mean attainment there and that of each seed, and what was decided."""

    rate: float
    attainment: float
    attainments: list[float]
    decision: str


class Capacity(BaseModel):
    """Rates in requests/s; null where there is none. ``endless``: every rate keeps the SLO."""

    rate: float | None
    rate_per_gpu: float | None
    endless: bool
    kept: float | None
    missed: float | None
    points: list[Tried]


class Question(BaseModel):
    """The options of the search."""

    target: float
    tolerance: float
    confidence: float
    seeds: int
    warmup: float
    drain: float


class Found(BaseModel):
    """The document: ``capacity`` but for --find gpus; ``best`` and its ``settings`` where set-ups compete."""

    find: str
    question: Question
    config: RunConfig
    capacity: Capacity | None = None
    best: str | None = None
    settings: dict[str, Any] = {}
    gpus: int | None = None
    instances: int | None = None
    attainment: float | None = None
    decision: str | None = None


def is_capacity(path: Path) -> bool:
    """Whether ``path`` holds what bulletsim capacity prints with --json. Raises ValueError for a .json that is none."""
    if not path.is_file() or path.suffix != ".json":
        return False
    document = read_json(path)
    return isinstance(document, dict) and {"find", "question"} <= document.keys()


def capacity_page(path: Path) -> str:
    """Raises ValueError, naming the field, for a document with another form."""
    found = checked(Found, read_json(path), str(path))
    run = found.config
    title = f"Capacity: {run.policy.name}, {run.model} on {run.device}, {workload_name(run.trace)}"
    return page(title, _body(title, found))


def _body(title: str, found: Found) -> Iterator[Markup]:
    yield tag("h1", title)
    if found.capacity is None:
        words = f"{found.gpus} GPUs ({found.instances} instances) for {number(found.config.rate)} requests/s: "
        yield tag("p", f"{words}{percent(found.attainment)} meet the SLO, {found.decision}.", class_="lead")
    else:
        yield tag("div", *_cards(found, found.capacity), class_="cards")
        if found.settings:
            yield table(("setting", "of the best"), flat(found.settings), left=2)
        yield tag("div", _chart(found, found.capacity), class_="charts")
        yield tag("h2", "Rates tried")
        yield tag("p", "Of a run that was stopped early the attainment is at most what is shown.", class_="note")
        lines = [
            (number(one.rate), percent(one.attainment), str(len(one.attainments)), one.decision)
            for one in found.capacity.points
        ]
        yield table(("requests/s", "SLO met", "seeds", "the SLO is"), lines, left=0)
    yield tag("h2", "To repeat it")
    asked = " ".join(f"--{name} {value:g}" for name, value in found.question.model_dump().items())
    yield tag("pre", f"bulletsim capacity --config config.json --find {found.find} {asked}")
    yield config_section(found.config.model_dump(mode="json"))


def _cards(found: Found, capacity: Capacity) -> Iterator[Markup]:
    sure = f"{found.question.confidence:.0%} confidence"
    entries = {
        "capacity, requests/s": "no limit" if capacity.endless else number(capacity.rate),
        "per GPU": number(capacity.rate_per_gpu),
        f"kept with {sure}": number(capacity.kept),
        f"missed with {sure}": number(capacity.missed),
    }
    if found.best is not None:
        entries = {"best": found.best} | entries
    for name, value in entries.items():
        yield tag("div", tag("b", value), tag("span", name), class_="card")


def _chart(found: Found, capacity: Capacity) -> Markup:
    points = sorted(capacity.points, key=lambda one: one.rate)
    x = fitted("requests/s", [one.rate for one in points], log=True)
    chart = Chart("SLO attainment", x, Axis(label="%", low=0.0, high=1.04, scale=100.0))
    chart.add(chart.across(found.question.target, f"target {100 * found.question.target:g} %"))
    if capacity.rate:
        chart.add(chart.upright(capacity.rate, "capacity"))
    look = looks([("run", found.config.policy.name)])["run"]
    parts = [chart.line([(one.rate, one.attainment) for one in points])]
    for one in points:
        seeds = ", ".join(map(percent, one.attainments))
        tip = f"{number(one.rate)} requests/s: {percent(one.attainment)}, {one.decision}\nseeds: {seeds}"
        parts.append(chart.mark((one.rate, one.attainment), look.marker, **{"data-tip": tip}))
    chart.add(series(look.colour, *parts))
    return chart.svg()
