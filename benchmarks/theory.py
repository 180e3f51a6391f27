"""The serving loop, its executor and the closed loop of users against queueing theory. Prints Markdown.

    python benchmarks/theory.py [--replications 24] [--seed 0]

Everything runs on a device with constant costs, so that only arrivals, waiting and re-rating are at work. S is the
mean service time of a request alone on the device. One request at a time, first come, first served, arriving at
random at a rate of load / S (Pollaczek-Khinchine, mean time in queue):

    M/D/1   W = load * S / (2 (1 - load))
    M/M/1   W = load * S / (1 - load)

N users, each of whom thinks for an exponential time with mean Z, asks, waits for the answer, and thinks again. With n
of them being served, users come at (N - n) / Z and go at 1 / S, whichever of them the device works on. So n is a
birth-death process with p[n] = p[0] * N! / (N - n)! * a^n for a = S / Z, and the device is busy for 1 - p[0]:

    throughput = (1 - 1 / sum over n of N! / (N - n)! * a^n) / S        N = 2: (1 - 1 / (1 + 2a + 2a^2)) / S

This holds for exponential service in any order (M/M/1//N), and under processor sharing, where n users get 1/n of the
device each, for every distribution of service with the same mean. First come, first served, it does not: two users
with constant service leave the other one still thinking with exp(-a), after which the device waits Z/2 on average for
the first of both, so that

    throughput = 1 / (S + exp(-a) Z / 2)

A loop that queued where it should share would give this, and an interval that holds the one and not the other shows
that the experiment can tell them apart.

Each value is an interval of Student over independent replications whose seeds are SEED, SEED + 1, ... Exit status 1
where theory lies outside one. Of intervals of 99 %, one in a hundred is wrong by chance.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.paper_kernels import table  # noqa: E402
from policies import ChunkedPrefill, Decision, LeastLoaded, Policy  # noqa: E402
from policies.api import Chunk, Role, Step, View  # noqa: E402
from tests.toys import serve, toy_latency, trace_of  # noqa: E402
from traces.arrivals import ClosedLoop  # noqa: E402
from traces.request import Request  # noqa: E402

REPLICATIONS = 24
CONFIDENCE = 0.99

OPEN_REQUESTS = {0.5: 1000, 0.8: 2000}
"""Requests of a replication with open arrivals, by load: the higher, the longer successive waits are alike."""

OPEN_WARM_UP = 300
"""Those left out at its start, where the queue is too short."""

MM1_SERVICE_S = 1.0005
"""Mean of an exponential with mean 1 s when every draw is rounded up to whole milliseconds."""

ASKS = 500
"""Requests of each of two users."""

FINITE_WARM_UP_S, FINITE_REQUESTS = 20.0, 1000
"""Of a run with users from ClosedLoop: seconds left out at its start, and requests expected in what counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """``replicate`` makes one independent value from a seed; theory gives their mean.

    widest: the interval's width may be this share of the mean, or it shows nothing.
    excluded: what another discipline gives, which must lie outside the interval.
    """

    name: str
    quantity: str
    theory: float
    replicate: Callable[[int], float]
    widest: float
    excluded: float | None = None


class Finding(NamedTuple):
    """The interval that an experiment's mean lies in."""

    experiment: Experiment
    low: float
    high: float

    @property
    def width(self) -> float:
        """As a share of the mean, the interval's middle."""
        return 2 * (self.high - self.low) / (self.high + self.low)

    @property
    def inside(self) -> bool:
        return self.low <= self.experiment.theory <= self.high

    @property
    def passes(self) -> bool:
        """Whether theory lies inside, what must not does not, and the interval is narrow enough to say so."""
        excluded = self.experiment.excluded
        apart = excluded is None or not self.low <= excluded <= self.high
        return self.inside and apart and self.width < self.experiment.widest


def measure(experiment: Experiment, replications: int = REPLICATIONS, seed: int = 0) -> Finding:
    """The interval over ``replications`` seeds from ``seed`` on."""
    return Finding(experiment, *interval([experiment.replicate(seed + i) for i in range(replications)]))


def interval(values: list[float]) -> tuple[float, float]:
    """The Student interval of the mean of independent values."""
    mean, error = float(np.mean(values)), float(stats.sem(values))
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * error
    return mean - reach, mean + reach


def one_at_a_time() -> ChunkedPrefill:
    """First come, first served: a budget that holds any prompt, one resident."""
    return ChunkedPrefill(budget_tokens=1 << 30, max_resident=1)


def md1_wait_s(load: float, seed: int) -> float:
    """Mean time in queue of one-token requests that take 1 s each."""
    rng, count = np.random.default_rng([1, seed]), OPEN_REQUESTS[load]
    return _wait_s(np.full(count, 100), rng.exponential(1 / load, count), 0.01)


def mm1_wait_s(load: float, seed: int) -> float:
    """Mean time in queue of one-token requests with exponential service, mean MM1_SERVICE_S."""
    rng, count = np.random.default_rng([2, seed]), OPEN_REQUESTS[load]
    tokens = exponential_tokens(rng, count)
    return _wait_s(tokens, rng.exponential(MM1_SERVICE_S / load, count), 0.001)


