"""Many runs of figures at once, each reduced to the numbers that figures show."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from benchmarks.paper.setting import WORKLOADS, Workload
from policies.slo import SLO
from sim.config import RunConfig
from sim.fanout import Fanout, fan_out
from sim.metrics import Distribution, summarise, tpot_s, ttft_s
from sim.records import Records
from sim.simulate import prepare

Floats = NDArray[np.float64]

SEEDS = (0, 1, 2)


class Run(NamedTuple):
    """A run to be made: ``key`` is the figure's own name for it."""

    key: tuple[Any, ...]
    workload: str
    config: RunConfig


@dataclass(frozen=True, slots=True)
class Outcome:
    """What figures show of a run: seconds, requests a second, and the share of requests within the SLO by reading."""

    ttft_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    tpot_s: float
    tpot_p50_s: float
    tpot_p90_s: float
    e2e_s: float
    normalised_s: float
    normalised_p99_s: float
    queueing_s: float
    throughput_rps: float
    utilisation: float
    attainment: float
    by_reading: Mapping[str, float]


Reading = Callable[[Workload, Records], Floats]


def _own(workload: Workload, records: Records) -> Floats:
    return workload.ttft_per_token_s * records.prompt_tokens


def _floor(seconds: float) -> Reading:
    return lambda workload, records: np.maximum(seconds, _own(workload, records))


def _mean(workload: Workload, records: Records) -> Floats:
    return np.full(len(records.arrival_s), workload.ttft_per_token_s * records.prompt_tokens.mean())


def _batch(workload: Workload, records: Records) -> Floats:
    """Over the tokens of all prompts whose first step was the same."""
    _, where = np.unique(records.scheduled_s, return_inverse=True)
    return workload.ttft_per_token_s * np.bincount(where, weights=records.prompt_tokens)[where]


READINGS: Mapping[str, Reading] = {
    "per request": _own,
    "per batch": _batch,
    "floor of 0.1 s": _floor(0.1),
    "floor of 0.2 s": _floor(0.2),
    "floor of 0.3 s": _floor(0.3),
    "floor of 0.5 s": _floor(0.5),
    "own or mean length": lambda workload, records: np.maximum(_own(workload, records), _mean(workload, records)),
    "mean length": _mean,
}
"""TTFT limits of a run's requests under each reading of "TTFT per prompt token", in seconds."""


def outcome(run: Run) -> Outcome:
    """Makes a run and reduces it."""
    config = run.config
    result = prepare(config).run()
    metrics = summarise(result, config.slo.value(), config.gpus)
    ttft, tpot = _served(metrics.ttft_s), _served(metrics.tpot_s)
    normalised = _served(metrics.normalised_s)
    return Outcome(
        ttft_s=ttft.mean,
        ttft_p50_s=ttft.p50,
        ttft_p90_s=ttft.p90,
        tpot_s=tpot.mean,
        tpot_p50_s=tpot.p50,
        tpot_p90_s=tpot.p90,
        e2e_s=_served(metrics.e2e_s).mean,
        normalised_s=normalised.mean,
        normalised_p99_s=normalised.p99,
        queueing_s=_served(metrics.queueing_s).mean,
        throughput_rps=metrics.requests_per_s_per_gpu or 0.0,
        utilisation=metrics.utilisation or 0.0,
        attainment=metrics.attainment or 0.0,
        by_reading=_attained(result.records, WORKLOADS[run.workload], config.slo.value()),
    )


def _served(of: Distribution | None) -> Distribution:
    """A metric of a run that has served somebody, as all of these do."""
    assert of is not None
    return of


def _attained(records: Records, workload: Workload, slo: SLO) -> dict[str, float]:
    within, first = ~(tpot_s(records) > slo.tpot_limit_s), ttft_s(records)
    return {
        name: float(np.mean((first <= limits_s(workload, records)) & within)) for name, limits_s in READINGS.items()
    }


def outcomes(runs: Sequence[Run], jobs: int | None = None) -> dict[tuple[Any, ...], Outcome]:
    """Each run's outcome by its key, made on as many processes as there are cores unless told otherwise."""
    fanout = Fanout(jobs=jobs or os.cpu_count() or 1)
    made: dict[tuple[Any, ...], Outcome] = {}
    with Progress(console=Console(stderr=True, force_jupyter=False), transient=True) as progress:
        bar = progress.add_task("runs", total=len(runs))
        for number, one in fan_out(outcome, runs, fanout):
            assert one is not None, f"{runs[number].key}: its process died"
            made[runs[number].key] = one
            progress.advance(bar)
    return made


def mean(outcomes_of_seeds: Iterable[Outcome], name: str) -> float:
    """A number of several seeds' runs."""
    return float(np.mean([getattr(one, name) for one in outcomes_of_seeds]))
