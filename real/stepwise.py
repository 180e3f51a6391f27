"""A run step by step: which steps ran beside others, how long against the prediction, and what the host added.

Two steps run beside each other where their flights, from the loop's decision to its notice, overlap on one instance,
or on one device that instances share: that is when the simulator slows them. Transfers use no SMs and run beside
nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiler.work import Work
from real.launches import HOST_PARTS, LaunchLog
from sim.records import Records, StepLog

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

Kind = Literal["prefill", "decode", "mixed", "transfer"]
KINDS: tuple[Kind, ...] = ("prefill", "decode", "mixed", "transfer")


def kind_of(work: Work) -> Kind:
    """What sort of launch ``work`` is."""
    if work.kv_transfer_tokens:
        return "transfer"
    if not work.prefill:
        return "decode"
    return "mixed" if work.decode_requests else "prefill"


def kinds(steps: StepLog) -> Rows:
    """The index in KINDS of each step, shape (n,)."""
    prefills, decodes = steps.prefill_requests > 0, steps.decode_requests > 0
    number = np.where(prefills, np.where(decodes, KINDS.index("mixed"), KINDS.index("prefill")), KINDS.index("decode"))
    return np.where(steps.sms == 0, KINDS.index("transfer"), number).astype(np.int64)


class Pairs(NamedTuple):
    """``row`` and ``peer`` were in flight together; all of shape (k,), both ways round.

    seconds: of that, while the device was at ``row``; may be 0.
    """

    row: Rows
    peer: Rows
    seconds: Floats


def beside(steps: StepLog, launches: LaunchLog | None = None, *, one_device: bool = False) -> Pairs:
    """Every step with each of its co-runners; without ``launches`` the device is at a step for all of its flight.

    one_device: whether steps of other instances are among them.
    """
    begin_s = steps.start_s if launches is None else launches.begin_s
    finish_s = steps.end_s if launches is None else launches.finish_s
    found = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
    computing = steps.sms > 0
    places = sorted(set(zip(steps.instance[computing].tolist(), steps.lane[computing].tolist(), strict=True)))
    for mine, other in permutations(places, 2):
        if one_device or mine[0] == other[0]:
            rows, others = (
                np.flatnonzero(computing & (steps.instance == instance) & (steps.lane == lane))
                for instance, lane in (mine, other)
            )
            found.append(_overlaps(rows, others, steps, begin_s, finish_s))
    row, peer, seconds = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Pairs(row, peer, seconds)


def _overlaps(mine: Rows, others: Rows, steps: StepLog, begin_s: Floats, finish_s: Floats) -> Pairs:
    """Overlaps of one lane's steps with another's, whose flights follow one another."""
    others = others[np.argsort(steps.start_s[others], kind="stable")]
    first = np.searchsorted(steps.end_s[others], steps.start_s[mine], side="right")
    last = np.searchsorted(steps.start_s[others], steps.end_s[mine], side="left")
    count = np.maximum(last - first, 0)
    row = np.repeat(mine, count)
    place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    peer = others[place]
    seconds = np.minimum(steps.end_s[peer], finish_s[row]) - np.maximum(steps.start_s[peer], begin_s[row])
    together = np.minimum(steps.end_s[peer], steps.end_s[row]) > np.maximum(steps.start_s[peer], steps.start_s[row])
    return Pairs(row[together], peer[together], np.maximum(seconds[together], 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGroup:
    """Steps of one lane on one share (None: on all), alone or beside another lane's; measured over predicted durations.

    measured_s, predicted_s: sums, from decision to notice. ratio_*: quantiles of measured / predicted.
    error: (sum predicted - sum measured) / sum measured. weighted_error: sum |predicted - measured| / sum measured.
    device_ratio: median of the time that the device was at it over the predicted one, None where unknown.
    """

    lane: str
    sms: int | None
    beside: bool
    count: int
    measured_s: float
    predicted_s: float
    ratio_p10: float | None
    ratio_p50: float | None
    ratio_p90: float | None
    error: float | None
    weighted_error: float | None
    device_ratio: float | None


ALL = -1
"""Stands for all shares where groups are put in order."""


def step_groups(runs: list[tuple[StepLog, LaunchLog | None]], *, one_device: bool = False) -> tuple[StepGroup, ...]:
    """The groups of all ``runs`` together, by lane, company (as of :func:`beside`) and share; on all shares first."""
    found: dict[tuple[str, bool, int], list[tuple[Floats, Floats, Floats]]] = {}
    for steps, launches in runs:
        duration_s = steps.end_s - steps.start_s
        device_s = np.full(len(steps), np.nan) if launches is None else launches.device_s
        company = np.zeros(len(steps), np.bool_)
        company[beside(steps, launches, one_device=one_device).row] = True
        present = zip(steps.lane.tolist(), steps.sms.tolist(), company.tolist(), strict=True)
        for lane, sms, accompanied in sorted(set(present)):
            rows = (steps.lane == lane) & (steps.sms == sms) & (company == accompanied)
            columns = (duration_s[rows], steps.predicted_s[rows], device_s[rows])
            for share in (sms, ALL):
                found.setdefault((steps.lane_names[lane], accompanied, share), []).append(columns)
    groups = []
    for (lane_name, accompanied, share), parts in sorted(found.items()):
        measured, predicted, device = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        shown = None if share == ALL else share
        groups.append(_group(lane_name, shown, accompanied, measured, predicted, device))
    return tuple(groups)


def _group(lane: str, sms: int | None, company: bool, measured: Floats, predicted: Floats, device: Floats) -> StepGroup:
    known = predicted > 0
    ratios = measured[known] / predicted[known]
    p10, p50, p90 = np.quantile(ratios, (0.1, 0.5, 0.9)).tolist() if len(ratios) else (None, None, None)
    on_device = (device[known] / predicted[known])[~np.isnan(device[known])]
    total, expected = float(measured.sum()), float(predicted.sum())
    return StepGroup(
        lane=lane,
        sms=sms,
        beside=company,
        count=len(measured),
        measured_s=total,
        predicted_s=expected,
        ratio_p10=p10,
        ratio_p50=p50,
        ratio_p90=p90,
        error=(expected - total) / total if total > 0 else None,
        weighted_error=float(np.abs(predicted - measured).sum()) / total if total > 0 else None,
        device_ratio=float(np.median(on_device)) if len(on_device) else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How far the lanes that use SMs, of all instances, were busy at once in one run.

    both_s, either_s: seconds in which two or more of them, and one or more, were busy. busy_s: of each lane.
    processor_s: processor time of all threads of each lane; None on a GPU and in the simulator. span_s: first begin to
        last finish.
    """

    run: str
    both_s: float
    either_s: float
    span_s: float
    busy_s: Mapping[str, float]
    processor_s: Mapping[str, float] | None


