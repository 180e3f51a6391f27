"""Many runs, on as many processes or machines as there are; resumable, one row each at the end.

Starting the same sweep again, or a larger one, runs only the cells that have no file yet (:mod:`sim.cellfiles`).
Cells that fail are listed and do not stop the others; an interrupt keeps what is done. Cells that differ in nothing
but what is computed from records afterwards are simulated once: in the window of the metrics and, where the policy
does not read it, in the SLO.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sim.cellfiles import CELLS, check_directory, store, stored
from sim.config import RunConfig
from sim.fanout import HERE, Fanout, fan_out
from sim.metrics import Metrics
from sim.results import Row, row, write_results
from sim.rundir import replacing, write_json
from sim.simulate import CannotRun, check_all, measure_together, simulated
from sim.sweep_cells import Cell
from traces.progress import untold

SPEC = "spec.yaml"
FAILURES = "failures.json"

Runner = Callable[[Sequence[RunConfig]], Sequence[Metrics]]
"""Measures runs that one simulation serves."""
Progress = Callable[[int, int], None]

LOST = "its process died, killed or out of memory"
CHANGED = "code or files are others where it ran than where the sweep began; start it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A cell that raised, and what. ``shown`` is its label with its grid point."""

    cell: str
    policy: str
    rate: float | None
    error: str
    shown: str
    point: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        settings = dict(self.point)
        return {"cell": self.cell, "policy": self.policy, "rate": self.rate, "settings": settings, "error": self.error}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What a sweep left: rows of finished cells in the cells' order, failures, how many had been done before."""

    rows: Sequence[Row]
    failures: Sequence[Failure]
    resumed: int


@dataclass(frozen=True, slots=True)
class Simulation:
    """Cells that one simulation serves, and their keys."""

    cells: tuple[Cell, ...]
    keys: tuple[str, ...]


def check_cells(cells: Sequence[Cell], where: str, progress: Callable[[float], None] = untold) -> None:
    """Raises ValueError, beginning with ``where``, unless every cell can start; ``progress`` hears how far it is."""
    try:
        check_all([cell.config for cell in cells], progress)
    except CannotRun as error:
        cell = cells[error.place]
        raise ValueError(f"{where}{cell.line_text(str(error))}: {cell.shown}: {error}") from None


def unfinished(cells: Mapping[str, Cell], directory: Path) -> list[Simulation]:
    """The simulations that it takes to finish the cells, which come by their keys, in the cells' order."""
    together: dict[str, list[tuple[Cell, str]]] = {}
    for key, cell in cells.items():
        if stored(directory, key) is None:
            together.setdefault(simulated(cell.config).model_dump_json(), []).append((cell, key))
    return [Simulation(*zip(*members, strict=True)) for members in together.values()]


def run_sweep(
    cells: Sequence[Cell],
    directory: Path,
    *,
    run: Runner = measure_together,
    spec: Path | None = None,
    fanout: Fanout = HERE,
    progress: Progress | None = None,
) -> Sweep:
    """Runs the cells that ``directory`` lacks and writes its results.parquet, failures.json and spec.yaml.

    ``run`` must be importable wherever ``fanout`` runs it. ``progress`` hears (finished, all) cells, first of those
    that had been done before. On KeyboardInterrupt the results so far are written before it goes on.
    """
    check_directory(directory)
    (directory / CELLS).mkdir(parents=True, exist_ok=True)
    if spec is not None and spec.resolve() != (directory / SPEC).resolve():
        with replacing(directory / SPEC) as copy:
            shutil.copyfile(spec, copy)
    by_key = {cell.key: cell for cell in cells}
    todo = unfinished(by_key, directory)
    done = resumed = len(cells) - sum(len(one.cells) for one in todo)
    tell = progress or (lambda finished, total: None)
    failures: list[Failure] = []
    try:
        tell(done, len(cells))
        for one, error in _outcomes(todo, directory, run, fanout):
            if error is not None:
                failures += [_failure(cell, key, error) for cell, key in zip(one.cells, one.keys, strict=True)]
            done += len(one.cells)
            tell(done, len(cells))
    finally:
        order = list(by_key)
        failures.sort(key=lambda failure: order.index(failure.cell))  # processes finish in any order
        found = ((key, cell, stored(directory, key)) for key, cell in by_key.items())
        rows = [row(cell, key, metrics) for key, cell, metrics in found if metrics is not None]
        write_results(directory, rows)
        _write_failures(directory, failures)
    return Sweep(rows=rows, failures=failures, resumed=resumed)


def _outcomes(
    todo: Sequence[Simulation], directory: Path, run: Runner, fanout: Fanout
) -> Iterator[tuple[Simulation, str | None]]:
    """Each simulation with its error, None where its cells are on disk."""
    if fanout.backend == "local":
        # Whoever ran a cell stores it, so that it survives the process that collects outcomes.
        for number, error in fan_out(partial(_run_here, run, directory), todo, fanout):
            yield todo[number], LOST if error is None else error or None
        return
    for number, outcome in fan_out(partial(_run, run), todo, fanout):
        if isinstance(outcome, list):
            _store(todo[number], outcome, directory)
        yield todo[number], LOST if outcome is None else outcome if isinstance(outcome, str) else None


def _run_here(run: Runner, directory: Path, one: Simulation) -> str:
    """Runs and stores; the error, or nothing. Another process may have stored it in the meantime."""
    if all(stored(directory, key) is not None for key in one.keys):
        return ""
    outcome = _run(run, one)
    if isinstance(outcome, str):
        return outcome
    _store(one, outcome, directory)
    return ""


def _run(run: Runner, one: Simulation) -> list[Metrics] | str:
    """The metrics of each cell; an exception other than an interrupt becomes its text."""
    try:
        if any(cell.key != key for cell, key in zip(one.cells, one.keys, strict=True)):
            raise ValueError(CHANGED)
        return list(run([cell.config for cell in one.cells]))
    except Exception as error:  # whatever one cell raises, the others go on
        return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _store(one: Simulation, found: Sequence[Metrics], directory: Path) -> None:
    for cell, key, metrics in zip(one.cells, one.keys, found, strict=True):
        store(directory, key, cell.config, metrics)


def _failure(cell: Cell, key: str, error: str) -> Failure:
    return Failure(
        cell=key,
        policy=cell.label,
        rate=cell.config.rate,
        error=error,
        shown=cell.shown,
        point=cell.point,
    )


def _write_failures(directory: Path, failures: Sequence[Failure]) -> None:
    listed = directory / FAILURES
    if failures:
        with replacing(listed) as copy:
            write_json(copy, {"failures": [failure.to_dict() for failure in failures]})
    else:
        listed.unlink(missing_ok=True)
