"""What a run adds up as it goes: one row a step, seconds by source, and at the end the columns of its records."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from policies.api import LINK
from sim.launch import Launch
from sim.records import STATES, Records, RunResult, StepLog
from sim.state import DecodeCohort, RequestState

FLUSH_STEPS = 4096
"""Steps kept as objects before they become columns: few enough to be small, many enough to be quick."""

_COLUMNS: dict[str, type[np.generic]] = {
    "start_s": np.float64,
    "end_s": np.float64,
    "instance": np.int64,
    "lane": np.int8,
    "sms": np.int64,
    "prefill_tokens": np.int64,
    "prefill_requests": np.int64,
    "decode_requests": np.int64,
    "context_tokens": np.int64,
    "layers": np.int64,
    "predicted_s": np.float64,
    "waiting": np.int64,
    "free_blocks": np.int64,
}


class Tally:
    """Collects steps and, where asked for, every token's time."""

    def __init__(self, *, model_layers: int, keep_token_times: bool) -> None:
        self._model_layers = model_layers
        self._pending: list[tuple[Launch, float]] = []
        self._blocks: list[dict[str, np.ndarray]] = []
        self._lanes: dict[str, int] = {}
        self._source_s: defaultdict[str, float] = defaultdict(float)
        self._sm_seconds = 0.0
        self._token_times: defaultdict[str, list[float]] | None = defaultdict(list) if keep_token_times else None

    def completed(self, launch: Launch, end_s: float) -> None:
        """Adds a finished step."""
        self._pending.append((launch, end_s))
        if len(self._pending) == FLUSH_STEPS:
            self._flush()

    def _flush(self) -> None:
        """Turns the pending steps into a block of columns."""
        if not self._pending:
            return
        launches = [launch for launch, _ in self._pending]
        steps = [launch.step for launch in launches]
        works = [launch.work for launch in launches]
        on_link = np.array([step.lane == LINK for step in steps])
        prefill = np.array([_tokens(work.prefill) if work.prefill else (0, 0) for work in works])
        context = np.array([work.decode_context_tokens + work.kv_transfer_tokens for work in works])
        layers = np.array([self._model_layers if work.layers is None else work.layers for work in works])
        for step in steps:
            self._lanes.setdefault(step.lane, len(self._lanes))
        columns: dict[str, object] = {
            "start_s": [launch.start_s for launch in launches],
            "end_s": [end_s for _, end_s in self._pending],
            "instance": [launch.instance for launch in launches],
            "lane": [self._lanes[step.lane] for step in steps],
            "sms": np.where(on_link, 0, [step.sms for step in steps]),
            "prefill_tokens": prefill[:, 0],
            "prefill_requests": [len(work.prefill) for work in works],
            "decode_requests": [work.decode_requests for work in works],
            "context_tokens": context + prefill.sum(axis=1),
            "layers": np.where(on_link, 0, layers),
            "predicted_s": [launch.predicted.seconds for launch in launches],
            "waiting": [launch.waiting for launch in launches],
            "free_blocks": [launch.free_blocks for launch in launches],
        }
        block = {name: np.asarray(columns[name], dtype=dtype) for name, dtype in _COLUMNS.items()}
        self._blocks.append(block)
        duration_s = block["end_s"] - block["start_s"]
        self._sm_seconds += float((block["sms"] * duration_s).sum())
        for launch, seconds in zip(launches, duration_s.tolist(), strict=True):
            self._source_s[launch.predicted.source] += seconds
        self._pending.clear()

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
        odd_gaps_s: list[float],
        cohorts: list[DecodeCohort],
        end_s: float,
        instances: int,
        sms: int,
    ) -> RunResult:
        """Everything in columns. Requests still decoding keep the tokens they have."""
        for request in requests:
            if request.cohort is not None:
                self.leaving(request)
                request.cohort.leave(request)
        self._flush()
        seconds, counts = _distinct(odd_gaps_s, cohorts)
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
        empty = {name: np.empty(0, dtype=dtype) for name, dtype in _COLUMNS.items()}
        blocks = self._blocks or [empty]
        columns = {name: np.concatenate([block[name] for block in blocks]) for name in _COLUMNS}
        return StepLog(lane_names=tuple(self._lanes), **columns)


def _tokens(chunks: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """(new, cached) tokens of some chunks together."""
    return sum(new for new, _ in chunks), sum(cached for _, cached in chunks)


def _distinct(odd_gaps_s: list[float], cohorts: list[DecodeCohort]) -> tuple[np.ndarray, np.ndarray]:
    """Distinct inter-token times and their counts: those of whole steps, and the odd ones of single requests."""
    seconds = np.concatenate([np.array(odd_gaps_s), *(np.array(cohort.gap_s) for cohort in cohorts)])
    counts = np.concatenate([np.ones(len(odd_gaps_s)), *(np.array(cohort.gap_count) for cohort in cohorts)])
    distinct, where = np.unique(seconds, return_inverse=True)
    totals = np.bincount(where, weights=counts, minlength=len(distinct)).astype(np.int64)
    return distinct[totals > 0], totals[totals > 0]


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
