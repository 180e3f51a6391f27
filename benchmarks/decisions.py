"""What a decision of Bullet costs on one core, by workload and rate. Prints Markdown.

    python benchmarks/decisions.py [--requests 600] [--policy bullet]

Every call of ``decide`` in a run is timed by the clock, the timer's own cost (some 0.1 us) included; the garbage
collector is off, as in every run. Means and quantiles are over all decisions of the run, the trivial ones included.
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
        start = time.perf_counter()
        decision = self.policy.decide(view)
        self.seconds.append(time.perf_counter() - start)
        return decision


def decisions_us(policy: str, workload: str, rate: float, requests: int) -> np.ndarray:
    """Microseconds of each decision of a run, shape (n,)."""
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
    timed = Timed(policy=prepared.policy)
    # A policy in all but that its name is a property.
    replace(prepared, policy=cast(Policy, timed)).run()
    return 1e6 * np.array(timed.seconds)


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
    rows, every = [], []
    for workload, rates in RATES.items():
        for rate in rates:
            found = decisions_us(given.policy, workload, rate, given.requests)
            every.append(found)
            rows.append((workload, f"{rate:g}", *numbers(found)))
    rows.append(("all", "", *numbers(np.concatenate(every))))
    header = ("workload", "requests/s", "decisions", "mean, us", "P50", "P90", "P99", "max")
    table(f"{given.policy}: {MODEL} on {DEVICE}, {given.requests} requests a run", header, rows)
    asked = ", ".join(f"{name} {limit:g} us" for name, limit in REQUIRED_US.items())
    print(f"Asked for, over all decisions: {asked}")
    return 0


def numbers(found: np.ndarray) -> tuple[str, ...]:
    """Columns of the table from decisions' microseconds, shape (n,)."""
    quantiles = np.quantile(found, [0.5, 0.9, 0.99, 1.0])
    return (str(len(found)), f"{found.mean():.1f}", *(f"{one:.1f}" for one in quantiles))


if __name__ == "__main__":
    sys.exit(main())
