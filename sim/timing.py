"""How long a sweep will take, from a sample of it that is timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sim.config import RunConfig
from sim.simulate import measure, prepare
from sim.sweep import Simulation

SAMPLE_REQUESTS = 100
SAMPLE_RUNS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """``seconds`` of one process for all simulations, from ``sampled`` of them cut to ``requests`` requests."""

    seconds: float
    sampled: int
    requests: int


def estimate(simulations: Sequence[Simulation]) -> Estimate:
    """Times the first requests of one simulation a policy, at its middle rate, and scales by requests.

    A rough figure: it takes a request to cost the same throughout, while a growing queue makes it dearer or cheaper.
    """
    configs = [one.cells[0].config for one in simulations]
    by_policy: dict[str, list[RunConfig]] = {}
    for config in configs:
        by_policy.setdefault(config.policy.name, []).append(config)
    sampled = dict(list(by_policy.items())[:SAMPLE_RUNS])
    paces = {name: _seconds_a_request(members) for name, members in sampled.items()}
    mean = sum(paces.values()) / len(paces) if paces else 0.0
    lengths: dict[tuple[str, int | None, str | None], int] = {}
    total = 0.0
    for config in configs:
        source = (config.trace, config.requests, config.slice)
        if source not in lengths:
            lengths[source] = config.requests or len(prepare(config).trace)
        total += lengths[source] * paces.get(config.policy.name, mean)
    return Estimate(seconds=total, sampled=len(sampled), requests=SAMPLE_REQUESTS)


def _seconds_a_request(configs: Sequence[RunConfig]) -> float:
    middle = sorted(configs, key=lambda config: config.rate or 0.0)[len(configs) // 2]
    requests = min(SAMPLE_REQUESTS, middle.requests or SAMPLE_REQUESTS)
    sample = middle.model_copy(update={"requests": requests, "trace_sha256": None, "oversized": "reject"})
    start = time.perf_counter()
    measure(sample)
    return (time.perf_counter() - start) / requests
