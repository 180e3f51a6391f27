"""Where the error comes from: the simulation repeated with one wrong thing after another put right.

The policy keeps the fitted model that it predicted with; what steps truly take is replaced by a corrected one:

    simulated    the fitted model
    host         and the host's time outside the device, as measured: its mean over launches of a kind
    kernels      and the time of steps that ran alone, times what was measured over predicted, by kind and share
    contention   and the time of steps beside another lane's, likewise
    rest         what then remains to the measured value: other decisions and batches, and noise

Each cause is what its substitution changed, so the five add up to the measured value exactly.

Which interval is compared with what. A launch's duration in the loop is the host's time outside the device (react,
decide, hand over, notice; real.launches) and the device's own, begin to finish. The fitted model's host constants were
measured as what a pass takes beyond its kernels, and on the device a pass contains that: an estimate as a whole stands
for begin to finish, and the host's time comes on top. Where a model's constants hold some of the outer host time too,
``outside_s`` says how many seconds of each launch.

Contention. A step that had A seconds of work when alone, of which it did t alone and the rest beside a co-runner that
the model says slows it s times, was slowed c s times in truth, with c = (overlapped seconds / s) / (A - t). Sums over
all such steps of a kind and share give its c: what processor sharing in the simulator turns into durations again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from profiler.latency import Estimate, LatencyModel
from profiler.specs import DeviceSpec, ModelSpec
from profiler.work import Work
from real.comparison import METRICS, Cell, Side, distributions
from real.stepwise import KINDS, beside, kind_of, kinds
from sim.executor import SimExecutor
from sim.records import Records, StepLog
from sim.simulate import Prepared, prepare

Floats = NDArray[np.float64]
Key = tuple[str, int | None]
"""A kind of launch and the SMs it ran on; None: whatever they were."""

FEWEST = 10
"""Steps that a share needs for a ratio of its own; with fewer it takes that of its kind.

A share that never runs alone cannot tell kernels from contention: what its kind's ratio leaves counts as contention.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrections:
    """What was measured, against a latency model.

    host_s: seconds of a launch of a kind outside the device, the model's own share of them not counted. kernels,
    contention: measured over predicted, of launches alone and of what a co-runner adds to that.
    outside_s: seconds that the model has in each launch for what is outside the device; not scaled.
    """

    host_s: Mapping[str, float] = field(default_factory=dict)
    kernels: Mapping[Key, float] = field(default_factory=dict)
    contention: Mapping[Key, float] = field(default_factory=dict)
    outside_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedModel:
    """A LatencyModel: another one's estimates put right."""

    inner: LatencyModel
    corrections: Corrections

    @property
    def model(self) -> ModelSpec:
        return self.inner.model

    @property
    def device(self) -> DeviceSpec:
        return self.inner.device

    @property
    def tensor_parallel(self) -> int:
        return self.inner.tensor_parallel

    def estimate(self, work: Work, sms: int, beside: Work | None = None, beside_sms: int = 0) -> Estimate:
        """The inner estimate, its device part times the factors of its kind and share, and the host's seconds."""
        seconds, source = self.inner.estimate(work, sms, beside, beside_sms)
        kind, known = kind_of(work), self.corrections
        outside_s = 0.0 if kind == "transfer" else known.outside_s
        share = 0 if kind == "transfer" else sms
        on_device = (seconds - outside_s) * _factor(known.kernels, kind, share)
        if beside is not None:
            on_device *= _factor(known.contention, kind, share)
        return Estimate(on_device + outside_s + known.host_s.get(kind, 0.0), source)

    def cost(self, work: Work) -> tuple[float, float]:
        """(FLOPs, bytes of DRAM traffic) of ``work``, per device."""
        return self.inner.cost(work)

    def ceilings(self, sms: int) -> tuple[float, float]:
        """Attainable (FLOP/s, bytes/s) of ``sms`` SMs."""
        return self.inner.ceilings(sms)

    def kv_capacity_tokens(self, memory_fraction: float) -> int:
        """KV tokens that fit; see LatencyModel."""
        return self.inner.kv_capacity_tokens(memory_fraction)


