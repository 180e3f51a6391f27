"""Many runs: in processes or one after the other, resumable, one row each at the end.

A finished cell is one small file named by the hash of its settings, of the code and of the files it reads,
renamed into place when whole. Starting the same sweep again, or a larger one, runs only what has no file yet.
Cells that fail are listed and do not stop the others; an interrupt keeps what is done.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from sim.columns import Columns, plain_column, write_columns
from sim.config import RunConfig
from sim.metrics import Metrics
from sim.records import STATES
from sim.rundir import replacing, write_json
from sim.sweep_spec import Cell

SPEC = "spec.yaml"
RESULTS = "results.parquet"
FAILURES = "failures.json"
CELLS = "cells"

Runner = Callable[[RunConfig], Metrics]
Progress = Callable[[int, int], None]
Row = Mapping[str, Any]

_STATISTICS = ("count", "mean", "p50", "p90", "p95", "p99")
_DISTRIBUTIONS = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "normalised_s", "queueing_s")
_GROUPS = ("states", "source_share", "reject_reasons")
_NEEDED: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("cell", "policy", "policy_name", "trace", "model", "device"), (str,)),
    **dict.fromkeys(("rate", "gpus", "tensor_parallel", "instances", "attainment"), (int, float)),
    **dict.fromkeys(("slo_ttft_s", "slo_ttft_per_token_s", "slo_ttft_floor_s", "slo_tpot_s"), (int, float)),
}


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


def check_directory(directory: Path) -> None:
    """Raises ValueError where ``directory`` holds something that is no sweep."""
    if directory.is_dir() and any(directory.iterdir()) and not (directory / CELLS).is_dir():
        raise ValueError(f"{directory} is not empty and holds no sweep; choose another --out")
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{directory} is not a directory; choose another --out")


def run_sweep(
    cells: Sequence[Cell],
    directory: Path,
    *,
    run: Runner,
    spec: Path | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Sweep:
    """Runs the cells that ``directory`` lacks and writes its results.parquet, failures.json and spec.yaml.

    ``run`` must be importable where ``jobs`` is above 1. ``progress`` hears (finished, all) cells. On
    KeyboardInterrupt the results so far are written before it goes on.
    """
    check_directory(directory)
    (directory / CELLS).mkdir(parents=True, exist_ok=True)
    if spec is not None and spec.resolve() != (directory / SPEC).resolve():
        with replacing(directory / SPEC) as partial:
            shutil.copyfile(spec, partial)
    todo = [cell for cell in cells if _stored(directory, cell) is None]
    resumed = len(cells) - len(todo)
    failures: list[Failure] = []
    place = {cell.key: place for place, cell in enumerate(cells)}
    try:
        for done, failure in enumerate(_outcomes(todo, directory, run, jobs), start=resumed + 1):
            if failure is not None:
                failures.append(failure)
            if progress is not None:
                progress(done, len(cells))
    finally:
        failures.sort(key=lambda failure: place[failure.cell])  # processes finish in any order
        rows = list(_rows(cells, directory))
        _write_results(directory, rows, failures)
    return Sweep(rows=rows, failures=failures, resumed=resumed)


def load_results(directory: Path) -> list[Row]:
    """The rows of a sweep, one a finished cell. Raises ValueError where there are none, or the file is another."""
    file = Columns(directory / RESULTS)
    absent = [name for name in _NEEDED if name not in file.names]
    if absent and len(file):
        raise ValueError(f"{directory / RESULTS} is not of a sweep: it has no column {absent[0]}; give a sweep's --out")
    if not len(file):
        raise ValueError(f"{directory / RESULTS} has no rows: no cell of this sweep has finished")
    columns = {name: file.values(name) for name in file.names}
    for name, kinds in _NEEDED.items():
        wrong = next((value for value in columns[name] if value is not None and not isinstance(value, kinds)), None)
        if wrong is not None:
            raise ValueError(f"{directory / RESULTS}, column {name}: {wrong!r} is not what a sweep writes there")
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _outcomes(todo: Sequence[Cell], directory: Path, run: Runner, jobs: int) -> Iterable[Failure | None]:
    if jobs == 1 or len(todo) < 2:
        return (_run_cell(cell, cell.key, directory, run) for cell in todo)
    return _parallel_outcomes(todo, directory, run, jobs)


def _parallel_outcomes(todo: Sequence[Cell], directory: Path, run: Runner, jobs: int) -> Iterator[Failure | None]:
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky import get_reusable_executor  # type: ignore[import-untyped]
    from joblib.externals.loky.process_executor import TerminatedWorkerError  # type: ignore[import-untyped]

    # One BLAS thread a process: as many as there are cores in each would fight for them.
    with parallel_config(backend="loky", inner_max_num_threads=1):
        pool = Parallel(n_jobs=jobs, batch_size=1, return_as="generator_unordered")
        failed: set[str] = set()
        try:
            with _interrupts_held():
                outcomes = pool(delayed(_run_cell)(cell, cell.key, directory, run) for cell in todo)
            for failure in outcomes:
                failed |= set() if failure is None else {failure.cell}
                yield failure
        except TerminatedWorkerError:
            # Which cell it was that killed its process, nobody can tell.
            get_reusable_executor(reuse=True, kill_workers=True).shutdown(kill_workers=True)
            lost = "a process died, killed or out of memory, with this cell or others undone; start the sweep again"
            for cell in todo:
                if cell.key not in failed and _stored(directory, cell) is None:
                    yield _failure(cell, cell.key, lost)
        except BaseException:
            # Ctrl-C and SIGTERM end here; workers hear neither, and would go on until they idle.
            get_reusable_executor(reuse=True, kill_workers=True).shutdown(kill_workers=True)
            raise


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started within never hear SIGINT, from their first instruction on; this one hears it afterwards.

    Ctrl-C reaches a whole group of processes. A worker that hears it while it imports prints a traceback; ending
    workers is the parent's part. The signal mask, unlike a handler, is kept through fork and exec.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # This helper process would be started within, and starting it lifts the mask.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_cell(cell: Cell, key: str, directory: Path, run: Runner) -> Failure | None:
    """Runs one cell and stores it as ``key``; an exception other than an interrupt becomes a Failure."""
    try:
        if cell.key != key:  # a worker has read other code or files than the sweep began with
            raise ValueError("code or files changed while the sweep ran; start it again")
        metrics = run(cell.config)
    except Exception as error:  # whatever one cell raises, the others go on
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return _failure(cell, key, message)
    with replacing(directory / CELLS / f"{key}.json") as partial:
        write_json(partial, {"config": cell.config.model_dump(mode="json"), "metrics": metrics.to_dict()})
    return None


def _failure(cell: Cell, key: str, error: str) -> Failure:
    return Failure(
        cell=key,
        policy=cell.label,
        rate=cell.config.rate,
        error=error,
        shown=cell.shown,
        point=cell.point,
    )


def _stored(directory: Path, cell: Cell) -> dict[str, Any] | None:
    """The metrics of a finished cell; None where it has not run, or its file is damaged and it must run again."""
    try:
        document = json.loads((directory / CELLS / f"{cell.key}.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    metrics = document.get("metrics") if isinstance(document, dict) else None
    return metrics if isinstance(metrics, dict) and _whole(metrics) else None


def _whole(metrics: Mapping[str, Any]) -> bool:
    """Whether these are the metrics that a run writes, each of its kind."""
    if metrics.keys() != {field.name for field in fields(Metrics)} or not isinstance(metrics["states"], dict):
        return False
    if metrics["states"].keys() != set(STATES):
        return False
    groups = [metrics[name] for name in _GROUPS]
    groups += [metrics[name] for name in _DISTRIBUTIONS if metrics[name] is not None]
    plain = [value for name, value in metrics.items() if name not in (*_DISTRIBUTIONS, *_GROUPS)]
    if not all(isinstance(group, dict) for group in groups):
        return False
    values = [*plain, *(value for group in groups for value in group.values())]
    return all(value is None or isinstance(value, int | float) for value in values)


def _rows(cells: Sequence[Cell], directory: Path) -> Iterator[Row]:
    for cell in cells:
        metrics = _stored(directory, cell)
        if metrics is not None:
            yield {"cell": cell.key, "policy": cell.label} | _settings(cell.config) | _measures(metrics)


def _settings(config: RunConfig) -> dict[str, Any]:
    document = config.model_dump(mode="json")
    policy, estimator = document.pop("policy"), document.pop("estimator")
    flat: dict[str, Any] = {}
    for name in ("slo", "window", "latency"):
        flat |= {f"{name}_{part}": value for part, value in document.pop(name).items()}
    del document["version"], document["trace_sha256"], flat["latency_model_sha256"]
    settings = json.dumps(policy["settings"], sort_keys=True)
    flat["estimator"] = None if estimator is None else json.dumps(estimator, sort_keys=True)
    return {"policy_name": policy["name"], "policy_settings": settings} | document | flat


def _measures(metrics: dict[str, Any]) -> dict[str, Any]:
    """A summary as flat columns: ttft_mean_s, ttft_p90_s and so on for distributions."""
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        if name in _DISTRIBUTIONS:
            stem = name.removesuffix("_s")
            given = value or {}
            flat |= {f"{stem}_{part}" + ("" if part == "count" else "_s"): given.get(part) for part in _STATISTICS}
        elif name == "states":
            flat |= {state: value[state] for state in STATES}
        elif name == "source_share":
            flat |= {f"share_{source}": share for source, share in value.items()}
        elif name == "reject_reasons":
            flat |= {f"rejected_{reason}": count for reason, count in value.items()}
        else:
            flat[name] = value
    return flat


def _write_results(directory: Path, rows: Sequence[Row], failures: Sequence[Failure]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with replacing(directory / RESULTS) as partial:
        write_columns(partial, {name: plain_column([row.get(name) for row in rows]) for name in names})
    listed = directory / FAILURES
    if failures:
        with replacing(listed) as partial:
            write_json(partial, {"failures": [failure.to_dict() for failure in failures]})
    else:
        listed.unlink(missing_ok=True)
