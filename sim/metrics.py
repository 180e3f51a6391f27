"""What a run was worth: every metric defined once, as a formula, and computed from its records.

For a request that arrived at a, got its first token at f and its last at l, n tokens in all:

    TTFT                = f - a
    TPOT                = (l - f) / (n - 1)            absent for n = 1
    ITL                 = the n - 1 gaps between consecutive tokens, pooled over requests
    end to end          = l - a
    normalised latency  = (l - a) / n
    queueing            = start of its first step - a

TTFT is taken over requests that have a first token, queueing over those that were scheduled, the rest over
finished ones. ITL comes from the run's pooled distribution, which is exact and covers the whole run.

For a window of requests, chosen by arrival:

    makespan            = first arrival in the window to the last token of its requests
    requests/s a GPU    = finished / makespan / GPUs
    tokens/s a GPU      = generated tokens / makespan / GPUs
    attainment          = requests that meet both limits of the SLO / all that arrived
    goodput             = requests that meet both limits / makespan / GPUs

Rejected and unfinished requests miss; an answer of one token is judged on TTFT alone; a limit is met with
equality. Without any limit there is no attainment and no goodput, without a TTFT or TPOT limit no attainment of
it: None. For the whole run:

    utilisation         = SM-seconds held by steps / (instances * SMs * time from first arrival to end)
    source share        = seconds of steps predicted from each source / seconds of all steps
    prefix hit rate     = cached tokens / tokens to prefill, over all times that a request began

A quantile q of N sorted values x[0..N-1] is x[h] at h = q (N - 1), linear between neighbours (type 7 of
Hyndman and Fan, numpy's default). ITL quantiles are those of the sample with every value repeated as often as
it was seen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from policies.slo import SLO
from sim.records import STATES, PrefixUse, Records, RunResult

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

QUANTILES = (0.50, 0.90, 0.95, 0.99)
TARGET_ATTAINMENT = 0.9
BLOCK_VALUES = 1 << 14
FINISHED = STATES.index("finished")
REJECTED = STATES.index("rejected")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Mean and quantiles of ``count`` values, in their unit."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which requests count, by arrival: seconds cut after the first arrival and before the last."""

    warmup_s: float = 0.0
    drain_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("warmup_s", "drain_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"window {name} is {value}; it must be 0 or more seconds")

    def mask(self, records: Records) -> Mask:
        """Which rows of ``records`` arrived in the window, shape (n,)."""
        return self.inside(records.arrival_s)

    def inside(self, arrival_s: Floats) -> Mask:
        """Which of the arrivals are in the window, both shape (n,)."""
        if not len(arrival_s):
            return np.zeros(0, np.bool_)
        first, last = arrival_s.min() + self.warmup_s, arrival_s.max() - self.drain_s
        inside: Mask = (arrival_s >= first) & (arrival_s <= last)
        return inside


WHOLE_RUN = Window()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The summary of a run: seconds, rates a second and GPU, None where there is nothing to measure."""

    gpus: int
    arrived: int
    states: Mapping[str, int]
    reject_reasons: Mapping[str, int] = field(default_factory=dict)
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    itl_s: Distribution | None
    e2e_s: Distribution | None
    normalised_s: Distribution | None
    queueing_s: Distribution | None
    makespan_s: float | None
    requests_per_s_per_gpu: float | None
    tokens_per_s_per_gpu: float | None
    goodput_per_s_per_gpu: float | None
    attainment: float | None
    ttft_attainment: float | None
    tpot_attainment: float | None
    utilisation: float | None
    source_share: Mapping[str, float]
    preemptions: int
    cached_tokens: int
    prefix_hit_rate: float | None = None
    prefix_evicted_blocks: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: plain dicts, and None for what does not exist."""
        return asdict(self)


def ttft_s(records: Records) -> Floats:
    """Time to first token, shape (n,); NaN before one."""
    return records.first_token_s - records.arrival_s


def tpot_s(records: Records) -> Floats:
    """Time per output token after the first, shape (n,); NaN below two tokens and for unfinished requests."""
    gaps = records.generated_tokens - 1
    several = (gaps > 0) & (records.state == FINISHED)
    span = records.last_token_s - records.first_token_s
    return np.where(several, span / np.maximum(gaps, 1), np.nan)


def e2e_s(records: Records) -> Floats:
    """Arrival to last token, shape (n,); NaN for unfinished requests."""
    return np.where(records.state == FINISHED, records.last_token_s - records.arrival_s, np.nan)


def normalised_s(records: Records) -> Floats:
    """End to end over output tokens, shape (n,); NaN for unfinished requests."""
    return e2e_s(records) / np.maximum(records.generated_tokens, 1)


def queueing_s(records: Records) -> Floats:
    """Arrival to the start of the first step, shape (n,); NaN where none started."""
    return records.scheduled_s - records.arrival_s


def ttft_limits_s(records: Records, slo: SLO) -> Floats:
    """The TTFT limit of each request, shape (n,); infinity where there is none."""
    distinct, where = np.unique(records.prompt_tokens, return_inverse=True)
    limits = np.array([slo.ttft_limit_s(int(tokens)) for tokens in distinct], np.float64)
    return limits[where] if len(limits) else np.zeros(0)


def meets_ttft(records: Records, slo: SLO) -> Mask:
    """Which requests finished with their first token in time, shape (n,)."""
    met: Mask = (ttft_s(records) <= ttft_limits_s(records, slo)) & (records.state == FINISHED)
    return met


def meets_tpot(records: Records, slo: SLO) -> Mask:
    """Which requests finished within the TPOT limit or with one token, shape (n,)."""
    tpot = tpot_s(records)
    met: Mask = (np.isnan(tpot) | (tpot <= slo.tpot_limit_s)) & (records.state == FINISHED)
    return met


def attaining(records: Records, slo: SLO) -> Mask:
    """Which requests meet both limits, shape (n,)."""
    return meets_ttft(records, slo) & meets_tpot(records, slo)


def attainment(records: Records, slo: SLO, window: Window = WHOLE_RUN) -> float | None:
    """Share of the requests that arrived in the window that meet both limits; None if none arrived or no limit is."""
    return _share(attaining(records, slo), window.mask(records)) if has_limits(slo) else None


def has_limits(slo: SLO) -> bool:
    """Whether there is anything to attain."""
    return slo.limits_ttft or slo.tpot_s is not None


def distribution(values: Floats) -> Distribution | None:
    """Mean and quantiles of the values that are not NaN; None if there are none."""
    kept = values[~np.isnan(values)]
    return repeated_distribution(kept, np.ones(len(kept), np.int64))


def repeated_distribution(values: Floats, counts: NDArray[np.int64]) -> Distribution | None:
    """Mean and quantiles of a sample in which ``values[i]`` occurs ``counts[i]`` times; both shape (k,)."""
    total = int(counts.sum())
    if total == 0:
        return None
    ordered, upto = values, np.cumsum(counts)
    if np.any(values[1:] < values[:-1]):
        order = np.argsort(values, kind="stable")
        ordered, upto = values[order], np.cumsum(counts[order])
    place = np.array(QUANTILES) * (total - 1)
    below = np.floor(place)
    low = ordered[np.searchsorted(upto, below, side="right")]
    high = ordered[np.searchsorted(upto, np.minimum(below + 1, total - 1), side="right")]
    p50, p90, p95, p99 = (low + (place - below) * (high - low)).tolist()
    # Exactly rounded: a dot product is a BLAS call, whose last digit depends on the number of its threads.
    mean = math.fsum(_each(values, counts)) / total
    return Distribution(count=total, mean=mean, p50=p50, p90=p90, p95=p95, p99=p99)


def _each(values: Floats, counts: NDArray[np.int64]) -> Iterator[float]:
    """``values[i] * counts[i]`` one by one: of millions a list would take more memory than the run."""
    for begin in range(0, len(values), BLOCK_VALUES):
        yield from (values[begin : begin + BLOCK_VALUES] * counts[begin : begin + BLOCK_VALUES]).tolist()


def summarise(result: RunResult, slo: SLO, gpus: int, window: Window = WHOLE_RUN) -> Metrics:
    """The metrics of a run on ``gpus`` GPUs. Raises ValueError for fewer than one GPU."""
    if gpus < 1:
        raise ValueError(f"gpus is {gpus}; a run has at least one")
    records = result.records
    inside = window.mask(records)
    makespan = _makespan_s(records, inside)
    met = attaining(records, slo)
    limited = has_limits(slo)

    def per_gpu(count: float) -> float | None:
        return None if makespan is None else float(count) / makespan / gpus

    return Metrics(
        gpus=gpus,
        arrived=int(inside.sum()),
        states=_states(records, inside),
        reject_reasons=_reject_reasons(records, inside),
        ttft_s=distribution(ttft_s(records)[inside]),
        tpot_s=distribution(tpot_s(records)[inside]),
        itl_s=repeated_distribution(result.itl_s, result.itl_count),
        e2e_s=distribution(e2e_s(records)[inside]),
        normalised_s=distribution(normalised_s(records)[inside]),
        queueing_s=distribution(queueing_s(records)[inside]),
        makespan_s=makespan,
        requests_per_s_per_gpu=per_gpu(int((inside & (records.state == FINISHED)).sum())),
        tokens_per_s_per_gpu=per_gpu(records.generated_tokens[inside].sum()),
        goodput_per_s_per_gpu=per_gpu(int((inside & met).sum())) if limited else None,
        attainment=_share(met, inside) if limited else None,
        ttft_attainment=_share(meets_ttft(records, slo), inside) if slo.limits_ttft else None,
        tpot_attainment=_share(meets_tpot(records, slo), inside) if slo.tpot_s is not None else None,
        utilisation=_utilisation(result),
        source_share=_source_share(result.source_s),
        preemptions=int(records.preemptions[inside].sum()),
        cached_tokens=int(records.cached_tokens[inside].sum()),
        prefix_hit_rate=_hit_rate(result.prefixes),
        prefix_evicted_blocks=None if result.prefixes is None else result.prefixes.evicted_blocks,
    )


def summary_of(result: RunResult, metrics: Metrics) -> dict[str, Any]:
    """The document in summary.json; ``interrupted_s`` is there only where the run was stopped before its end."""
    return metrics.to_dict() | ({"interrupted_s": result.end_s} if result.interrupted else {})


def _share(met: Mask, inside: Mask) -> float | None:
    arrived = int(inside.sum())
    return int((met & inside).sum()) / arrived if arrived else None


def _makespan_s(records: Records, inside: Mask) -> float | None:
    last = records.last_token_s[inside]
    if not len(last) or np.isnan(last).all():
        return None
    span = float(np.nanmax(last) - records.arrival_s[inside].min())
    return span if span > 0 else None


def _states(records: Records, inside: Mask) -> dict[str, int]:
    counts = np.bincount(records.state[inside], minlength=len(STATES))
    return dict(zip(STATES, counts.tolist(), strict=True))


def _reject_reasons(records: Records, inside: Mask) -> dict[str, int]:
    rejected = np.flatnonzero(inside & (records.state == REJECTED))
    return dict(sorted(Counter(records.reason[row] for row in rejected).items()))


def _utilisation(result: RunResult) -> float | None:
    arrival = result.records.arrival_s
    span = result.end_s - float(arrival.min()) if len(arrival) else 0.0
    capacity = result.instances * result.sms * span
    return result.sm_seconds / capacity if capacity > 0 else None


def _hit_rate(prefixes: PrefixUse | None) -> float | None:
    return prefixes.hit_tokens / prefixes.asked_tokens if prefixes is not None and prefixes.asked_tokens else None


def _source_share(source_s: Mapping[str, float]) -> dict[str, float]:
    total = sum(source_s.values())
    return {source: seconds / total for source, seconds in sorted(source_s.items())} if total else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """The highest rate that keeps the target attainment.

    kind: ``crossing`` where attainment falls below the target between tested rates, ``always`` where it never
        does (``rate`` is the highest tested and the knee lies at or above it), ``never`` where no tested rate
        keeps it (``rate`` is None).
    """

    rate: float | None
    kind: Literal["crossing", "always", "never"]
    tested: tuple[float, float]

    def __str__(self) -> str:
        if self.rate is None:
            return f"< {_three_digits(self.tested[0])}"
        return f"{'>= ' if self.kind == 'always' else ''}{_three_digits(self.rate)}"


def _three_digits(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 99.95 else f"{rate:#.3g}"


def knee(rates: Sequence[float], attainments: Sequence[float], target: float = TARGET_ATTAINMENT) -> Knee:
    """The last crossing of ``target`` on the line through the tested points; order of the points is free.

    Raises ValueError for no points, unequal lengths, a repeated rate or a value that is not finite.
    """
    points = sorted(zip(rates, attainments, strict=True))
    if not points:
        raise ValueError("a knee needs at least one tested rate")
    if not all(math.isfinite(rate) and math.isfinite(value) for rate, value in points):
        raise ValueError(f"rates and attainments must be finite, got {points}")
    if len({rate for rate, _ in points}) < len(points):
        raise ValueError(f"a rate was given twice: {[rate for rate, _ in points]}")
    tested = (points[0][0], points[-1][0])
    kept = [index for index, (_, value) in enumerate(points) if value >= target]
    if not kept:
        return Knee(rate=None, kind="never", tested=tested)
    (rate, value) = points[kept[-1]]
    if kept[-1] == len(points) - 1:
        return Knee(rate=rate, kind="always", tested=tested)
    (next_rate, next_value) = points[kept[-1] + 1]
    crossing = rate + (value - target) / (value - next_value) * (next_rate - rate)
    return Knee(rate=crossing, kind="crossing", tested=tested)