def _factor(factors: Mapping[Key, float], kind: str, sms: int) -> float:
    found = factors.get((kind, sms))
    return factors.get((kind, None), 1.0) if found is None else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The mean of one metric, in seconds: ``simulated`` plus the other four is ``measured``."""

    simulated: float
    host: float
    kernels: float
    contention: float
    rest: float
    measured: float

    @property
    def error(self) -> float:
        """Measured less simulated: what the causes explain."""
        return self.measured - self.simulated

    def shares(self) -> dict[str, float] | None:
        """Each cause over the error, which they add up to 1 of; None where there is no error.

        Causes of opposite sign cancel: then some are above 1, others below 0.
        """
        if not self.error:
            return None
        return {name: getattr(self, name) / self.error for name in CAUSES}


CAUSES = ("host", "kernels", "contention", "rest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Causes of the error of the means of TTFT, TPOT and end-to-end time, and the corrections they come from.

    causes: by metric; without those that have no value in one of the worlds. steps_alone, steps_beside: how many
    steps the factors rest on.
    """

    causes: Mapping[str, Cause]
    corrections: Corrections
    steps_alone: Mapping[Key, int]
    steps_beside: Mapping[Key, int]


def attribute(cell: Cell, *, outside_s: float = 0.0, prepared: Prepared | None = None) -> Attribution | None:
    """Why ``cell``'s simulation is off. None where no real run has launches.

    The simulation is repeated three times from its own settings, or as ``prepared``. Raises ValueError as
    :func:`sim.simulate.prepare` does.
    """
    sides = [side for side in cell.used if side.launches is not None]
    if not sides:
        return None
    prepared = prepared or prepare(cell.simulated.run.config)
    measured = _Measured(sides, prepared.latency, outside_s)
    every = measured.corrections()
    host = replace(every, kernels={}, contention={})
    stages = [host, replace(every, contention={}), every]
    means = [_means(cell, cell.simulated.run.records)]
    means += [_means(cell, _simulated(prepared, corrections)) for corrections in stages]
    causes = {}
    for metric in METRICS:
        seconds = [found[metric] for found in means]
        runs = [_means(cell, side.run.records)[metric] for side in cell.used]
        known = [value for value in runs if value is not None]
        if known and None not in seconds:
            causes[metric] = _cause([value for value in seconds if value is not None], median(known))
    return Attribution(
        causes=causes, corrections=every, steps_alone=measured.alone.count, steps_beside=measured.together.count
    )


def _cause(stages: list[float], measured: float) -> Cause:
    simulated, host, kernels, contention = stages
    return Cause(
        simulated=simulated,
        host=host - simulated,
        kernels=kernels - host,
        contention=contention - kernels,
        rest=measured - contention,
        measured=measured,
    )


def _simulated(prepared: Prepared, corrections: Corrections) -> Records:
    truth = CorrectedModel(inner=prepared.latency, corrections=corrections)
    return prepared.loop(executor=SimExecutor(latency=truth)).run().records


def _means(cell: Cell, records: Records) -> dict[str, float | None]:
    found = distributions(cell.simulated.run, records, cell.among)
    return {metric: None if values is None else values.mean for metric, values in found.items()}


class _Ratio:
    """Sums above and below a fraction bar by key, and by kind alone."""

    def __init__(self) -> None:
        self.above: dict[Key, float] = {}
        self.below: dict[Key, float] = {}
        self.count: dict[Key, int] = {}

    def add(self, kind: str, sms: int, above: float, below: float, count: int) -> None:
        for key in ((kind, sms), (kind, None)):
            self.above[key] = self.above.get(key, 0.0) + above
            self.below[key] = self.below.get(key, 0.0) + below
            self.count[key] = self.count.get(key, 0) + count

    def ratios(self) -> dict[Key, float]:
        """Those that enough steps speak for; a kind's as a whole needs one."""
        return {
            key: self.above[key] / self.below[key]
            for key, count in self.count.items()
            if self.above[key] > 0 and self.below[key] > 0 and (count >= FEWEST or key[1] is None)
        }


