"""Where the error comes from: the simulation repeated with one wrong thing after another put right.

The policy keeps the fitted model that it predicted with; what steps truly take is replaced by a corrected one:

    simulated    the fitted model
    host         and the host's time outside the device, as measured: its mean over launches of a kind
    kernels      and the time of steps that ran alone, times what was measured over predicted, by kind and share; what
                 launches take longer on a lane that was at rest is part of that
    contention   and the time of steps beside another lane's, likewise
    rest         what then remains to the measured value: other decisions and batches, and noise

Each cause is what its substitution changed, so the five add up to the measured value exactly.

Which interval is compared with what. A launch's duration in the loop is the host's time outside the device (react,
decide, hand over, notice; real.launches) and the device's own, begin to finish. The fitted model's host constants were
measured as what a pass takes beyond its kernels, and on the device a pass contains that: an estimate as a whole stands
for begin to finish, and the host's time comes on top. Where a model's constants hold some of the outer host time too,
the cell's ``outside_s`` says how many seconds of each launch. real.factors says how factors are found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from real.comparison import METRICS, Cell, distributions
from real.corrections import CorrectedModel, Corrections, Key
from real.factors import Factors
from sim.records import Records
from sim.simulate import Prepared, prepare


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
        """Each cause over the error, together 1; None where there is no error.

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


def attribute(cell: Cell, prepared: Prepared | None = None) -> Attribution | None:
    """Why ``cell``'s simulation is off. None where no real run has launches.

    The simulation is repeated three times from its own settings, or as ``prepared``. Raises ValueError as
    :func:`sim.simulate.prepare` does.
    """
    sides = [side for side in cell.used if side.launches is not None]
    if not sides:
        return None
    prepared = prepared or prepare(cell.simulated.run.config)
    measured = Factors(sides, prepared.latency, cell.outside_s, prepared.device)
    every = measured.corrections()
    host = replace(every, kernels={}, contention={})
    # What launches took on the device has what it took to wake.
    awake = _never_woken(prepared)
    stages = [(prepared, host), (awake, replace(every, contention={})), (awake, every)]
    means = [_means(cell, cell.simulated.run.records)]
    means += [_means(cell, _simulated(*stage)) for stage in stages]
    causes = {}
    for metric in METRICS:
        seconds = [found[metric] for found in means]
        runs = [_means(cell, side.run.records)[metric] for side in cell.used]
        known = [value for value in runs if value is not None]
        if known and None not in seconds:
            causes[metric] = _cause([value for value in seconds if value is not None], fmean(known))
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


def _never_woken(prepared: Prepared) -> Prepared:
    latency = prepared.config.latency.model_copy(update={"wake_s": None})
    return replace(prepared, config=prepared.config.model_copy(update={"latency": latency}))


def _simulated(prepared: Prepared, corrections: Corrections) -> Records:
    truth = CorrectedModel(inner=prepared.latency, corrections=corrections)
    device = prepared.device and CorrectedModel(inner=prepared.device, corrections=corrections)
    return prepared.loop(executor=prepared.executor(truth, device)).run().records


def _means(cell: Cell, records: Records) -> dict[str, float | None]:
    found = distributions(cell.simulated.run, records, cell.among)
    return {metric: None if values is None else values.mean for metric, values in found.items()}
