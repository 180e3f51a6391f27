"""The page of a search by bulletsim tune: what was tried, and what nothing beats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from sim.config import checked, read_json
from sim.plots.looks import looks
from sim.report.axes import fitted
from sim.report.cells import amount, chosen, config_section, settings_table, title_of, told
from sim.report.charts import Chart
from sim.report.marks import series
from sim.report.markup import Markup, table, tag
from sim.report.page import page
from sim.report.words import number
from sim.results import LATENCIES, Row, load_results
from sim.tuning import THROUGHPUT, TUNING, Tuned


def tuning_page(directory: Path) -> str:
    """Raises ValueError where tuning.json or results.parquet in ``directory`` is damaged."""
    path = directory / TUNING
    found, rows = checked(Tuned, read_json(path), str(path)), load_results(directory)
    if found.minimise not in LATENCIES:
        raise ValueError(f"{path}: minimise is {found.minimise!r}; a column of seconds is expected, such as ttft_p90_s")
    title = f"{rows[0]['policy_name']}, tuned"
    return page(title, _tuning(title, found, rows), cells=told(rows))


def _tuning(title: str, found: Tuned, rows: Sequence[Row]) -> Iterator[Markup]:
    front = [one for cell in found.front for one in rows if one["cell"] == cell]
    latency, target = found.minimise, found.target
    yield tag("h1", title)
    words = f"{len(front)} of {len(rows)} trials keep the SLO for {target:.4g} of requests and are beaten by no other "
    words += f"in both throughput and {title_of(latency)}."
    yield tag("p", words, class_="lead")
    yield tag("p", "Filled marks keep the SLO, hollow ones do not. Click one for all its settings.", class_="note")
    yield chosen()
    yield tag("div", _front(rows, front, latency, target), class_="charts")
    yield tag("h2", "Those that nothing beats")
    yield _trials(front, found)
    yield tag("details", tag("summary", f"All {len(rows)} trials"), _trials(rows, found))
    yield tag("h2", "To repeat it")
    vary = " ".join(f"--vary {one}" for one in found.vary)
    command = f"bulletsim tune --config config.json {vary} --rates {found.rates} --target {target:g}"
    command += f" --minimise {latency.removesuffix('_s')} --trials {found.trials + found.failed} --out DIR"
    yield tag("pre", command)
    yield config_section(found.config)
    yield tag("details", tag("summary", "Settings that all trials share"), settings_table(told(rows)[0]))


def _front(rows: Sequence[Row], front: Sequence[Row], latency: str, target: float) -> Markup:
    known = [one for one in rows if one.get(latency) is not None and one.get(THROUGHPUT) is not None]
    x = fitted("requests/s per GPU", [one[THROUGHPUT] for one in known])
    y = fitted("s", [one[latency] for one in known], log=True)
    chart = Chart(title_of(latency), x, y)
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


def _trials(rows: Sequence[Row], found: Tuned) -> Markup:
    names, columns = (
        [one.partition("=")[0] for one in found.vary],
        (THROUGHPUT, found.minimise, "attainment"),
    )
    lines = []
    for one in rows:
        settings = json.loads(one["policy_settings"])
        varied = (f"{value:.4g}" if isinstance(value := settings.get(name), float) else str(value) for name in names)
        lines.append((*varied, number(one["rate"]), *(amount(column, one.get(column)) for column in columns)))
    return table((*names, "rate", "requests/s per GPU", title_of(found.minimise), "SLO met"), lines, left=0)