def overlap(run: str, steps: StepLog, launches: LaunchLog | None) -> Overlap:
    """The overlap of one run, called ``run``: of device intervals, or of flights where there are no ``launches``."""
    begin_s = steps.start_s if launches is None else launches.begin_s
    finish_s = steps.end_s if launches is None else launches.finish_s
    lanes = lane_rows(steps)
    computing = np.flatnonzero(steps.sms > 0)
    times = np.concatenate([begin_s[computing], finish_s[computing]])
    order = np.argsort(times, kind="stable")
    change = np.concatenate([np.ones(len(computing), np.int64), -np.ones(len(computing), np.int64)])
    busy, lengths = np.cumsum(change[order])[:-1], np.diff(times[order])
    processor_s = None
    if launches is not None and len(launches) and not np.isnan(launches.processor_s[computing]).any():
        processor_s = {name: float(launches.processor_s[rows].sum()) for name, rows in lanes.items()}
    return Overlap(
        run=run,
        both_s=float(lengths[busy >= 2].sum()),
        either_s=float(lengths[busy >= 1].sum()),
        span_s=float(times.max() - times.min()) if len(times) else 0.0,
        busy_s={name: float((finish_s[rows] - begin_s[rows]).sum()) for name, rows in lanes.items()},
        processor_s=processor_s,
    )


def lane_rows(steps: StepLog) -> dict[str, Rows]:
    """Rows of each lane that uses SMs, by its name, with the instance's number where there are several."""
    several = len(np.unique(steps.instance)) > 1
    found: dict[str, Rows] = {}
    for instance in np.unique(steps.instance):
        for lane, name in enumerate(steps.lane_names):
            rows = np.flatnonzero((steps.instance == instance) & (steps.lane == lane) & (steps.sms > 0))
            if len(rows):
                found[f"{name} {instance}" if several else name] = rows
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """Seconds of one part of the host's time (real.launches) over the launches of a lane."""

    lane: str
    part: str
    count: int
    mean_s: float
    p50_s: float
    p99_s: float


def host_times(runs: list[tuple[Records, StepLog, LaunchLog]]) -> tuple[HostTime, ...]:
    """Host time by lane and part, over all ``runs`` together."""
    found: dict[str, list[dict[str, Floats]]] = {}
    for records, steps, launches in runs:
        parts = launches.host_s(records.arrival_s)
        for lane, name in enumerate(steps.lane_names):
            rows = steps.lane == lane
            if rows.any():
                found.setdefault(name, []).append({part: seconds[rows] for part, seconds in parts.items()})
    return tuple(
        _host_time(lane, part, np.concatenate([columns[part] for columns in several]))
        for lane, several in sorted(found.items())
        for part in HOST_PARTS
    )


def _host_time(lane: str, part: str, seconds: Floats) -> HostTime:
    p50, p99 = np.quantile(seconds, (0.5, 0.99)).tolist()
    return HostTime(lane=lane, part=part, count=len(seconds), mean_s=float(seconds.mean()), p50_s=p50, p99_s=p99)
