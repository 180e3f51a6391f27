"""Settings that nothing else beats: throughput against latency within an SLO, searched by optuna.

Each trial is a run with settings and a rate that optuna's multi-objective tree-structured Parzen estimator proposes
(Ozaki et al., JAIR 2022) from the trials before: it raises the throughput, lowers the latency, and is told how far a
run is from the target attainment. Trials are proposed in batches of a fixed size, so that the same seed gives the same
trials on any number of processes; they are cells of a sweep, so that a search that was stopped goes on, and its
directory is one.
"""

from __future__ import annotations

import importlib
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from sim.config import PolicySettings, RunConfig
from sim.fanout import HERE, Fanout
from sim.metrics import TARGET_ATTAINMENT
from sim.results import Row
from sim.rundir import replacing, write_json
from sim.simulate import CannotRun, check_all, measure_together
from sim.sweep import Progress, run_sweep
from sim.sweep_cells import Cell

BATCH = 8
TUNING = "tuning.json"
THROUGHPUT = "requests_per_s_per_gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Varied:
    """A setting that is searched over: a range, whole or not, on a log scale or not; or a list of choices."""

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __str__(self) -> str:
        """The text that :func:`varied` reads."""
        if self.choices:
            return f"{self.name}={','.join(map(_spelled, self.choices))}"
        return f"{self.name}={self.low}:{self.high}{':log' if self.log else ''}"

    def suggest(self, trial: Any) -> Any:
        """A value for an optuna trial."""
        if self.choices:
            return trial.suggest_categorical(self.name, self.choices)
        if self.whole:
            return trial.suggest_int(self.name, self.low, self.high, log=self.log)
        return float(f"{trial.suggest_float(self.name, self.low, self.high, log=self.log):.6g}")


def varied(text: str) -> Varied:
    """The setting that ``budget_tokens=256:4096``, ``batch_tokens=256:4096:log`` or ``lend=true,false`` spells.

    A range has whole values where both ends are whole. Raises ValueError for text that spells none.
    """
    name, equals, values = text.partition("=")
    parts = values.split(":")
    try:
        if not equals or not name or len(parts) > 3 or (len(parts) == 3 and parts[2] != "log"):
            raise ValueError
        if len(parts) == 1:
            choices = tuple(_plain(part) for part in values.split(","))
            if len(set(choices)) < 2:
                raise ValueError
            return Varied(name=name, choices=choices)
        low, high = (json.loads(part) for part in parts[:2])
        if bool in (type(low), type(high)) or not -math.inf < low < high < math.inf or (len(parts) == 3 and low <= 0):
            raise ValueError
    except (ValueError, TypeError):
        raise ValueError(
            f"{text!r} varies nothing; give NAME=LOW:HIGH, NAME=LOW:HIGH:log with LOW above 0, or NAME=ONE,OTHER"
        ) from None
    return Varied(name=name, low=low, high=high, log=len(parts) == 3)


def _spelled(choice: Any) -> str:
    return choice if isinstance(choice, str) else json.dumps(choice)


