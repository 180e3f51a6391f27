"""What a run leaves behind: one row a request, one row a step, in columns.

Both worlds fill these, the simulator and a device, and everything later (metrics, plots, validation) is computed
from them alone. A value that does not exist is NaN in a float column and null in the Parquet file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.integer[Any]]

STATES = ("finished", "rejected", "running", "waiting")
"""How a request stood when the run ended; ``Records.state`` indexes this."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """One row a request that arrived, in order of arrival; every column has shape (n,).

    ``scheduled_s`` is when its first step began, NaN if none did; ``itl_mean_s`` and ``itl_max_s`` are over its
    inter-token times and NaN below two tokens; ``instance`` is where it last was, -1 if nowhere; ``reason`` says
    why a request was rejected and is empty otherwise.
    """

    request_id: tuple[str, ...]
    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    generated_tokens: NDArray[np.int64]
    scheduled_s: NDArray[np.float64]
    first_token_s: NDArray[np.float64]
    last_token_s: NDArray[np.float64]
    itl_mean_s: NDArray[np.float64]
    itl_max_s: NDArray[np.float64]
    preemptions: NDArray[np.int64]
    cached_tokens: NDArray[np.int64]
    instance: NDArray[np.int64]
    state: NDArray[np.int8]
    reason: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.request_id)


@dataclass(frozen=True, kw_only=True, eq=False)
class StepLog:
    """One row a step, in order of completion; every column has shape (n,), counts in 16 or 32 bits from a run.

    ``sms`` is the share a device of the instance gave it (0 on the link), ``layers`` how many of the model's
    layers it ran, ``predicted_s`` what its latency model said at launch; ``waiting`` and ``free_blocks`` are the
    instance's when it was launched. ``lane`` indexes ``lane_names``.
    """

    lane_names: tuple[str, ...]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    instance: Counts
    lane: NDArray[np.int8]
    sms: Counts
    prefill_tokens: Counts
    prefill_requests: Counts
    decode_requests: Counts
    context_tokens: Counts
    layers: Counts
    predicted_s: NDArray[np.float64]
    waiting: Counts
    free_blocks: Counts

    def __len__(self) -> int:
        return len(self.start_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixUse:
    """Tokens that requests had to prefill as they began, how many of them were cached, and KV blocks that were evicted.

    A request that begins again after a pre-emption counts again, with the tokens that it had by then.
    """

    asked_tokens: int
    hit_tokens: int
    evicted_blocks: int


@dataclass(frozen=True, kw_only=True, eq=False)
class RunResult:
    """Everything one run of the serving loop produced.

    itl_s, itl_count: distinct inter-token times and how many tokens saw each, shape (k,): the exact distribution
        without a row a token.
    source_s: seconds of steps by what their prediction rests on (measured, interpolated, ...).
    end_s: the time at which the run stopped.
    interrupted: whether it was stopped before its end, which may not be at ``until_s``.
    prefixes: what the prefix caches of all instances did; None where there are none.
    sm_seconds: SM-seconds held by steps over all instances, per device of an instance; where shares overlap, no more
        than the device has.
    """

    records: Records
    steps: StepLog
    itl_s: NDArray[np.float64]
    itl_count: NDArray[np.int64]
    source_s: Mapping[str, float]
    end_s: float
    sm_seconds: float
    instances: int
    sms: int
    token_times: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    prefixes: PrefixUse | None = None
    interrupted: bool = False
