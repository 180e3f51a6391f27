"""How long a sweep will take, from a sample of it that is timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sim.config import RunConfig
from sim.simulate import measure, prepare
from sim.sweep import Simulation
from traces.progress import Progress, untold

SAMPLE_REQUESTS = 100
SAMPLE_RUNS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """``seconds`` of one process for all simulations, from ``sampled`` of them cut to ``requests`` requests."""

    seconds: float
    sampled: int
    requests: int


def estimate(simulations: Sequence[Simulation], progress: Progress = untold) -> Estimate:
    """Times the first requests of one simulation a policy, at its middle rate, and scales by requests.

    ``progress`` hears how far that is. A rough figure: it takes a request to cost the same throughout, while a growing
    queue makes it dearer or cheaper.
    """
    configs = [one.cells[0].config for one in simulations]
    by_policy: dict[str, list[RunConfig]] = {}
    for config in configs:
        by_policy.setdefault(config.policy.name, []).append(config)
    sampled = dict(list(by_policy.items())[:SAMPLE_RUNS])
    sources = {_source(config): config for config in configs}
    parts = len(sampled) + len(sources)
    paces, lengths = {}, {}
    for place, (name, members) in enumerate(sampled.items()):
        progress(place / parts)
        paces[name] = _seconds_a_request(members)
    for place, (source, config) in enumerate(sources.items(), len(sampled)):
        progress(place / parts)
        lengths[source] = config.requests or len(prepare(config).trace)
    progress(1.0)
    mean = sum(paces.values()) / len(paces) if paces else 0.0
    total = sum(lengths[_source(config)] * paces.get(config.policy.name, mean) for config in configs)
    return Estimate(seconds=total, sampled=len(sampled), requests=SAMPLE_REQUESTS)


def _source(config: RunConfig) -> tuple[str, int | None, str | None]:
    """What the number of a run's requests follows from."""
    return config.trace, config.requests, config.slice


def _seconds_a_request(configs: Sequence[RunConfig]) -> float:
    middle = sorted(configs, key=lambda config: config.rate or 0.0)[len(configs) // 2]
    requests = min(SAMPLE_REQUESTS, middle.requests or SAMPLE_REQUESTS)
    sample = middle.model_copy(update={"requests": requests, "trace_sha256": None, "oversized": "reject"})
    start = time.perf_counter()
    measure(sample)
    return (time.perf_counter() - start) / requests