def _plain(text: str) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str | None) else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a search found: all rows of finished trials, those that nothing beats, and how many trials failed.

    front: by throughput, the highest first; each keeps the target attainment, and no other that does has both a higher
    throughput and a lower latency.
    """

    rows: Sequence[Row]
    front: Sequence[Row]
    failed: int


class Tuned(BaseModel):
    """tuning.json: the question, spelled as on the command line, how many trials there were, and cells of the front."""

    vary: list[str]
    rates: str
    minimise: str
    target: float
    trials: int
    failed: int
    front: list[str]
    config: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuner:
    """A search around the run ``base``, over settings of its policy and over ``rate``, in requests/s over all GPUs.

    latency: the column of a sweep's results that is to be low, such as ttft_p90_s. target: attainment to keep.
    """

    base: RunConfig
    settings: Sequence[Varied]
    rate: Varied
    latency: str
    target: float = TARGET_ATTAINMENT

    def __post_init__(self) -> None:
        names = [self.rate.name, *(one.name for one in self.settings)]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise ValueError(f"{name} is varied twice; keep one range of it")
        if not 0 < self.target <= 1:
            raise ValueError(f"target is {self.target:g}; give a share above 0 and at most 1, such as 0.9")

    def run(
        self,
        directory: Path,
        trials: int,
        *,
        fanout: Fanout = HERE,
        progress: Progress = lambda done, total: None,
    ) -> Tuning:
        """So many trials, in ``directory``, a sweep's. Raises ValueError where optuna is absent or no trial can run."""
        optuna = _optuna()
        sampler = optuna.samplers.TPESampler(seed=self.base.seed, multivariate=True, constant_liar=True)
        study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
        cells: dict[str, Cell] = {}
        failed = 0
        while (made := len(study.trials)) < trials:
            asked = [study.ask() for _ in range(min(BATCH, trials - made))]
            proposed = [self._cell(trial) for trial in asked]
            runnable = [cell for cell in proposed if _runs(cell)]
            if not runnable and not cells:
                check_all([proposed[0].config])
            earlier = made - len(cells)
            cells |= {cell.key: cell for cell in runnable}
            done = run_sweep(
                list(cells.values()),
                directory,
                run=measure_together,
                fanout=fanout,
                progress=_after(earlier, progress, trials),
            )
            rows = {row["cell"]: row for row in done.rows}
            for trial, cell in zip(asked, proposed, strict=True):
                failed += not self._tell(study, trial, rows.get(cell.key))
            progress(len(study.trials), trials)
        found = Tuning(rows=list(done.rows), front=self.front(done.rows), failed=failed)
        with replacing(directory / TUNING) as partial:
            write_json(partial, self._told(found).model_dump())
        return found

    def _told(self, found: Tuning) -> Tuned:
        return Tuned(
            vary=list(map(str, self.settings)),
            rates=f"{self.rate.low:g}:{self.rate.high:g}",
            minimise=self.latency,
            target=self.target,
            trials=len(found.rows),
            failed=found.failed,
            front=[row["cell"] for row in found.front],
            config=self.base.model_dump(mode="json"),
        )

    def front(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that keep the target and that none which does beats in throughput and in latency."""
        kept = [row for row in rows if self._values(row) and _short(row, self.target) <= 0]
        kept.sort(key=lambda row: (-row[THROUGHPUT], row[self.latency]))
        found: list[Row] = []
        for row in kept:
            if not found or row[self.latency] < found[-1][self.latency]:
                found.append(row)
        return found

    def _cell(self, trial: Any) -> Cell:
        settings = {one.name: one.suggest(trial) for one in self.settings}
        rate = self.rate.suggest(trial)
        policy = PolicySettings(name=self.base.policy.name, settings={**self.base.policy.settings, **settings})
        config = self.base.model_copy(update={"policy": policy, "rate": float(rate)})
        shown = ", ".join(f"{name}={value}" for name, value in settings.items())
        return Cell(label=f"{policy.name} {shown}", config=config, point={**settings, "rate": rate})

    def _values(self, row: Row) -> tuple[float, float] | None:
        values = row[THROUGHPUT], row.get(self.latency)
        return None if None in values else values  # type: ignore[return-value]

    def _tell(self, study: Any, trial: Any, row: Row | None) -> bool:
        values = row and self._values(row)
        if row is None or values is None:
            study.tell(trial, state=_optuna().trial.TrialState.FAIL)
            return False
        trial.set_constraint("attainment", _short(row, self.target))
        study.tell(trial, values)
        return True


def _after(earlier: int, progress: Progress, trials: int) -> Progress:
    """What a batch tells, counted from the first trial."""
    return lambda finished, total: progress(earlier + finished, trials)


def _short(row: Mapping[str, Any], target: float) -> float:
    """By how much a run lacks the target attainment; 0 or less where it keeps it, or has no SLO."""
    return 0.0 if row["attainment"] is None else target - float(row["attainment"])


def _runs(cell: Cell) -> bool:
    try:
        check_all([cell.config])
    except CannotRun:
        return False
    return True


def _optuna() -> Any:
    try:
        optuna = importlib.import_module("optuna")
    except ModuleNotFoundError:
        raise ValueError("tuning needs the extra 'tune': pip install 'bulletsim[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna
