"""The page of a run, or of several side by side."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from sim.plots.looks import Look, looks
from sim.plots.otherlimits import heat_map
from sim.plots.series import slo_text, workload_name
from sim.records import STATES
from sim.report.cells import amount, told
from sim.report.distributions import distribution_charts
from sim.report.facets import facets
from sim.report.heatmap import drawn
from sim.report.marks import key
from sim.report.markup import Markup, flat, joined, table, tag
from sim.report.page import page
from sim.report.sweeps import comparison
from sim.report.timelines import lanes_table, timeline_sections
from sim.report.words import number, percent, seconds
from sim.results import Row, row
from sim.rundir import Run
from sim.sweep_cells import Cell
from traces.progress import Progress, untold

Runs = Mapping[str, Run]
"""By the names that they have on the page."""

CARDS = {
    "SLO attainment": "attainment",
    "goodput, requests/s per GPU": "goodput_per_s_per_gpu",
    "requests/s per GPU": "requests_per_s_per_gpu",
    "tokens/s per GPU": "tokens_per_s_per_gpu",
    "P90 TTFT": "ttft_p90_s",
    "P90 TPOT": "tpot_p90_s",
    "SM utilisation": "utilisation",
}
LATENCIES = {
    "TTFT": "ttft_s",
    "TPOT": "tpot_s",
    "ITL": "itl_s",
    "end to end": "e2e_s",
    "a token, normalised": "normalised_s",
    "queueing": "queueing_s",
}
STATISTICS = ("mean", "p50", "p90", "p95", "p99")


def runs_page(runs: Runs, progress: Progress = untold) -> str:
    """Of one run or more; ``progress`` hears how far it is."""
    rows = as_rows(runs)
    (first, *others) = runs
    title = f"{len(runs)} runs compared" if others else f"Run {first}"
    return page(title, _body(title, runs, rows, progress), cells=told(rows))


def as_rows(runs: Runs) -> list[Row]:
    """The runs as those of a sweep: a policy's label has its settings where there are runs of it with other ones."""
    settings: defaultdict[str, set[str]] = defaultdict(set)
    for run in runs.values():
        settings[run.config.policy.name].add(_settings(run))
    found = []
    for name, run in runs.items():
        _check(name, run.summary)
        policy = run.config.policy.name
        label = policy if len(settings[policy]) == 1 else f"{policy}({_settings(run)})"
        found.append(row(Cell(label=label, config=run.config), name, dict(run.summary)))
    return found


def _check(name: str, summary: Mapping[str, Any]) -> None:
    """Raises ValueError for a summary that no run has."""
    states = summary.get("states")
    absent = [key for key in ("gpus", "arrived") if key not in summary]
    if not isinstance(states, dict):
        absent.append("states")
    absent += [f"states.{state}" for state in STATES if isinstance(states, dict) and state not in states]
    if absent:
        raise ValueError(f"run {name}: its summary.json has no {absent[0]}; repeat the run from its config.json")


def _settings(run: Run) -> str:
    return ", ".join(f"{name}={value}" for name, value in run.config.policy.settings.items())


def _body(title: str, runs: Runs, rows: Sequence[Row], progress: Progress) -> Iterator[Markup]:
    shown = looks((name, one["policy_name"]) for name, one in zip(runs, rows, strict=True))
    yield tag("h1", title)
    yield from _interrupted(runs)
    if len(runs) == 1:
        yield _about(rows[0])
        yield tag("div", *(_card(name, rows[0].get(column), column) for name, column in CARDS.items()), class_="cards")
    else:
        yield _side_by_side(runs, rows)
        if _has_curves(rows):
            yield from comparison(rows, facets(rows))
    yield tag("h2", "Latency")
    yield _legend(shown) if len(runs) > 1 else Markup("")
    yield tag("div", *distribution_charts(runs, shown), class_="charts")
    yield _latencies(runs)
    yield tag("h2", "Attainment under other limits")
    yield from _heat_maps(runs)
    yield tag("h2", "Over time")
    for place, (name, run) in enumerate(runs.items()):
        parts = (*timeline_sections(run), lanes_table(run))
        folded = tag("details", tag("summary", name), *parts, **({"open": "open"} if not place else {}))
        yield folded if len(runs) > 1 else joined(parts)
        progress((place + 1) / len(runs))
    yield from _repeat(runs)


def _interrupted(runs: Runs) -> Iterator[Markup]:
    """A sentence on each run that did not come to its end."""
    for name, run in runs.items():
        if run.interrupted_s is not None:
            words = f"{name} was interrupted after {seconds(run.interrupted_s)} of simulated time. Requests that were "
            words += "to arrive later are not in it, and those that were under way count as missed."
            yield tag("p", words, class_="note")


