"""The loop and the executor against queueing theory, within 99 % intervals over independent replications.

Every experiment runs on a device with constant costs, so that only arrivals, waiting and re-rating are at work. The
seeds are fixed: a pass is a pass for ever, and the interval says how sharp the test is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from policies import ChunkedPrefill, Decision, LeastLoaded, Policy
from policies.api import Chunk, Role, Step, View
from sim import RunResult
from tests.toys import serve, toy_latency
from traces.request import Request

REPLICATIONS = 24
REQUESTS = 2000
WARM_UP = 300
CONFIDENCE = 0.99


def interval(values: list[float]) -> tuple[float, float]:
    """The Student interval of the mean of independent values."""
    mean, error = float(np.mean(values)), float(stats.sem(values))
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * error
    return mean - reach, mean + reach


def mean_wait(services: NDArray[np.int64], rng: np.random.Generator, load: float) -> float:
    """Mean time in queue of one-token requests that take services * 0.01 s, arriving at random."""
    gaps = rng.exponential(0.01 * services.mean() / load, REQUESTS)
    rows = list(zip(np.cumsum(gaps).tolist(), services.tolist(), [1] * REQUESTS, strict=True))
    # One request at a time: a budget of one prompt, one resident.
    result = serve(ChunkedPrefill(budget_tokens=1 << 30, max_resident=1), rows, blocks=1 << 20, check=False)
    records = result.records
    return float((records.scheduled_s - records.arrival_s)[WARM_UP:].mean())


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_md1_mean_wait(load: float):
    """Pollaczek-Khinchine for constant service D: W = load * D / (2 (1 - load))."""
    service_s = 1.0
    waits = [mean_wait(np.full(REQUESTS, 100), np.random.default_rng([1, seed]), load) for seed in range(REPLICATIONS)]
    low, high = interval(waits)
    assert low <= load * service_s / (2 * (1 - load)) <= high
    assert high - low < 0.35 * np.mean(waits)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_mm1_mean_wait(load: float):
    """For exponential service with mean S: W = load * S / (1 - load); lengths rounded up to 1 ms of service each."""
    waits, means = [], []
    for seed in range(REPLICATIONS):
        rng = np.random.default_rng([2, seed])
        services = np.ceil(rng.exponential(1000, REQUESTS)).astype(np.int64)
        gaps = rng.exponential(1.0005 / load, REQUESTS)
        rows = list(zip(np.cumsum(gaps).tolist(), services.tolist(), [1] * REQUESTS, strict=True))
        policy = ChunkedPrefill(budget_tokens=1 << 30, max_resident=1)
        result = serve(policy, rows, latency=toy_latency(prefill_token_s=0.001), blocks=1 << 20, check=False)
        waits.append(float((result.records.scheduled_s - result.records.arrival_s)[WARM_UP:].mean()))
        means.append(services.mean() * 0.001)
    low, high = interval(waits)
    assert low <= load * 1.0005 / (1 - load) <= high
    assert high - low < 0.4 * np.mean(waits)
    assert np.mean(means) == pytest.approx(1.0005, rel=0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserALane:
    """Two users, each with a lane of its own: even prompts run on one, odd ones on the other."""

    name: ClassVar[str] = "user a lane"
    needs_truth: ClassVar[bool] = False
    fewest_instances: ClassVar[int] = 1
    router: LeastLoaded = field(default_factory=LeastLoaded)

    def roles(self, instances: int) -> tuple[Role, ...]:
        return ("mixed",)

    def lanes(self, role: Role) -> tuple[str, ...]:
        return ("left", "right")

    def decide(self, view: View) -> Decision:
        steps = []
        for lane, name in enumerate(self.lanes(view.role)):
            for request in view.waiting.values():
                if request.prompt_tokens % 2 == lane and not view.lanes[name].busy:
                    steps.append(Step(name, 1, prefill=(Chunk(request, request.prefill_tokens),)))
                    break
        return Decision(tuple(steps))


class TwoUsers:
    """A closed loop: each of two users thinks, asks, waits for the answer, and thinks again.

    A service of k times 0.2 ms is a prompt of 2 k tokens of 0.1 ms, and one more for the second user: its parity says
    whose it is.
    """

    def __init__(self, services: NDArray[np.int64], thinks: NDArray[np.float64]) -> None:
        self._services = services
        self._thinks = thinks
        self._asked = [0, 0]
        self._due = [(float(thinks[user, 0]), user) for user in (0, 1)]
        self._asker: list[int] = []

    def peek_s(self) -> float | None:
        return min(self._due)[0] if self._due else None

    def pop(self) -> Request:
        arrival_s, user = min(self._due)
        self._due.remove((arrival_s, user))
        service = int(self._services[user, self._asked[user]]) * 2 + user
        self._asker.append(user)
        self._asked[user] += 1
        return Request(request_id=str(len(self._asker)), arrival_s=arrival_s, prompt_tokens=service, output_tokens=1)

    def finished(self, index: int, now_s: float) -> None:
        user = self._asker[index]
        if self._asked[user] < self._services.shape[1]:
            self._due.append((now_s + float(self._thinks[user, self._asked[user]]), user))


def service_times(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Services with mean 1: exponential, deterministic, or hyperexponential with a squared CV of 4."""
    if kind == "exponential":
        return rng.exponential(1.0, shape)
    if kind == "deterministic":
        return np.ones(shape)
    # Balanced means: rates 2p and 2(1 - p) with p chosen for the squared CV.
    p = (1 + np.sqrt(3 / 5)) / 2
    fast = rng.random(shape) < p
    return rng.exponential(np.where(fast, 1 / (2 * p), 1 / (2 * (1 - p))))


