"""What a run adds up as it goes: one row a step, seconds by source, and at the end the columns of its records."""

from __future__ import annotations

from array import array
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from policies.api import LINK
from profiler.latency import Source
from profiler.work import Work
from sim.distinct import Counts, Floats, counted
from sim.launch import Launch
from sim.prefixcache import PrefixCache
from sim.records import PrefixUse, RunResult, StepLog
from sim.requestlog import RequestLog
from sim.state import DecodeCohort, RequestState
from sim.steprows import StepRows

SPAN_STEPS = 1 << 16
"""Steps whose SM-seconds are added up at once."""

Places = NDArray[np.intp]


class Tally:
    """Collects steps and, where asked for, every token's time."""

    def __init__(self, *, model_layers: int, keep_token_times: bool) -> None:
        self._model_layers = model_layers
        self.rows = StepRows()
        self._lanes: dict[str, int] = {}
        self._token_times: defaultdict[str, list[float]] | None = defaultdict(list) if keep_token_times else None

    def lane(self, name: str) -> int:
        """The number that stands for a lane's name in the log."""
        return self._lanes.setdefault(name, len(self._lanes))

    def ran(
        self,
        lane: str,
        work: Work,
        start_s: float,
        end_s: float,
        instance: int,
        sms: int,
        predicted_s: float,
        seen: tuple[int, int, Source],
    ) -> None:
        """Adds a finished step; ``seen`` is the last columns of its row, as it was launched."""
        prefill, decodes, context, layers, _, transferred, _ = work
        new = 0
        for chunk_new, chunk_cached in prefill:
            new += chunk_new
            context += chunk_new + chunk_cached
        if lane == LINK:
            sms, layers, context = 0, layers or 0, transferred
        elif layers is None:
            layers = self._model_layers
        number = self._lanes.get(lane)
        if number is None:
            number = self.lane(lane)
        waiting, free_blocks, source = seen
        rows = self.rows
        rows.runs.append((1, start_s, instance, number, sms, new, len(prefill), decodes, context, layers, waiting))
        rows.ends_s.append(end_s)
        rows.predicted_s.append(predicted_s)
        rows.free_blocks.append(free_blocks)
        rows.sources.append(source)
        rows.settle()

    def emitted(self, request: RequestState, at_s: float) -> None:
        """Notes a token that ended a prefill."""
        if self._token_times is not None:
            self._token_times[request.request_id].append(at_s)

    def leaving(self, request: RequestState) -> None:
        """Notes the tokens of a request that is about to leave its cohort."""
        if self._token_times is not None and request.cohort is not None:
            first = request.joined_step + 1
            times = request.cohort.ends_s(first, request.joined_step + request.decode_steps + 1)
            self._token_times[request.request_id].extend(times)

    def result(
        self,
        *,
        requests: RequestLog,
        odd_gaps_s: array[float],
        cohorts: list[DecodeCohort],
        end_s: float,
        instances: int,
        sms: int,
        cut_off: list[Launch],
        caches: list[PrefixCache],
    ) -> RunResult:
        """Everything in columns; ``cut_off`` are steps in flight: no rows, but they held their SMs until the end."""
        steps = self._steps()
        seconds, counts = _distinct(odd_gaps_s, cohorts)
        return RunResult(
            records=requests.records(),
            steps=steps,
            itl_s=seconds,
            itl_count=counts,
            source_s=self.rows.source_s,
            end_s=end_s,
            sm_seconds=sum(_sm_seconds(steps, cut_off, end_s, index, sms) for index in range(instances)),
            instances=instances,
            sms=sms,
            token_times={name: np.array(times) for name, times in (self._token_times or {}).items()},
            prefixes=_prefix_use(caches),
        )

    def _steps(self) -> StepLog:
        return StepLog(lane_names=tuple(self._lanes), **self.rows.whole())


def _prefix_use(caches: list[PrefixCache]) -> PrefixUse | None:
    if not caches:
        return None
    return PrefixUse(
        asked_tokens=sum(cache.asked_tokens for cache in caches),
        hit_tokens=sum(cache.hit_tokens for cache in caches),
        evicted_blocks=sum(cache.evicted_blocks for cache in caches),
    )


def _sm_seconds(steps: StepLog, cut_off: list[Launch], end_s: float, instance: int, sms: int) -> float:
    """SM-seconds that steps held on one instance. Shares that overlap for a while hold no more than there is."""
    total, since_s, here = 0.0, -np.inf, np.flatnonzero(steps.instance == instance)
    # A span of steps at a time: sorting all of a long run at once takes more memory than the run itself.
    for last in here[SPAN_STEPS:-1:SPAN_STEPS]:
        to_s = float(steps.end_s[last])
        total += _held(steps, here, [], (since_s, to_s), sms)
        since_s = to_s
    cut = [launch for launch in cut_off if launch.instance == instance]
    return total + _held(steps, here, cut, (since_s, end_s), sms)


def _held(steps: StepLog, here: Places, cut: list[Launch], span_s: tuple[float, float], sms: int) -> float:
    """SM-seconds of the steps at ``here`` and of ``cut`` within a span of time."""
    from_s, to_s = span_s
    place = here[(steps.end_s[here] > from_s) & (steps.start_s[here] < to_s)]
    starts = np.concatenate([np.maximum(steps.start_s[place], from_s), [launch.start_s for launch in cut]])
    ends = np.concatenate([np.minimum(steps.end_s[place], to_s), [to_s] * len(cut)])
    held = np.concatenate([steps.sms[place], np.array([launch.step.sms for launch in cut], dtype=np.int64)])
    times = np.concatenate([starts, ends])
    order = np.argsort(times, kind="stable")
    in_use = np.minimum(np.cumsum(np.concatenate([held, -held])[order]), sms)[:-1]
    return float((in_use * np.diff(times[order])).sum())


def _distinct(odd_gaps_s: array[float], cohorts: list[DecodeCohort]) -> tuple[np.ndarray, np.ndarray]:
    """Distinct inter-token times and their counts: those of whole steps, and the odd ones of single requests."""
    found: list[tuple[Floats, Counts]] = [(np.array(odd_gaps_s), np.ones(len(odd_gaps_s), np.int32))]
    for cohort in cohorts:
        found += cohort.take_gaps()
    return counted(found)