class _Measured:
    """Ratios of measured to predicted time, from all real runs together."""

    def __init__(self, sides: list[Side], latency: LatencyModel, outside_s: float) -> None:
        self._latency = latency
        self._outside_s = outside_s
        self._host: dict[str, list[Floats]] = {}
        self.alone, self.together = _Ratio(), _Ratio()
        self._slowdowns: dict[tuple[Work, int, Work, int], float] = {}
        for side in sides:
            self._add_alone(side)
        self._factors = self.alone.ratios()
        for side in sides:
            self._add_together(side)

    def corrections(self) -> Corrections:
        host = {kind: float(np.concatenate(parts).mean()) for kind, parts in self._host.items()}
        own = {kind: 0.0 if kind == "transfer" else self._outside_s for kind in host}
        return Corrections(
            host_s={kind: seconds - own[kind] for kind, seconds in host.items()},
            kernels=self._factors,
            contention=self.together.ratios(),
            outside_s=self._outside_s,
        )

    def _add_alone(self, side: Side) -> None:
        steps, launches = side.run.steps, side.launches
        assert launches is not None
        host = np.sum(list(launches.host_s(side.run.records.arrival_s).values()), axis=0)
        alone = np.ones(len(steps), np.bool_)
        alone[beside(steps).row] = False
        for kind, sms, rows in _groups(steps):
            self._host.setdefault(kind, []).append(host[rows])
            rows = rows[alone[rows]]
            predicted = steps.predicted_s[rows] - (0.0 if kind == "transfer" else self._outside_s)
            self.alone.add(kind, sms, float(launches.device_s[rows].sum()), float(predicted.sum()), len(rows))

    def _add_together(self, side: Side) -> None:
        steps, launches = side.run.steps, side.launches
        assert launches is not None
        row, peer, seconds = beside(steps, launches)
        works = _works(steps, self._latency.model.layers)
        slowdown = np.array(
            [self._slowdown(steps, works, r, p) for r, p in zip(row.tolist(), peer.tolist(), strict=True)]
        )
        shortened = np.bincount(row, seconds / slowdown, len(steps)) if len(row) else np.zeros(len(steps))
        overlapped = np.bincount(row, seconds, len(steps)) if len(row) else np.zeros(len(steps))
        # The prediction was made beside whoever was in flight then: the loop sends one launch after another.
        launched_beside = np.ones(len(steps))
        there = launches.sent_s[peer] < launches.sent_s[row]
        launched_beside[row[there]] = slowdown[there]
        for kind, sms, rows in _groups(steps):
            rows = rows[overlapped[rows] > 0]
            alone_s = (steps.predicted_s[rows] - self._outside_s) / launched_beside[rows]
            left_s = alone_s * _factor(self._factors, kind, sms) - (launches.device_s[rows] - overlapped[rows])
            self.together.add(kind, sms, float(shortened[rows].sum()), float(left_s.sum()), len(rows))

    def _slowdown(self, steps: StepLog, works: list[Work], row: int, peer: int) -> float:
        """How many times ``row`` takes longer beside ``peer``, says the model."""
        work, sms = works[row], int(steps.sms[row])
        key = (work, sms, works[peer], int(steps.sms[peer]))
        found = self._slowdowns.get(key)
        if found is None:
            alone = self._latency.estimate(work, sms).seconds - self._outside_s
            found = self._slowdowns[key] = (self._latency.estimate(*key).seconds - self._outside_s) / alone
        return found


def _groups(steps: StepLog) -> Iterator[tuple[str, int, NDArray[np.int64]]]:
    """(kind, SMs, rows) of every kind of launch and share in ``steps``."""
    number = kinds(steps)
    for kind, sms in sorted(set(zip(number.tolist(), steps.sms.tolist(), strict=True))):
        yield KINDS[kind], sms, np.flatnonzero((number == kind) & (steps.sms == sms))


def _works(steps: StepLog, model_layers: int) -> list[Work]:
    """Work of each step's size: the log holds sums over its sequences, which are taken to be alike."""
    whole = (steps.layers == model_layers) | (steps.sms == 0)
    head = whole.copy()
    for instance in np.unique(steps.instance):
        # A lane's layer groups follow one another until they are a whole model.
        groups = np.flatnonzero((steps.instance == instance) & ~whole)
        head[groups] = np.cumsum(steps.layers[groups]) % model_layers == 0
    return [_work(steps, row, bool(whole[row]), bool(head[row])) for row in range(len(steps))]


def _work(steps: StepLog, row: int, whole: bool, head: bool) -> Work:
    prompts, new = int(steps.prefill_requests[row]), int(steps.prefill_tokens[row])
    decodes, context = int(steps.decode_requests[row]), int(steps.context_tokens[row])
    if steps.sms[row] == 0:
        return Work(kv_transfer_tokens=context)
    # Where prompts and answers share a launch, which part of the context is whose is not known: it counts as decodes'.
    cached = 0 if decodes else context - new
    prefill = tuple((new // prompts, cached // prompts) for _ in range(prompts))
    return Work(prefill, decodes, context - new - cached, None if whole else int(steps.layers[row]), head)
