"""What a report can be of, and which of these a path is."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from sim.report.capacities import capacity_page, is_capacity
from sim.report.reruns import Reruns
from sim.report.runs import runs_page
from sim.report.sweeps import sweep_page
from sim.report.tunings import tuning_page
from sim.results import RESULTS
from sim.rundir import CONFIG, REQUESTS, load_run
from sim.tuning import TUNING
from traces.progress import Progress, part, untold

VALIDATION = "plan.json"
READ = 0.6
"""Share of making a page of runs that is done when they have been read."""
EXPECTED = (
    f"give a run ({CONFIG} and {REQUESTS} in it), several, a folder of runs, a sweep ({RESULTS}), a search by "
    f"bulletsim tune ({TUNING}), a validation ({VALIDATION}), or a .json file that bulletsim capacity --json printed"
)


class Kind(StrEnum):
    """What a page is of."""

    run = "run"
    comparison = "comparison"
    sweep = "sweep"
    tuning = "tuning"
    capacity = "capacity"
    validation = "validation"


def kind_of(paths: Sequence[Path]) -> Kind:
    """Raises ValueError for a path that is none of these, or one among several that is no run."""
    if len(paths) > 1:
        other = next((path for path in paths if not _is_run(path)), None)
        if other is not None:
            raise ValueError(f"{other} is not a run, and several runs are compared; give directories of runs")
        return Kind.comparison
    (path,) = paths
    if is_capacity(path):
        return Kind.capacity
    marks = {Kind.validation: VALIDATION, Kind.tuning: TUNING, Kind.sweep: RESULTS}
    found = next((kind for kind, name in marks.items() if (path / name).is_file()), None)
    if found is not None:
        return found
    if _is_run(path):
        return Kind.run
    if path.is_dir() and _runs_in(path):
        return Kind.comparison
    missing = "does not exist" if not path.exists() else "is nothing that a report can be of"
    raise ValueError(f"{path} {missing}; {EXPECTED}")


def simulated_page(paths: Sequence[Path], kind: Kind, reruns: Reruns | None = None, progress: Progress = untold) -> str:
    """The page of all kinds but a validation, which only ``real`` can read. Raises ValueError for damaged files.

    ``reruns`` are cells of a sweep that were served again, whose distributions its page has then. ``progress`` hears
    how far it is with a page of runs.
    """
    if kind is Kind.sweep:
        return sweep_page(paths[0], reruns)
    if kind is Kind.tuning:
        return tuning_page(paths[0])
    if kind is Kind.capacity:
        return capacity_page(paths[0])
    directories = _runs_in(paths[0]) if kind is Kind.comparison and len(paths) == 1 else list(paths)
    runs = {}
    for place, (name, path) in enumerate(_named(directories).items()):
        runs[name] = load_run(
            path, part(progress, place * READ / len(directories), (place + 1) * READ / len(directories))
        )
    return runs_page(runs, part(progress, READ, 1))


def _is_run(path: Path) -> bool:
    return (path / CONFIG).is_file() and (path / REQUESTS).is_file()


def _runs_in(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if _is_run(path))


def _named(directories: Sequence[Path]) -> dict[str, Path]:
    """By their own names where these differ, else as they were given."""
    names = [path.resolve().name for path in directories]
    distinct = len(set(names)) == len(names)
    return {name if distinct else str(path): path for name, path in zip(names, directories, strict=True)}