def exponential_tokens(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Prompts of 1 ms a token; shape (count,)."""
    return np.ceil(rng.exponential(1000, count)).astype(np.int64)


def _wait_s(tokens: NDArray[np.int64], gaps_s: NDArray[np.float64], token_s: float) -> float:
    rows = list(zip(np.cumsum(gaps_s).tolist(), tokens.tolist(), [1] * len(tokens), strict=True))
    latency = toy_latency(prefill_token_s=token_s)
    records = serve(one_at_a_time(), rows, latency=latency, blocks=1 << 20, check=False).records
    return float((records.scheduled_s - records.arrival_s)[OPEN_WARM_UP:].mean())


def closed_throughput(users: int, a: float) -> float:
    """Requests a second of ``users`` who think for 1 s and need ``a`` seconds of the device, on average."""
    weights = [math.perm(users, n) * a**n for n in range(users + 1)]
    return (1 - 1 / sum(weights)) / a


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
    p = (1 + math.sqrt(3 / 5)) / 2
    fast = rng.random(shape) < p
    return rng.exponential(np.where(fast, 1 / (2 * p), 1 / (2 * (1 - p))))


def two_users_throughput(policy: Policy, kind: str, a: float, seed: int) -> float:
    """Requests a second of two users with think time 1 and service ``a``; the lanes of a device halve each other."""
    rng = np.random.default_rng([3, seed])
    services = np.maximum(1, np.round(service_times(kind, rng, (2, ASKS)) * a * 5e3)).astype(np.int64)
    result = serve(
        policy,
        arrivals=TwoUsers(services, rng.exponential(1.0, (2, ASKS))),
        latency=toy_latency(prefill_token_s=1e-4, shared_slowdown=2.0),
        blocks=1 << 40,
        check=False,
    )
    ends = np.sort(result.records.last_token_s)
    # One user may run out before the other: stop where both were still asking.
    both = min(result.records.arrival_s[result.records.prompt_tokens % 2 == user].max() for user in (0, 1))
    return float((ends <= both).sum() / both)


def finite_source_throughput(users: int, a: float, seed: int) -> float:
    """Requests a second of ``users`` of traces.ClosedLoop with think time 1 and exponential service of mean ``a``."""
    rng = np.random.default_rng([4, seed])
    span_s = FINITE_REQUESTS / closed_throughput(users, a)
    end_s = FINITE_WARM_UP_S + span_s
    # Enough requests that nobody runs out before the end: one and a half times what a busy device could serve.
    count = math.ceil(1.5 * end_s * min(1 / a, users))
    tokens = np.maximum(1, np.round(rng.exponential(a * 1e4, count))).astype(int).tolist()
    trace = trace_of(list(zip([0.0] * count, tokens, [1] * count, strict=True)))
    result = serve(
        one_at_a_time(),
        arrivals=ClosedLoop(trace, users, 1.0, seed),
        latency=toy_latency(prefill_token_s=1e-4),
        blocks=1 << 40,
        until_s=end_s,
        check=False,
    )
    assert len(result.records) < count, "the users ran out of requests"
    return float((result.records.last_token_s > FINITE_WARM_UP_S).sum() / span_s)


def waiting() -> list[Experiment]:
    """One request at a time, arriving at random."""
    found = []
    for load in (0.5, 0.8):
        wait_s = load / (1 - load)
        for name, theory, replicate, widest in (
            ("M/D/1", wait_s / 2, md1_wait_s, 0.35),
            ("M/M/1", wait_s * MM1_SERVICE_S, mm1_wait_s, 0.4),
        ):
            found.append(
                Experiment(
                    name=f"{name}, load {load}",
                    quantity="wait, s",
                    theory=theory,
                    replicate=partial(replicate, load),
                    widest=widest,
                )
            )
    return found


def sharing() -> list[Experiment]:
    """Two users in closed loop, each with a lane, under processor sharing."""
    return [
        Experiment(
            name=f"two users sharing, {kind} service, a = {a}",
            quantity="requests/s",
            theory=closed_throughput(2, a),
            replicate=partial(two_users_throughput, UserALane(), kind, a),
            widest=0.08,
        )
        for a in (0.5, 2.0)
        for kind in ("exponential", "deterministic", "hyperexponential")
    ]


def finite_source() -> list[Experiment]:
    """The users of traces.ClosedLoop, one request at a time."""
    return [
        Experiment(
            name=f"M/M/1//{users} with ClosedLoop, a = {a}",
            quantity="requests/s",
            theory=closed_throughput(users, a),
            replicate=partial(finite_source_throughput, users, a),
            widest=0.08,
        )
        for users, a in ((2, 0.5), (2, 2.0), (6, 0.3))
    ]


def in_order() -> Experiment:
    """The users of :func:`sharing` on one lane, with constant service: not what sharing gives."""
    a = 2.0
    excluded = closed_throughput(2, a)
    return Experiment(
        name=f"two users in order, deterministic service, a = {a} (sharing: {excluded:.4f})",
        quantity="requests/s",
        theory=1 / (a + math.exp(-a) / 2),
        replicate=partial(two_users_throughput, one_at_a_time(), "deterministic", a),
        widest=0.08,
        excluded=excluded,
    )


def show(findings: Sequence[Finding], replications: int) -> None:
    """Print one row an experiment."""
    rows = [
        (
            found.experiment.name,
            found.experiment.quantity,
            f"{found.experiment.theory:.4f}",
            f"{found.low:.4f} to {found.high:.4f}",
            f"{found.width:.1%}",
            "inside" if found.inside else "OUTSIDE",
        )
        for found in findings
    ]
    header = ("experiment", "quantity", "theory", f"{CONFIDENCE:.0%} interval", "width", "theory is")
    table(f"Queueing theory and the loop, {replications} replications", header, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where theory lies outside its interval, or where that is too wide to show anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=REPLICATIONS, help="2 or more")
    parser.add_argument("--seed", type=int, default=0, help="the first replication's")
    given = parser.parse_args(arguments)
    if given.replications < 2 or given.seed < 0:
        parser.error("--replications must be 2 or more and --seed 0 or more")
    experiments = [*waiting(), *sharing(), *finite_source(), in_order()]
    findings = [measure(experiment, given.replications, given.seed) for experiment in experiments]
    show(findings, given.replications)
    return 0 if all(found.passes for found in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
