"""What a run adds up as it goes: one row a step, seconds by source, and at the end the columns of its records."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from policies.api import LINK
from sim.launch import Launch
from sim.records import STATES, Records, RunResult, StepLog
from sim.state import InterTokenTimes, RequestState

StepRow = tuple[float, float, int, int, int, int, int, int, int, int, float, int, int]


class Tally:
    """Collects steps and, where asked for, every token's time."""

    def __init__(self, *, keep_token_times: bool) -> None:
        self._rows: list[StepRow] = []
        self._lanes: dict[str, int] = {}
        self._source_s: defaultdict[str, float] = defaultdict(float)
        self._sm_seconds = 0.0
        self._token_times: defaultdict[str, list[float]] | None = defaultdict(list) if keep_token_times else None

    def completed(self, launch: Launch, end_s: float, model_layers: int) -> None:
        """Adds a finished step."""
        work, step, predicted = launch.work, launch.step, launch.predicted
        start_s = launch.start_s
        duration_s = end_s - start_s
        self._source_s[predicted.source] += duration_s
        if step.lane == LINK:
            sms = layers = 0
        else:
            sms = step.sms
            layers = model_layers if work.layers is None else work.layers
        self._sm_seconds += sms * duration_s
        lane = self._lanes.get(step.lane)
        if lane is None:
            lane = self._lanes[step.lane] = len(self._lanes)
        new = cached = 0
        for chunk_new, chunk_cached in work.prefill:
            new += chunk_new
            cached += chunk_cached
        self._rows.append(
            (
                start_s,
                end_s,
                launch.instance,
                lane,
                sms,
                new,
                len(work.prefill),
                work.decode_requests,
                work.decode_context_tokens + new + cached + work.kv_transfer_tokens,
                layers,
                predicted.seconds,
                launch.waiting,
                launch.free_blocks,
            )
        )

    def emitted(self, request: RequestState, at_s: float) -> None:
        """Notes a token that ended a prefill."""
        if self._token_times is not None:
            self._token_times[request.request_id].append(at_s)

    def leaving(self, request: RequestState) -> None:
        """Notes the tokens of a request that is about to leave its cohort."""
        if self._token_times is not None and request.cohort is not None:
            first = request.joined_step + 1
            times = request.cohort.end_s[first : request.joined_step + request.decode_steps + 1]
            self._token_times[request.request_id].extend(times)

    def result(
        self,
        *,
        requests: list[RequestState],
        answer_tokens: list[int],
        itl: InterTokenTimes,
        end_s: float,
        instances: int,
        sms: int,
    ) -> RunResult:
        """Everything in columns. Requests still decoding keep the tokens they have."""
        for request in requests:
            if request.cohort is not None:
                self.leaving(request)
                request.cohort.leave(request)
        seconds, counts = _distinct(itl)
        return RunResult(
            records=_records(requests, answer_tokens),
            steps=self._steps(),
            itl_s=seconds,
            itl_count=counts,
            source_s=dict(self._source_s),
            end_s=end_s,
            sm_seconds=self._sm_seconds,
            instances=instances,
            sms=sms,
            token_times={name: np.array(times) for name, times in (self._token_times or {}).items()},
        )

    def _steps(self) -> StepLog:
        columns = list(zip(*self._rows, strict=True)) if self._rows else [()] * 13
        ints = {
            name: np.array(columns[position], dtype=np.int64)
            for name, position in (
                ("instance", 2),
                ("sms", 4),
                ("prefill_tokens", 5),
                ("prefill_requests", 6),
                ("decode_requests", 7),
                ("context_tokens", 8),
                ("layers", 9),
                ("waiting", 11),
                ("free_blocks", 12),
            )
        }
        return StepLog(
            lane_names=tuple(self._lanes),
            start_s=np.array(columns[0], dtype=np.float64),
            end_s=np.array(columns[1], dtype=np.float64),
            lane=np.array(columns[3], dtype=np.int8),
            predicted_s=np.array(columns[10], dtype=np.float64),
            **ints,
        )


def _distinct(itl: InterTokenTimes) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray]:
    if not itl.seconds:
        return np.empty(0), np.empty(0, dtype=np.int64)
    seconds, where = np.unique(np.array(itl.seconds), return_inverse=True)
    counts = np.bincount(where, weights=np.array(itl.counts, dtype=np.float64)).astype(np.int64)
    return seconds, counts


def _records(requests: list[RequestState], answer_tokens: list[int]) -> Records:
    nan = float("nan")

    def seconds(values: list[float | None]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([nan if value is None else value for value in values], dtype=np.float64)

    def counts(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(values, dtype=np.int64)

    return Records(
        request_id=tuple(r.request_id for r in requests),
        arrival_s=seconds([r.arrival_s for r in requests]),
        prompt_tokens=counts([r.prompt_tokens for r in requests]),
        output_tokens=counts(answer_tokens),
        generated_tokens=counts([r.emitted for r in requests]),
        scheduled_s=seconds([r.scheduled_s for r in requests]),
        first_token_s=seconds([r.first_token_s for r in requests]),
        last_token_s=seconds([r.emitted_s for r in requests]),
        itl_mean_s=seconds([_itl_mean_s(r) for r in requests]),
        itl_max_s=seconds([r.itl_max_s for r in requests]),
        preemptions=counts([r.preemptions for r in requests]),
        cached_tokens=counts([0] * len(requests)),
        instance=counts([r.instance for r in requests]),
        state=np.array([STATES.index(r.state) for r in requests], dtype=np.int8),
        reason=tuple(r.reason for r in requests),
    )


def _itl_mean_s(request: RequestState) -> float | None:
    if request.emitted < 2 or request.first_token_s is None or request.emitted_s is None:
        return None
    return (request.emitted_s - request.first_token_s) / (request.emitted - 1)
