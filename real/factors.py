"""What real runs say of a latency model: measured over predicted time of launches, and the host's time besides.

Contention. A step that had A seconds of work when alone, of which it did t alone and the rest beside a co-runner that
the model says slows it s times, was slowed c s times in truth, with c = (overlapped seconds / s) / (A - t). Sums over
all such steps of a kind and share give its c: what processor sharing in the simulator turns into durations again.

A run's log has what its policy predicted, host time included, and steps of the simulation may run by another model (the
same one at the pace that the device had): what is logged is scaled by the two models' ratio for work of a step's size.
Where instances share a device, their policy predicts nothing of what they lose to each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from profiler.latency import LatencyModel
from profiler.work import Work
from real.comparison import Side
from real.corrections import Corrections, Key, factor
from real.launches import LaunchLog
from real.stepwise import KINDS, Pairs, beside, kind_of, kinds
from sim.records import StepLog
from sim.simulate import check_names

Floats = NDArray[np.float64]

FEWEST = 10
"""Steps that a share needs for a ratio of its own; with fewer it takes that of its kind.

A share that never runs alone cannot tell kernels from contention: what its kind's ratio leaves counts as contention.
"""


class Factors:
    """Ratios of measured to predicted time, from all real runs together.

    latency: what steps of the simulation run by, with ``outside_s`` of a launch, by its kind, for what is outside the
        device.
    device: what they would run by on the whole device that instances share, None where they do not.
    """

    def __init__(
        self,
        sides: Sequence[Side],
        latency: LatencyModel,
        outside_s: Mapping[str, float],
        device: LatencyModel | None = None,
    ) -> None:
        self._outside_s = outside_s
        self._host: dict[str, list[Floats]] = {}
        self.alone, self.together = _Ratio(), _Ratio()
        runs = [_Run(side, latency, outside_s, device) for side in sides]
        for run in runs:
            self._add_alone(run)
        self._kernels = self.alone.ratios()
        for run in runs:
            self._add_together(run)

    def corrections(self) -> Corrections:
        """All of them."""
        host = {kind: float(np.concatenate(parts).mean()) for kind, parts in self._host.items()}
        return Corrections(
            host_s={kind: seconds - self._outside_s.get(kind, 0.0) for kind, seconds in host.items()},
            kernels=self._kernels,
            contention=self.together.ratios(),
            outside_s=self._outside_s,
        )

    def _add_alone(self, run: _Run) -> None:
        device_s = run.launches.device_s
        alone = np.ones(len(run.steps), np.bool_)
        alone[run.pairs.row] = False
        for kind, sms, rows in _groups(run.steps):
            self._host.setdefault(kind, []).append(run.host_s[rows])
            rows = rows[alone[rows]]
            self.alone.add(kind, sms, float(device_s[rows].sum()), float(run.alone_s[rows].sum()), len(rows))

    def _add_together(self, run: _Run) -> None:
        count, (row, _, seconds) = len(run.steps), run.pairs
        shortened = np.bincount(row, seconds / run.slowdown, count)
        overlapped = np.bincount(row, seconds, count)
        for kind, sms, rows in _groups(run.steps):
            rows = rows[overlapped[rows] > 0]
            done_alone_s = run.launches.device_s[rows] - overlapped[rows]
            left_s = run.alone_s[rows] * factor(self._kernels, kind, sms) - done_alone_s
            self.together.add(kind, sms, float(shortened[rows].sum()), float(left_s.sum()), len(rows))


class _Run:
    """A real run's launches beside what the simulation's model says of each.

    alone_s: predicted seconds of each step's device part if it ran alone, shape (n,). slowdown: of each pair, how many
    times longer its row takes beside its peer.
    """

    def __init__(
        self, side: Side, latency: LatencyModel, outside_s: Mapping[str, float], device: LatencyModel | None
    ) -> None:
        assert side.launches is not None
        self.steps: StepLog = side.run.steps
        self.launches: LaunchLog = side.launches
        self.host_s: Floats = np.sum(list(side.launches.host_s(side.run.records.arrival_s).values()), axis=0)
        self.pairs: Pairs = beside(self.steps, self.launches, one_device=device is not None)
        works = _works(self.steps, latency.model.layers)
        _, _, planned = check_names(side.run.config)
        truth = _Model(latency, outside_s)
        own = self.steps.instance[self.pairs.row] == self.steps.instance[self.pairs.peer]
        lanes, neighbours = (Pairs(*(column[chosen] for column in self.pairs)) for chosen in (own, ~own))
        self.slowdown: Floats = np.ones(len(own))
        self.slowdown[own] = truth.slowdowns(self.steps, works, lanes)
        if device is not None:
            self.slowdown[~own] = _Model(device, outside_s).slowdowns(self.steps, works, neighbours)
        plan = _Model(planned, {})
        scale = truth.alone_s(self.steps, works) / plan.alone_s(self.steps, works)
        at_launch = self._at_launch(lanes, plan.slowdowns(self.steps, works, lanes))
        self.alone_s = self.steps.predicted_s / at_launch * scale

    def _at_launch(self, lanes: Pairs, slowdown: Floats) -> Floats:
        """Of each step, what its prediction was slowed by: the loop sends one launch after another. Shape (n,)."""
        row, peer, _ = lanes
        found = np.ones(len(self.steps))
        there = self.launches.sent_s[peer] < self.launches.sent_s[row]
        found[row[there]] = slowdown[there]
        return found


class _Model:
    """Device parts of a latency model's estimates, by work; every shape is asked for once."""

    def __init__(self, latency: LatencyModel, outside_s: Mapping[str, float]) -> None:
        self._latency, self._outside_s = latency, outside_s
        self._alone: dict[tuple[Work, int], float] = {}
        self._slowdowns: dict[tuple[Work, int, Work, int], float] = {}

    def alone_s(self, steps: StepLog, works: Sequence[Work]) -> Floats:
        """Seconds of each step alone, shape (n,)."""
        return np.array([self._one(*shape) for shape in zip(works, steps.sms.tolist(), strict=True)], np.float64)

    def slowdowns(self, steps: StepLog, works: Sequence[Work], pairs: Pairs) -> Floats:
        """Of each pair, seconds beside the peer over seconds alone, shape (k,)."""
        sms = steps.sms.tolist()
        rows = zip(pairs.row.tolist(), pairs.peer.tolist(), strict=True)
        return np.array([self._slowdown(works[r], sms[r], works[p], sms[p]) for r, p in rows], np.float64)

    def _one(self, work: Work, sms: int) -> float:
        found = self._alone.get((work, sms))
        if found is None:
            own = self._outside_s.get(kind_of(work), 0.0)
            found = self._alone[work, sms] = self._latency.estimate(work, sms or 1).seconds - own
        return found

    def _slowdown(self, work: Work, sms: int, peer: Work, peer_sms: int) -> float:
        key = (work, sms, peer, peer_sms)
        found = self._slowdowns.get(key)
        if found is None:
            together_s = self._latency.estimate(*key).seconds - self._outside_s.get(kind_of(work), 0.0)
            found = self._slowdowns[key] = together_s / self._one(work, sms)
        return found


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