def _about(one: Row) -> Markup:
    parallel = f" (TP {one['tensor_parallel']})" if one["tensor_parallel"] > 1 else ""
    where = f"{one['model']} on {one['gpus']} \N{MULTIPLICATION SIGN} {one['device']}{parallel}"
    rate = "" if one["rate"] is None else f" at {one['rate']:g} requests/s"
    words = f"{one['policy']}, {where}, {workload_name(one['trace'])}{rate}. {one['arrived']} requests judged: "
    words += ", ".join(f"{one[state]} {state}" for state in STATES if one[state])
    return tag("p", f"{words}. SLO: {slo_text(one)}.", class_="lead")


def _card(name: str, value: float | None, column: str) -> Markup:
    return tag("div", tag("b", amount(column, value)), tag("span", name), class_="card")


def _side_by_side(runs: Runs, rows: Sequence[Row]) -> Markup:
    """The headline numbers, and the settings in which the runs differ."""
    head = ("run", "policy", "requests/s", *CARDS)
    lines = [
        (name, one["policy"], number(one["rate"]), *(amount(column, one.get(column)) for column in CARDS.values()))
        for name, one in zip(runs, rows, strict=True)
    ]
    settings = [dict(flat(run.config.model_dump(mode="json"))) for run in runs.values()]
    names = list(dict.fromkeys(name for one in settings for name in one))
    varied = [name for name in names if len({one.get(name) for one in settings}) > 1]
    others = [(name, *(one.get(name, "") for one in settings)) for name in varied]
    differ = [tag("h2", "Where their settings differ"), table(("setting", *runs), others, left=1 + len(runs))]
    return joined([table(head, lines, left=2), *(differ if others else [])])


def _has_curves(rows: Sequence[Row]) -> bool:
    """Whether a policy was run at two rates, and no run is another's twin in all that curves go by."""
    rates: defaultdict[str, list[tuple[Any, Any, Any, Any]]] = defaultdict(list)
    for one in rows:
        rates[one["policy"]].append((one["trace"], one["device"], one["rate"], one["seed"]))
    distinct = all(len(set(found)) == len(found) for found in rates.values())
    return distinct and any(len({rate for *_, rate, _ in found if rate is not None}) > 1 for found in rates.values())


def _legend(shown: Mapping[str, Look]) -> Markup:
    return tag("p", *(tag("span", key(look), name) for name, look in shown.items()), class_="legend")


def _latencies(runs: Runs) -> Markup:
    lines = []
    for name, run in runs.items():
        for words, metric in LATENCIES.items():
            found = run.summary.get(metric) or {}
            lines.append((name, words, *(seconds(found.get(part)) for part in STATISTICS)))
    kept = lines if len(runs) > 1 else [line[1:] for line in lines]
    head = ("run", "latency", "mean", *(part.upper() for part in STATISTICS[1:]))
    return table(head if len(runs) > 1 else head[1:], kept, left=2 if len(runs) > 1 else 1)


def _heat_maps(runs: Runs) -> Iterator[Markup]:
    words = "Share of the judged requests that meet both limits, had the limits been others; the policy might have "
    words += "served them otherwise. The darker the more; the line encloses 90 % and above, the mark is "
    words += "the run's own SLO. Point at a cell for its share."
    yield tag("p", words, class_="note")
    charts = []
    for name, run in runs.items():
        found = heat_map(run.records, run.config.slo.value(), run.config.window.value().mask(run.records))
        if found is not None:
            charts.append(drawn(found, name if len(runs) > 1 else "Attainment"))
    yield tag("div", *charts, class_="charts") if charts else tag("p", "No request finished.", class_="note")


def _repeat(runs: Runs) -> Iterator[Markup]:
    yield tag("h2", "To repeat it")
    yield tag("pre", "bulletsim simulate --config config.json")
    for name, run in runs.items():
        settings = json.dumps(run.config.model_dump(mode="json"), indent=2)
        link = tag("a", "config.json", href=f"data:application/json,{quote(settings)}", download="config.json")
        sources = run.summary.get("source_share") or {}
        rests = ", ".join(f"{source} {percent(share)}" for source, share in sources.items())
        rests = f"Simulated time rests on: {rests}." if rests else ""
        inside = [tag("p", link, f" {rests}"), tag("pre", settings)]
        yield tag("details", tag("summary", f"Settings of {name}"), *inside)
