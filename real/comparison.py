"""What was measured against what was simulated: by statistic, by request, by step, and in the order of policies.

For a statistic x of a run (the median TTFT, say), over the real runs that ran to their end:

    measured      = mean of x over the real runs, as the pace that the simulation goes at is a mean over them
    error         = |x simulated - measured| / measured
    repeatability = largest |x of one real run - x of another| / measured       absent with a single run

A headline statistic (the median of TTFT, TPOT or end-to-end time) is within where its error is at most the limit, or
at most the repeatability where that is larger. Where every real run was cut off, all sides are cut down to the
requests that finished in each of them, and rates and makespan are absent. Everything comes from run directories.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real.launches import LAUNCHES, LaunchLog, load_launches
from real.stepwise import HostTime, Overlap, StepGroup, host_times, overlap, step_groups
from sim.config import read_json
from sim.metrics import FINISHED, Distribution, distribution, e2e_s, tpot_s, ttft_s
from sim.records import Records
from sim.rundir import Run, load_run

Floats = NDArray[np.float64]

FACTS = "real.json"
LIMIT = 0.1
METRICS = {"ttft_s": ttft_s, "tpot_s": tpot_s, "e2e_s": e2e_s}
PARTS = ("mean", "p50", "p90", "p99")
WHOLE = ("requests_per_s", "tokens_per_s", "makespan_s")
HEADLINE = "p50"
ORDERED = (("ttft_s", "p50"), ("tpot_s", "mean"))
"""The statistics by which policies are put in order."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """One run: as sim.rundir reads it, with its launches and what real.json says, where it was a real one."""

    run: Run
    launches: LaunchLog | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.launches is not None and len(self.launches) != len(self.run.steps):
            raise ValueError(
                f"{LAUNCHES} has {len(self.launches)} rows and steps.parquet {len(self.run.steps)}; they are of one run"
            )

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return bool(self.facts.get("finished", True))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cell:
    """A policy at a rate in requests a second: one or more real runs, and the simulation of the same requests.

    outside_s: seconds of a launch, by its kind, that the simulation's latency model holds for the host's time outside
        the device.
    """

    policy: str
    rate: float
    real: tuple[Side, ...]
    simulated: Side
    outside_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.real:
            raise ValueError(f"{self.policy} at {self.rate:g} requests/s has no real run; a comparison needs one")

    @property
    def partial(self) -> bool:
        """Whether every real run was cut off."""
        return not any(side.finished for side in self.real)

    @property
    def used(self) -> tuple[Side, ...]:
        """The real runs that count: those that came to their end, or all where none did."""
        return self.real if self.partial else tuple(side for side in self.real if side.finished)

    @property
    def among(self) -> frozenset[str] | None:
        """Ids of the requests that statistics are over; None for all."""
        if not self.partial:
            return None
        sides = (*self.real, self.simulated)
        return frozenset.intersection(*(finished_ids(side.run.records) for side in sides))


def load_side(directory: Path) -> Side:
    """The run in ``directory``, real or simulated. Raises ValueError naming the file at fault."""
    run = load_run(directory)
    launches = load_launches(directory / LAUNCHES) if (directory / LAUNCHES).is_file() else None
    facts = read_json(directory / FACTS) if (directory / FACTS).is_file() else {}
    if not isinstance(facts, dict):
        raise ValueError(f"{directory / FACTS} holds no object; it is not of a real run")
    try:
        return Side(run=run, launches=launches, facts=facts)
    except ValueError as error:
        raise ValueError(f"{directory}: {error}") from None


def finished_ids(records: Records) -> frozenset[str]:
    """Ids of the requests that finished."""
    return frozenset(records.request_id[row] for row in np.flatnonzero(records.state == FINISHED))


def distributions(run: Run, records: Records, among: frozenset[str] | None) -> dict[str, Distribution | None]:
    """TTFT, TPOT and end-to-end time of ``records``, in the window of ``run``'s settings, over requests ``among``."""
    inside = run.config.window.value().mask(records)
    if among is not None:
        inside &= np.array([name in among for name in records.request_id], np.bool_)
    return {name: distribution(metric(records)[inside]) for name, metric in METRICS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """One number of a run in both worlds; seconds, or a second. None stands for what does not exist.

    part: ``mean``, ``p50``, ``p90``, ``p99``, or ``whole`` for a number of the whole run. runs: of each real run
    that counts. within: the verdict, of headline statistics only.
    """

    metric: str
    part: str
    simulated: float | None
    measured: float | None
    runs: tuple[float | None, ...]
    error: float | None
    repeatability: float | None
    within: bool | None = None

    @property
    def spread(self) -> float:
        """The largest difference between two real runs, in the statistic's unit; 0 with a single run."""
        known = [value for value in self.runs if value is not None]
        return max(known) - min(known) if known else 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Paired:
    """Requests that are in both worlds, one row each; measured is the median over the real runs that count, as one
    run may have held up one request.

    simulated, measured: of each of METRICS, seconds of shape (n,), NaN where a side has no value.
    """

    request_id: tuple[str, ...]
    simulated: Mapping[str, Floats]
    measured: Mapping[str, Floats]

    def errors(self, metric: str) -> Floats:
        """|simulated - measured| / measured of the requests that have both, shape (k,)."""
        simulated, measured = self.simulated[metric], self.measured[metric]
        known = ~np.isnan(simulated) & (measured > 0)
        return np.abs(simulated[known] - measured[known]) / measured[known]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """A cell compared. ``overlaps`` has the real runs that count, in order, then the simulated one."""

    cell: Cell
    limit: float
    statistics: tuple[Statistic, ...]
    paired: Paired
    steps: tuple[StepGroup, ...]
    overlaps: tuple[Overlap, ...]
    host: tuple[HostTime, ...]

    def statistic(self, metric: str, part: str) -> Statistic:
        return next(found for found in self.statistics if (found.metric, found.part) == (metric, part))

    @property
    def headlines(self) -> tuple[Statistic, ...]:
        return tuple(self.statistic(metric, HEADLINE) for metric in METRICS)


def compare(cell: Cell, limit: float = LIMIT) -> Comparison:
    """Everything there is to say of one cell; ``limit`` is the error that a headline statistic may have."""
    if not limit > 0:
        raise ValueError(f"limit is {limit}; it must be an error above 0, such as 0.1")
    used = cell.used
    logs = [(side.run.records, side.run.steps, side.launches) for side in used if side.launches is not None]
    runs = [(f"real {number}", side) for number, side in enumerate(used, 1)] + [("simulated", cell.simulated)]
    return Comparison(
        cell=cell,
        limit=limit,
        statistics=tuple(_statistics(cell, limit)),
        paired=paired(cell),
        steps=step_groups(
            [(side.run.steps, side.launches) for side in used], one_device=cell.simulated.run.config.shared_device
        ),
        overlaps=tuple(overlap(name, side.run.steps, side.launches) for name, side in runs),
        host=host_times(logs),
    )


def _statistics(cell: Cell, limit: float) -> list[Statistic]:
    among = cell.among
    simulated = _values(cell.simulated, among)
    runs = [_values(side, among) for side in cell.used]
    found = []
    for metric, part in simulated:
        values = tuple(run[metric, part] for run in runs)
        allowed = limit if part == HEADLINE else None
        found.append(judged(metric, part, simulated[metric, part], values, allowed))
    return found


def _values(side: Side, among: frozenset[str] | None) -> dict[tuple[str, str], float | None]:
    """Every statistic of one run, by (metric, part)."""
    found: dict[tuple[str, str], float | None] = {}
    for metric, values in distributions(side.run, side.run.records, among).items():
        found |= {(metric, part): None if values is None else getattr(values, part) for part in PARTS}
    summary, gpus = side.run.summary, side.run.config.gpus
    for name in WHOLE:
        value = summary.get(name) if name == "makespan_s" else summary.get(f"{name}_per_gpu")
        factor = 1 if name == "makespan_s" else gpus
        found[name, "whole"] = None if value is None or among is not None else value * factor
    return found


def judged(
    metric: str, part: str, simulated: float | None, runs: Sequence[float | None], limit: float | None
) -> Statistic:
    """A statistic with its error, and where there is a ``limit`` with its verdict."""
    known = [value for value in runs if value is not None]
    measured = fmean(known) if known else None
    error = repeatability = None
    if measured is not None and measured > 0:
        error = None if simulated is None else abs(simulated - measured) / measured
        repeatability = (max(known) - min(known)) / measured if len(known) > 1 else None
    within = None
    if limit is not None and error is not None:
        within = error <= max(limit, repeatability or 0.0)
    return Statistic(
        metric=metric,
        part=part,
        simulated=simulated,
        measured=measured,
        runs=tuple(runs),
        error=error,
        repeatability=repeatability,
        within=within,
    )


def paired(cell: Cell) -> Paired:
    """Requests of the simulation with their like in the real runs, in order of arrival."""
    ours = cell.simulated.run.records
    places = [{name: row for row, name in enumerate(side.run.records.request_id)} for side in cell.used]
    rows = [row for row, name in enumerate(ours.request_id) if any(name in place for place in places)]
    names = tuple(ours.request_id[row] for row in rows)
    measured = {}
    for metric, of in METRICS.items():
        columns = [
            _looked_up(of(side.run.records), place, names) for side, place in zip(cell.used, places, strict=True)
        ]
        measured[metric] = _median(np.array(columns).reshape(len(places), len(names)))
    simulated = {metric: of(ours)[rows] for metric, of in METRICS.items()}
    return Paired(request_id=names, simulated=simulated, measured=measured)


def _looked_up(values: Floats, place: Mapping[str, int], names: Sequence[str]) -> Floats:
    return np.array([values[place[name]] if name in place else math.nan for name in names], np.float64)


def _median(columns: Floats) -> Floats:
    """Median down the columns of shape (runs, n), NaN left out; NaN where there is nothing else."""
    found = np.full(columns.shape[1], math.nan)
    known = ~np.isnan(columns).all(axis=0)
    if known.any():
        found[known] = np.nanmedian(columns[:, known], axis=0)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedPair:
    """Two policies at a rate by one statistic: ``measured`` and ``simulated`` are the first's less the second's.

    tolerance: the larger of the two's spreads between real runs. equal: measured no further apart than that; such a
    pair has no order to get wrong. agree: equal, or in both worlds the same one is less.
    """

    first: str
    second: str
    measured: float
    simulated: float
    tolerance: float
    equal: bool
    agree: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Policies at one rate by one statistic, least first, in both worlds."""

    rate: float
    metric: str
    part: str
    measured: tuple[str, ...]
    simulated: tuple[str, ...]
    pairs: tuple[OrderedPair, ...]

    @property
    def agree(self) -> bool:
        return all(pair.agree for pair in self.pairs)


def orders(comparisons: Sequence[Comparison]) -> tuple[Order, ...]:
    """The order of policies at each rate that has two or more with a value in both worlds."""
    found = []
    for rate in sorted({comparison.cell.rate for comparison in comparisons}):
        for metric, part in ORDERED:
            here = {
                comparison.cell.policy: comparison.statistic(metric, part)
                for comparison in comparisons
                if comparison.cell.rate == rate
            }
            known = {name: value for name, value in here.items() if None not in (value.measured, value.simulated)}
            if len(known) > 1:
                found.append(_order(rate, metric, part, known))
    return tuple(found)


def _order(rate: float, metric: str, part: str, known: Mapping[str, Statistic]) -> Order:
    def least_first(world: str) -> tuple[str, ...]:
        return tuple(sorted(known, key=lambda name: getattr(known[name], world)))

    return Order(
        rate=rate,
        metric=metric,
        part=part,
        measured=least_first("measured"),
        simulated=least_first("simulated"),
        pairs=tuple(_ordered(one, other, known[one], known[other]) for one, other in combinations(known, 2)),
    )


def _ordered(first: str, second: str, one: Statistic, other: Statistic) -> OrderedPair:
    assert one.measured is not None
    assert other.measured is not None
    assert one.simulated is not None
    assert other.simulated is not None
    measured, simulated = one.measured - other.measured, one.simulated - other.simulated
    tolerance = max(one.spread, other.spread)
    equal = abs(measured) <= tolerance
    return OrderedPair(
        first=first,
        second=second,
        measured=measured,
        simulated=simulated,
        tolerance=tolerance,
        equal=equal,
        agree=equal or measured * simulated > 0,
    )
