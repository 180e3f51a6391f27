"""Distributions on the page of a sweep: a cell a policy, served again, since a sweep keeps no single requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from sim.cellfiles import CELLS
from sim.config import RunConfig, checked, read_json
from sim.fingerprint import fingerprint
from sim.plots.knees import common_rate
from sim.plots.series import Panel, panels, slo_text
from sim.report.distributions import distribution_charts
from sim.report.facets import Facets
from sim.report.markup import Markup, tag
from sim.results import Row, load_results
from sim.rundir import Run
from sim.simulate import prepare

MOST_RUNS = 24
"""Cells that a page shows distributions of: a curve each, and a simulation."""

Reruns = Mapping[str, Run]
"""By the keys of their cells."""

WHICH = "one cell a policy: at the highest tested rate that the best of its panel sustains, of the first seed"


def to_serve_again(directory: Path) -> list[Row]:
    """The cells that the page of a sweep has distributions of. Raises ValueError where no cell has a rate."""
    return [row for _, own in _compared(panels(load_results(directory))) for row in own.values()]


def served(directory: Path, row: Row) -> Run:
    """A cell of a sweep, simulated once more. Raises ValueError where it would not be the same run any more."""
    key = row["cell"]
    file = directory / CELLS / f"{key}.json"
    try:
        document = read_json(file)
        config = checked(RunConfig, document.get("config") if isinstance(document, dict) else None, f"{file}, config")
        if fingerprint(config)[: len(key)] != key:
            raise ValueError(f"{file} was run by other code, or with other files, than there are now")
    except ValueError as error:
        raise ValueError(f"{error}; run the sweep again, or leave --distributions out") from None
    prepared = prepare(config)
    result = prepared.run()
    return Run(config=prepared.config, records=result.records, steps=result.steps, summary={})


def _compared(shown: Sequence[Panel]) -> list[tuple[Panel, dict[str, Row]]]:
    """Of each panel a row a policy at one rate, whole panels until there would be more than MOST_RUNS in all.

    Of the first no more than that where it has more policies.
    """
    found: list[tuple[Panel, dict[str, Row]]] = []
    for panel in shown:
        rate = common_rate(panel)
        own = {curve.label: rows[0] for curve in panel.curves if (rows := dict(curve.rows).get(rate))}
        if found and sum(len(rows) for _, rows in found) + len(own) > MOST_RUNS:
            break
        found.append((panel, dict(islice(own.items(), MOST_RUNS))))
    return found


def sections(rows: Sequence[Row], facets: Facets, reruns: Reruns | None) -> Iterator[Markup]:
    """Distributions of TTFT, TPOT and end-to-end time by panel; without ``reruns`` how to have them."""
    try:
        shown = panels(rows)
    except ValueError:  # no cell has a rate
        return
    compared = _compared(shown)
    yield tag("h2", "Distributions")
    if reruns is None:
        count = sum(len(own) for _, own in compared)
        yield tag("p", "A sweep keeps no single requests. This serves ", WHICH, f", {count} in all:", class_="note")
        yield tag("pre", "bulletsim report DIR --distributions")
        return
    cut = any(len(own) == MOST_RUNS < len(panel.curves) for panel, own in compared)
    left = f" The first {MOST_RUNS} policies." if cut else ""
    left += f" The first {len(compared)} of {len(shown)} panels." if len(compared) < len(shown) else ""
    yield tag("p", f"Of {WHICH}; served again for this page.{left}", class_="note")
    for panel, own in compared:
        runs = {label: reruns[row["cell"]] for label, row in own.items()}
        series = {label: facets.attributes("policy", row=row) for label, row in own.items()}
        title = f"{panel.title}: {common_rate(panel):g} requests/s per GPU"
        charts = tag("div", *distribution_charts(runs, facets.looks, series), class_="charts")
        parts = [tag("h3", title), tag("p", slo_text(panel.slo), class_="note"), charts]
        yield tag("section", *parts, class_="panel", **facets.attributes("device", "trace", row=panel.slo))