def closed_loop_throughput(policy: Policy, kind: str, a: float, seed: int, asks: int = 500) -> float:
    """Requests a second of two users with think time 1 and service ``a``; the lanes of a device halve each other."""
    rng = np.random.default_rng([3, seed])
    services = np.maximum(1, np.round(service_times(kind, rng, (2, asks)) * a * 5e3)).astype(np.int64)
    arrivals = TwoUsers(services, rng.exponential(1.0, (2, asks)))
    result: RunResult = serve(
        policy,
        arrivals=arrivals,
        latency=toy_latency(prefill_token_s=1e-4, shared_slowdown=2.0),
        blocks=1 << 40,
        check=False,
    )
    ends = np.sort(result.records.last_token_s)
    # One user may run out before the other: stop where both were still asking.
    both = min(result.records.arrival_s[result.records.prompt_tokens % 2 == user].max() for user in (0, 1))
    return float((ends <= both).sum() / both)


@pytest.mark.parametrize("kind", ["exponential", "deterministic", "hyperexponential"])
@pytest.mark.parametrize("a", [0.5, 2.0])
def test_two_users_sharing_a_device_in_closed_loop(kind: str, a: float):
    """Processor sharing with exponential think time Z and service S: (1 - 1 / (1 + 2a + 2a^2)) / S, a = S / Z.

    It depends on the service's mean alone; first come, first served does not give it for deterministic or
    hyperexponential service, so a loop that queued instead of re-rating would fail.
    """
    values = [closed_loop_throughput(UserALane(), kind, a, seed) for seed in range(REPLICATIONS)]
    low, high = interval(values)
    expected = (1 - 1 / (1 + 2 * a + 2 * a * a)) / a
    assert low <= expected <= high
    assert high - low < 0.08 * expected


def test_queueing_in_order_does_not_pass_for_sharing():
    """The same users on one lane, first come, first served: the interval of deterministic service lies elsewhere."""
    one_at_a_time = ChunkedPrefill(budget_tokens=1 << 30, max_resident=1)
    values = [closed_loop_throughput(one_at_a_time, "deterministic", 2.0, seed) for seed in range(REPLICATIONS)]
    low, _ = interval(values)
    assert low > (1 - 1 / (1 + 2 * 2 + 2 * 4)) / 2
