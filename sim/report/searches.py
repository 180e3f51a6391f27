"""The pages of searches: the settings that bulletsim tune tried, and the rates that bulletsim capacity did."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.config import RunConfig, checked, read_json
from sim.plots.looks import looks
from sim.plots.series import workload_name
from sim.report.axes import Axis, fitted
from sim.report.cells import amount, chosen, settings_table, told
from sim.report.charts import Chart
from sim.report.marks import series
from sim.report.markup import Markup, flat, table, tag
from sim.report.page import page
from sim.report.words import number, percent
from sim.results import LATENCIES, Row, load_results
from sim.tuning import THROUGHPUT, TUNING

KEPT, MISSED = "kept", "missed"


def tuning_page(directory: Path) -> str:
    """Raises ValueError where tuning.json or results.parquet in ``directory`` is damaged."""
    found, rows = read_json(directory / TUNING), load_results(directory)
    if not isinstance(found, dict) or found.get("minimise") not in LATENCIES or "target" not in found:
        raise ValueError(f"{directory / TUNING} is not of bulletsim tune; run the search again, which keeps its trials")
    title = f"{rows[0]['policy_name']}, tuned"
    return page(title, _tuning(title, found, rows), cells=told(rows))


def _tuning(title: str, found: Mapping[str, Any], rows: Sequence[Row]) -> Iterator[Markup]:
    front = [one for cell in found["front"] for one in rows if one["cell"] == cell]
    latency, target = str(found["minimise"]), float(found["target"])
    yield tag("h1", title)
    words = f"{len(front)} of {len(rows)} trials keep the SLO for {target:.4g} of requests and are beaten by no other "
    words += f"in both throughput and {latency.removesuffix('_s').replace('_', ' ')}."
    yield tag("p", words, class_="lead")
    yield tag("p", "Filled marks keep the SLO, hollow ones do not. Click one for all its settings.", class_="note")
    yield chosen()
    yield tag("div", _front(rows, front, latency, target), class_="charts")
    yield tag("h2", "Those that nothing beats")
    yield _trials(front, found)
    yield tag("details", tag("summary", f"All {len(rows)} trials"), _trials(rows, found))
    yield tag("h2", "To repeat it")
    yield from _settings(found["config"])
    yield tag("details", tag("summary", "Settings that all trials share"), settings_table(told(rows)[0]))


def _front(rows: Sequence[Row], front: Sequence[Row], latency: str, target: float) -> Markup:
    known = [one for one in rows if one.get(latency) is not None and one.get(THROUGHPUT) is not None]
    x = fitted("requests/s per GPU", [one[THROUGHPUT] for one in known])
    y = fitted("s", [one[latency] for one in known], log=True)
    chart = Chart(latency.removesuffix("_s").replace("_", " ").upper(), x, y)
    look = looks([("trial", rows[0]["policy_name"])])["trial"]
    ascending = sorted((one[THROUGHPUT], one[latency]) for one in front)
    parts = [chart.line(ascending)]
    places = {one["cell"]: place for place, one in enumerate(rows)}
    for one in known:
        kept = one["attainment"] is None or one["attainment"] >= target
        cell = {"data-cell": str(places[one["cell"]])}
        parts.append(chart.mark((one[THROUGHPUT], one[latency]), "o", class_="m" if kept else "m hollow", **cell))
    chart.add(series(look.colour, *parts))
    return chart.svg()


def _trials(rows: Sequence[Row], found: Mapping[str, Any]) -> Markup:
    names, columns = list(found["settings"]), (THROUGHPUT, str(found["minimise"]), "attainment")
    lines = []
    for one in rows:
        settings = json.loads(one["policy_settings"])
        varied = (f"{value:.4g}" if isinstance(value := settings.get(name), float) else str(value) for name in names)
        lines.append((*varied, number(one["rate"]), *(amount(column, one.get(column)) for column in columns)))
    return table((*names, "rate", "requests/s per GPU", found["minimise"], "SLO met"), lines, left=0)


def is_capacity(document: object) -> bool:
    """Whether it is what bulletsim capacity prints with --json."""
    return isinstance(document, dict) and {"find", "question", "config"} <= document.keys()


def capacity_page(document: Mapping[str, Any], where: str) -> str:
    """Of a document that bulletsim capacity printed. Raises ValueError, naming ``where``, for settings of no run."""
    run = checked(RunConfig, document["config"], where)
    title = f"Capacity: {run.policy.name}, {run.model} on {run.device}, {workload_name(run.trace)}"
    return page(title, _capacity(title, document, run))


def _capacity(title: str, document: Mapping[str, Any], run: RunConfig) -> Iterator[Markup]:
    question, found = document["question"], document.get("capacity")
    yield tag("h1", title)
    if found is None:
        words = f"{document['gpus']} GPUs ({document['instances']} instances) for {run.rate:g} requests/s: "
        yield tag("p", f"{words}{percent(document['attainment'])} meet the SLO, {document['decision']}.", class_="lead")
    else:
        yield tag("div", *_cards(document, found), class_="cards")
        yield tag("div", _points(found, question, run), class_="charts")
        yield tag("h2", "Rates tried")
        lines = [
            (number(point["rate"]), percent(point["attainment"]), str(len(point["attainments"])), point["decision"])
            for point in found["points"]
        ]
        yield tag("p", "Of a run that was stopped early the attainment is at most what is shown.", class_="note")
        yield table(("requests/s", "SLO met", "seeds", "the SLO is"), lines, left=0)
    yield tag("h2", "The question")
    yield table(("", ""), flat(question), left=2)
    yield tag("h2", "To repeat it")
    yield tag("pre", f"bulletsim capacity --config config.json --find {document['find']}")
    yield from _settings(document["config"])


def _cards(document: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Markup]:
    sure = f"{document['question']['confidence']:.0%} confidence"
    entries = {
        "capacity, requests/s": "no limit" if found["endless"] else number(found["rate"]),
        "per GPU": number(found["rate_per_gpu"]),
        f"kept with {sure}": number(found[KEPT]),
        f"missed with {sure}": number(found[MISSED]),
    }
    if "best" in document:
        entries = {"best": document["best"]} | entries
    for name, value in entries.items():
        yield tag("div", tag("b", value), tag("span", name), class_="card")


def _points(found: Mapping[str, Any], question: Mapping[str, Any], run: RunConfig) -> Markup:
    points = sorted(((point["rate"], point["attainment"], point) for point in found["points"]), key=lambda one: one[0])
    x = fitted("requests/s", [rate for rate, *_ in points])
    chart = Chart("SLO attainment", x, Axis(label="%", low=0.0, high=1.04, scale=100.0))
    chart.add(chart.across(question["target"], f"target {question['target']:.4g}"))
    if found["rate"]:
        chart.add(chart.upright(found["rate"], "capacity"))
    look = looks([("run", run.policy.name)])["run"]
    parts = [chart.line([(rate, value) for rate, value, _ in points])]
    for rate, value, point in points:
        seeds = ", ".join(percent(one) for one in point["attainments"])
        tip = f"{number(rate)} requests/s: {percent(value)}, {point['decision']}\nseeds: {seeds}"
        parts.append(chart.mark((rate, value), look.marker, **{"data-tip": tip}))
    chart.add(series(look.colour, *parts))
    return chart.svg()


def _settings(config: Mapping[str, Any]) -> Iterator[Markup]:
    """Of the run that a search is around."""
    yield tag("details", tag("summary", "config.json"), tag("pre", json.dumps(config, indent=2)))
