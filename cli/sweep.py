"""``bulletsim sweep``: a grid of runs from a YAML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.backends import Address, BackendOption, Jobs

if TYPE_CHECKING:
    from sim.fanout import Fanout
    from sim.sweep import Simulation, Sweep
    from sim.sweep_cells import Cell


def sweep(
    spec: Annotated[Path, typer.Argument(help="The grid, a YAML file; see docs/files.md.")],
    out: Annotated[Path, typer.Option(help="Directory of the results; finished cells in it are not run again.")],
    jobs: Jobs = None,
    backend: BackendOption = "local",
    address: Address = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and count cells, time a few, run none.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")] = False,
) -> None:
    """Run every combination of settings in a grid."""
    from cli.backends import fanout
    from cli.output import print_json, shares
    from sim.cellfiles import check_directory
    from sim.sweep import check_cells, unfinished
    from sim.sweep_cells import cells
    from sim.sweep_spec import read_spec

    where = fanout(backend, jobs, address)
    found = cells(read_spec(spec), str(spec))
    check_directory(out)
    with shares("checking cells", quiet=quiet or json) as tell:
        check_cells(found, str(spec), tell)
    if dry_run:
        _dry_run(found, unfinished({cell.key: cell for cell in found}, out), where, json=json, quiet=quiet)
        return
    done = run_cells(found, out, spec=spec, fanout=where, quiet=quiet or json)
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


def _dry_run(found: Sequence[Cell], todo: Sequence[Simulation], fanout: Fanout, *, json: bool, quiet: bool) -> None:
    from cli.output import duration, print_json, shares
    from sim.timing import estimate

    with shares("timing a few cells", quiet=quiet or json) as tell:
        timed = estimate(todo, tell)
    processes = fanout.jobs if fanout.backend == "local" else 1
    left = sum(len(one.cells) for one in todo)
    if json:
        print_json(
            {
                "cells": len(found),
                "left": left,
                "simulations": len(todo),
                "estimated_s": timed.seconds / processes,
                "processes": processes,
                "sampled": {"simulations": timed.sampled, "requests": timed.requests},
            }
        )
        return
    print(f"{len(found)} cells, all settings valid")
    if left < len(found):
        print(f"{len(found) - left} of them are done")
    if todo:
        shared = f"{left} cells in {len(todo)} simulations" if left > len(todo) else f"{left} simulations"
        print(f"about {duration(timed.seconds / processes)} in {processes} at a time: {shared}")
        print(f"(timed on the first {timed.requests} requests of {timed.sampled}, one a policy)")


def run_cells(
    found: Sequence[Cell], out: Path, *, spec: Path | None = None, fanout: Fanout | None = None, quiet: bool
) -> Sweep:
    """The cells, run with progress shown; by default on every core."""
    from cli import backends
    from cli.output import kept, progress
    from sim.simulate import measure_together
    from sim.sweep import run_sweep

    with kept(out, quiet=quiet), progress("sweeping", len(found), quiet=quiet) as tell:
        return run_sweep(
            found,
            out,
            run=measure_together,
            spec=spec,
            fanout=fanout or backends.fanout("local", None, None),
            progress=lambda done, total: tell(done, "cells"),
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
