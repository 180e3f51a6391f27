"""The page of a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sim.plots.knees import verdict
from sim.plots.series import panels
from sim.report.cells import cells_table, chosen, failures, settings_table, told
from sim.report.curves import frontier
from sim.report.facets import Facets, facets
from sim.report.markup import Markup, tag
from sim.report.page import page
from sim.report.reruns import Reruns, sections
from sim.results import Row, load_results
from sim.sweep import FAILURES, SPEC

HOW = (
    "Point at a mark for the settings of its cell, click it for all of them. Circles are knees: the highest rate at "
    "which 90 % of requests meet both limits, on the line through the tested points. Buttons filter; several of a row "
    "add up."
)


def sweep_page(directory: Path, reruns: Reruns | None = None) -> str:
    """With distributions of the cells that :func:`sim.report.reruns.served` gave, if there are any.

    Raises ValueError for a file in ``directory`` that is damaged.
    """
    rows = load_results(directory)
    title = f"Sweep {directory.name or directory.resolve().name}"
    return page(title, _body(title, directory, rows, reruns), cells=told(rows))


def _body(title: str, directory: Path, rows: Sequence[Row], reruns: Reruns | None) -> Iterator[Markup]:
    found = facets(rows)
    yield tag("h1", title)
    yield tag("p", f"{len(rows)} cells of {len(found.values['policy'])} policies.", class_="note")
    yield from comparison(rows, found)
    yield from sections(rows, found, reruns)
    yield tag("h2", "Cells")
    yield tag("details", tag("summary", f"All {len(rows)} cells"), cells_table(rows, found))
    failed = directory / FAILURES
    if failed.is_file():
        yield tag("details", tag("summary", "Cells that failed"), failures(failed))
    yield tag("h2", "To repeat it")
    spec = directory / SPEC
    if spec.is_file():
        yield tag("pre", f"bulletsim sweep {SPEC} --out DIR")
        yield tag("details", tag("summary", SPEC), tag("pre", spec.read_text(encoding="utf-8")))
    yield tag("details", tag("summary", "Settings that all cells share"), settings_table(told(rows)[0]))


def comparison(rows: Sequence[Row], found: Facets) -> Iterator[Markup]:
    """Verdicts, buttons and panels of rows that differ in rate; a sentence where none has one."""
    try:
        shown = panels(rows)
    except ValueError as error:
        yield tag("p", f"No curves: {error}.", class_="note")
        yield found.filters()
        yield chosen()
        return
    yield from (tag("p", verdict(panel), class_="lead") for panel in shown)
    yield tag("h2", "Frontier and latency")
    yield tag("p", HOW, class_="note")
    yield found.filters()
    yield chosen()
    yield from frontier(shown, rows, found)
