"""What a decision of Bullet costs on one core, by workload and rate. Prints Markdown.

    python benchmarks/decisions.py [--requests 600] [--policy bullet]

Every call of ``decide`` in a run is timed by its thread's CPU time, the timer's own (some 0.3 us) included; the
garbage collector is off, as in every run. Means and quantiles are over all decisions of the run, the trivial ones
included. A latency model works out each shape when it is first asked, and a run meets most of its shapes once. So each
run is served twice by one model: the second time, *again*, all tables are filled, and what is left is the policy's own.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.paper_kernels import table  # noqa: E402
from benchmarks.speed import machine  # noqa: E402
from policies.api import Decision, Policy, Role, Router, View  # noqa: E402
from sim.config import RunConfig, checked  # noqa: E402
from sim.scenarios import DEVICE, MODEL, PAPER_SLOS  # noqa: E402
from sim.simulate import prepare  # noqa: E402

RATES = {"sharegpt": (5.0, 10.0, 15.0), "code": (3.0, 5.0, 7.0)}
"""Requests/s, by built-in workload."""

REQUIRED_US = {"mean": 5.0, "P99": 50.0}


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A policy that notes the seconds of each of its decisions."""

    policy: Policy
    seconds: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def needs_truth(self) -> bool:
        return self.policy.needs_truth

    @property
    def router(self) -> Router:
        return self.policy.router

    @property
    def fewest_instances(self) -> int:
        return self.policy.fewest_instances

    def roles(self, instances: int) -> tuple[Role, ...]:
        return self.policy.roles(instances)

    def lanes(self, role: Role) -> tuple[str, ...]:
        return self.policy.lanes(role)

    def decide(self, view: View) -> Decision:
        start = time.thread_time()
        decision = self.policy.decide(view)
        self.seconds.append(time.thread_time() - start)
        return decision


def decisions_us(policy: str, workload: str, rate: float, requests: int) -> tuple[np.ndarray, np.ndarray]:
    """Microseconds of each decision of a run, shape (n,): the first time, and again."""
    settings = {
        "trace": f"workload:{workload}",
        "rate": rate,
        "requests": requests,
        "policy": policy,
        "model": MODEL,
        "device": DEVICE,
        "slo": PAPER_SLOS[workload],
    }
    prepared = prepare(checked(RunConfig, settings, f"{policy} on {workload}"))
    first, again = Timed(policy=prepared.policy), Timed(policy=prepared.policy)
    for timed in (first, again):
        # A policy in all but that its name is a property.
        replace(prepared, policy=cast(Policy, timed)).run()
    return 1e6 * np.array(first.seconds), 1e6 * np.array(again.seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table. Status 0: a busy machine is no failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--policy", default="bullet")
    given = parser.parse_args(arguments)
    about = machine()
    print(
        f"{about['cpu']}, {about['cores']} cores, Python {about['python']}, load {about['load']} before the first run"
    )
    rows, firsts, agains = [], [], []
    for workload, rates in RATES.items():
        for rate in rates:
            first, again = decisions_us(given.policy, workload, rate, given.requests)
            firsts.append(first)
            agains.append(again)
            rows.append((workload, f"{rate:g}", *numbers(first, again)))
    rows.append(("all", "", *numbers(np.concatenate(firsts), np.concatenate(agains))))
    header = (
        "workload",
        "requests/s",
        "decisions",
        "mean, us",
        "P50",
        "P90",
        "P99",
        "max",
        "again: mean",
        "P50",
        "P99",
    )
    table(f"{given.policy}: {MODEL} on {DEVICE}, {given.requests} requests a run", header, rows)
    asked = ", ".join(f"{name} {limit:g} us" for name, limit in REQUIRED_US.items())
    print(f"\nAsked for, over all decisions: {asked}")
    return 0


def numbers(first: np.ndarray, again: np.ndarray) -> tuple[str, ...]:
    """Columns of the table from decisions' microseconds, shape (n,)."""
    found = (first.mean(), *np.quantile(first, [0.5, 0.9, 0.99, 1.0]), again.mean(), *np.quantile(again, [0.5, 0.99]))
    return (str(len(first)), *(f"{one:.1f}" for one in found))


if __name__ == "__main__":
    sys.exit(main())
