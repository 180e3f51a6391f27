"""A run on disk: a directory that holds its settings, one row a request, one row a step, and the summary.

It is written under a temporary name beside its target and renamed when complete, so that a directory with the
right name is always whole. Equal runs give equal bytes: no file holds a time of day.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiler.presets import device
from sim.columns import (
    Column,
    Columns,
    category_column,
    float_column,
    int_column,
    row_groups,
    text_column,
    write_columns,
    write_groups,
)
from sim.config import RunConfig, load_config, read_json
from sim.metrics import Metrics, summary_of
from sim.records import STATES, Records, RunResult, StepLog
from traces.progress import Progress, part, untold

CONFIG = "config.json"
REQUESTS = "requests.parquet"
STEPS = "steps.parquet"
SUMMARY = "summary.json"
TOKEN_TIMES = "token_times.parquet"

RECORDS_READ = 0.3
"""Share of reading a run that is done when its requests are there."""

_REQUEST_INTS = ("prompt_tokens", "output_tokens", "generated_tokens")
_REQUEST_FLOATS = ("scheduled_s", "first_token_s", "last_token_s", "itl_mean_s", "itl_max_s")
_REQUEST_COUNTS = ("preemptions", "cached_tokens", "instance")
_STEP_COUNTS = (
    "sms",
    "prefill_tokens",
    "prefill_requests",
    "decode_requests",
    "context_tokens",
    "layers",
    "predicted_s",
    "waiting",
    "free_blocks",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """A run read back. ``summary`` is the document in summary.json."""

    config: RunConfig
    records: Records
    steps: StepLog
    summary: Mapping[str, Any]

    @property
    def interrupted_s(self) -> float | None:
        """The simulated second at which Ctrl-C stopped it; None where it came to its end."""
        found = self.summary.get("interrupted_s")
        return float(found) if isinstance(found, int | float) else None


def check_target(target: Path, force: bool) -> None:
    """Raises ValueError where ``target`` may not be written: it exists, or ``force`` would delete no run."""
    if not os.path.lexists(target):
        return
    if not force:
        raise ValueError(f"{target} already exists; choose another --out, or replace it with --force")
    if not target.exists():
        raise ValueError(f"{target} is a link to nothing; remove it, or choose another --out")
    if not target.is_dir() or (any(target.iterdir()) and not (target / CONFIG).is_file()):
        raise ValueError(f"{target} is not a run (no {CONFIG} in it), so --force does not replace it")


def holds_whole_run(target: Path) -> bool:
    """Whether a run that came to its end is at ``target``; one whose summary is damaged is none."""
    try:
        found = read_json(target / SUMMARY)
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "interrupted_s" not in found


def hidden_beside(target: Path, what: str) -> Path:
    """A name beside ``target`` that no other process or thread uses."""
    return target.with_name(f".{target.name}.{what}-{os.getpid()}-{secrets.token_hex(4)}")


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A file to write, which becomes ``target`` if and only if the block succeeds; errors name ``target``."""
    partial = hidden_beside(target, "partial")
    try:
        yield partial
        partial.replace(target)
    except OSError as error:
        # A failed write has no file name, and the partial's would say nothing to a reader.
        raise OSError(error.errno, error.strerror or str(error), str(target)) from error
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def complete_or_absent(target: Path) -> Iterator[Path]:
    """A new directory to fill, which becomes ``target``, replacing it, if and only if the block succeeds.

    Errors name ``target`` or a file in it. A link at ``target`` is itself replaced; what it leads to stays.
    """
    target = Path(os.path.abspath(target))  # noqa: PTH100 - resolve() would write beside a link's destination
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = hidden_beside(target, "partial")
    partial.mkdir()
    try:
        yield partial
        _move_in(partial, target)
    except OSError as error:
        if error.filename not in (None, str(partial)) and partial not in Path(error.filename).parents:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(target)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _move_in(partial: Path, target: Path) -> None:
    replaced = hidden_beside(target, "replaced")
    moved = os.path.lexists(target)
    if moved:
        target.rename(replaced)
    try:
        partial.rename(target)
    except OSError as error:
        if moved:
            try:
                replaced.rename(target)
            except OSError:
                raise ValueError(f"{target}: {error.strerror}; the run that was there is now {replaced}") from error
        raise
    if not moved:
        return
    if replaced.is_symlink():
        replaced.unlink()
    else:
        shutil.rmtree(replaced, ignore_errors=True)


def write_run(
    target: Path,
    config: RunConfig,
    result: RunResult,
    metrics: Metrics,
    *,
    force: bool = False,
    progress: Progress = untold,
) -> None:
    """Leaves the run at ``target``; ``progress`` hears how far that is.

    Raises ValueError where ``target`` exists and ``force`` is off.
    """
    check_target(target, force)
    with complete_or_absent(target) as directory:
        fill_run(directory, config, result, metrics, progress)


