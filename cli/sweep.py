"""``bulletsim sweep``: a grid of runs from a YAML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sim.sweep import Sweep
    from sim.sweep_spec import Cell


def sweep(
    spec: Annotated[Path, typer.Argument(help="The grid; docs of sim/sweep_spec.py describe it.")],
    out: Annotated[Path, typer.Option(help="Directory of the results; finished cells in it are not run again.")],
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes (default: one a core).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the grid and count its cells, run none.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")] = False,
) -> None:
    """Run every combination of settings in a grid."""
    from cli.output import print_json
    from sim.sweep import check_directory
    from sim.sweep_spec import cells, read_spec

    found = cells(read_spec(spec), str(spec))
    check_directory(out)
    check_cells(found, str(spec))
    if dry_run:
        if json:
            print_json({"cells": len(found)})
        else:
            print(f"{len(found)} cells, all settings valid")
        return
    done = run_cells(found, out, spec=spec, jobs=jobs, quiet=quiet or json)
    if json:
        failures = [failure.to_dict() for failure in done.failures]
        print_json({"rows": list(done.rows), "failures": failures, "resumed": done.resumed, "out": str(out)})
    else:
        print(_tables(done))
        if not quiet:
            _report(done, out)
    if done.failures:
        note_failures(done)
        raise typer.Exit(1)


def check_cells(found: Sequence[Cell], where: str) -> None:
    """Whether every cell can start, before the first does; ValueError for one that cannot."""
    from sim.simulate import check_all

    check_all((f"{where}: {cell.shown}", cell.config) for cell in found)


def run_cells(
    found: Sequence[Cell], out: Path, *, spec: Path | None = None, jobs: int | None = None, quiet: bool
) -> Sweep:
    """The cells, run with progress shown."""
    import os

    from cli.output import progress
    from sim.simulate import measure
    from sim.sweep import run_sweep

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with progress("sweeping", len(found), quiet=quiet) as tell:
        return run_sweep(
            found, out, run=measure, spec=spec, jobs=jobs or cores, progress=lambda done, total: tell(done, "cells")
        )


def _tables(done: Sweep) -> str:
    """The knees of each policy on each workload; the plain count where no cell has a rate."""
    from cli.knees import knee_tables
    from sim.plots.series import panels

    timed = [row for row in done.rows if row["rate"] is not None]
    return knee_tables(panels(timed)) if timed else f"{len(done.rows)} cells finished"


def _report(done: Sweep, out: Path) -> None:
    from cli.output import note

    if done.resumed:
        note(f"{done.resumed} cells had been done before")
    note(f"results in {out}")


def note_failures(done: Sweep) -> None:
    """One line a failed cell, in the grid's order: no note but the outcome, so --quiet keeps it."""
    from cli.output import note

    for failure in done.failures:
        note(f"failed: {failure.shown}: {failure.error}")
