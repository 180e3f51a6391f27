"""``bulletsim report``: one page of a run, several, a sweep, a search or a validation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sim.report.reruns import Reruns

PATHS = "A run, several, a folder of runs, a sweep, a tuning, a validation, or a .json of bulletsim capacity."
DISTRIBUTIONS = "Of a sweep: serve one cell a policy again, for distributions of its latencies."


def report(
    paths: Annotated[list[Path], typer.Argument(help=PATHS)],
    out: Annotated[Path | None, typer.Option(help="The page to write (default: report.html in the directory).")] = None,
    distributions: Annotated[bool, typer.Option("--distributions", help=DISTRIBUTIONS)] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Write one HTML page that needs no other file and no network."""
    from cli.output import print_json, shares
    from cli.writable import check_writable
    from sim.report.sources import Kind, kind_of, simulated_page
    from sim.rundir import replacing

    kind = kind_of(paths)
    target = out or _beside(paths)
    if target.is_dir() or target.suffix != ".html":
        raise ValueError(f"{target}: a page ends in .html; choose another --out")
    if distributions and kind is not Kind.sweep:
        raise ValueError(f"--distributions is of a sweep, and {paths[0]} is a {kind}; leave it out")
    check_writable(target)
    if kind is Kind.validation:
        text = _validation(paths[0], quiet=quiet or json)
    else:
        again = _again(paths[0], quiet=quiet or json) if distributions else None
        with shares("making the page", quiet=quiet or json) as tell:
            text = simulated_page(paths, kind, again, tell)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as partial:
        partial.write_text(text, encoding="utf-8")
    if json:
        print_json({"kind": str(kind), "file": str(target), "bytes": target.stat().st_size})
    else:
        print(target)


def _again(directory: Path, *, quiet: bool) -> Reruns:
    from cli.output import progress
    from sim.report.reruns import served, to_serve_again

    rows = to_serve_again(directory)
    found = {}
    with progress("serving again", len(rows), quiet=quiet) as tell:
        for row in rows:
            found[row["cell"]] = served(directory, row)
            tell(len(found), "cells")
    return found


def _validation(directory: Path, *, quiet: bool) -> str:
    from cli.validate import check_torch, teller

    check_torch("the page of a validation")
    from real.report.again import validation_page

    return validation_page(directory, teller(quiet))


def _beside(paths: list[Path]) -> Path:
    if len(paths) > 1:
        raise ValueError("give --out, such as comparison.html: a page of several runs is in none of their directories")
    return paths[0] / "report.html" if paths[0].is_dir() else paths[0].with_suffix(".html")