def fill_run(
    directory: Path, config: RunConfig, result: RunResult, metrics: Metrics, progress: Progress = untold
) -> None:
    """Writes the run's files into an existing ``directory``."""
    (directory / CONFIG).write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")
    records, steps = result.records, result.steps
    share = len(records) / max(1, len(records) + len(steps))
    requests = _groups(len(records), lambda rows: _request_columns(records, rows), part(progress, 0, share))
    write_groups(directory / REQUESTS, requests)
    taken = _groups(len(steps), lambda rows: _step_columns(steps, rows), part(progress, share, 1))
    write_groups(directory / STEPS, taken)
    write_json(directory / SUMMARY, summary_of(result, metrics))
    if result.token_times:
        write_columns(directory / TOKEN_TIMES, _token_columns(result.token_times))


def _groups(
    count: int, columns: Callable[[slice], Mapping[str, Column]], progress: Progress
) -> Iterator[Mapping[str, Column]]:
    """Row groups of ``count`` rows, each once the one before it is written."""
    for rows in row_groups(count):
        progress(rows.start / max(1, count))
        yield columns(rows)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """``document`` as indented JSON; NaN and infinity, which JSON lacks, are a bug and raise ValueError."""
    path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def load_run(directory: Path, progress: Progress = untold) -> Run:
    """The run in ``directory``; ``progress`` hears how far the reading is.

    Raises ValueError naming the file or column that is missing or damaged.
    """
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory; give the --out of a bulletsim simulate")
    config, summary = load_config(directory / CONFIG), read_json(directory / SUMMARY)
    if not isinstance(summary, dict):
        raise ValueError(f"{directory / SUMMARY} is not the summary of a run; repeat the run from its {CONFIG}")
    records = load_records(directory / REQUESTS)
    progress(RECORDS_READ)
    steps = _load_steps(directory / STEPS, part(progress, RECORDS_READ, 1))
    return Run(config=config, records=records, steps=steps, summary=summary)


def device_sms(run: Run) -> int:
    """SMs (of a CPU: cores) of each device that an instance has; of a device that is not built in the most that a step
    asked for.
    """
    try:
        return run.config.instance_sms or device(run.config.device).sms
    except ValueError:
        return max(1, int(run.steps.sms.max(initial=1)))


def load_records(path: Path) -> Records:
    """The rows of a requests.parquet. Raises ValueError naming the file and column at fault."""
    file = Columns(path)
    codes, states = file.categories("state")
    unknown = set(states) - set(STATES)
    if unknown:
        raise ValueError(f"{path}, column state: {min(map(str, unknown))!r} is none of {', '.join(STATES)}")
    columns: dict[str, Any] = {name: file.ints(name) for name in (*_REQUEST_INTS, *_REQUEST_COUNTS)}
    columns |= {name: file.floats(name) for name in ("arrival_s", *_REQUEST_FLOATS)}
    return Records(
        request_id=file.texts("request_id"),
        state=np.array([STATES.index(state) for state in states], np.int8)[codes],
        reason=file.texts("reason"),
        **columns,
    )


def _request_columns(records: Records, rows: slice) -> dict[str, Column]:
    ints = {name: int_column(getattr(records, name)[rows]) for name in (*_REQUEST_INTS, *_REQUEST_COUNTS)}
    floats = {name: float_column(getattr(records, name)[rows]) for name in ("arrival_s", *_REQUEST_FLOATS)}
    texts = {
        "request_id": text_column(records.request_id[rows]),
        "state": category_column(records.state[rows], STATES),
        "reason": text_column(records.reason[rows]),
    }
    columns = ints | floats | texts
    order = (
        "request_id",
        "arrival_s",
        *_REQUEST_INTS,
        *_REQUEST_FLOATS,
        *_REQUEST_COUNTS,
        "state",
        "reason",
    )
    return {name: columns[name] for name in order}


def _step_columns(steps: StepLog, rows: slice) -> dict[str, Column]:
    columns = {
        "start_s": float_column(steps.start_s[rows]),
        "end_s": float_column(steps.end_s[rows]),
        "instance": int_column(steps.instance[rows]),
        "lane": category_column(steps.lane[rows], steps.lane_names),
    }
    for name in _STEP_COUNTS:
        values = getattr(steps, name)[rows]
        columns[name] = float_column(values) if name == "predicted_s" else int_column(values)
    return columns


def _load_steps(path: Path, progress: Progress) -> StepLog:
    file = Columns(path)
    progress(0.5)
    lanes, names = file.categories("lane")
    columns: dict[str, Any] = {name: file.ints(name) for name in _STEP_COUNTS if name != "predicted_s"}
    return StepLog(
        lane_names=names,
        start_s=file.floats("start_s"),
        end_s=file.floats("end_s"),
        instance=file.ints("instance"),
        lane=lanes,
        predicted_s=file.floats("predicted_s"),
        **columns,
    )


def _token_columns(token_times: Mapping[str, NDArray[np.float64]]) -> dict[str, Column]:
    times = list(token_times.values())
    ids = [request_id for request_id, seconds in token_times.items() for _ in range(len(seconds))]
    return {
        "request_id": text_column(ids),
        "token": int_column(np.concatenate([np.arange(len(seconds)) for seconds in times])),
        "time_s": float_column(np.concatenate(times)),
    }
