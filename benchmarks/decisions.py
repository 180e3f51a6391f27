"""What a decision of Bullet costs on one core, by workload, rate and kind. Prints Markdown.

    python benchmarks/decisions.py [--requests 600] [--policy bullet] [--compiled .venv-fast]

Every call of ``decide`` in a run is timed by its thread's CPU time, the timer's own (some 0.3 us) included; the
garbage collector is off, as in every run. Means and quantiles are over all decisions of the run, the trivial ones
included. What a server makes ready before its first request is made before the run. All else a latency model works out
when it is first asked, and a run meets most of its shapes once. So each run is served twice by one model: the second
time, *again*, all tables are filled, and what is left is the policy's own.

A decision is the *next group* of a batch in progress, about *decode alone* (nothing is there to prefill), or a *plan*.
``--compiled`` times what `make fast` installed in that environment.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.paper_kernels import table  # noqa: E402
from benchmarks.speed import Reference, in_environment, machine  # noqa: E402
from policies.api import Decision, Policy, Role, Router, View  # noqa: E402
from policies.phases import DECODE, PREFILL  # noqa: E402
from profiler.kernelsum import KernelSumModel  # noqa: E402
from sim.config import RunConfig, checked  # noqa: E402
from sim.scenarios import DEVICE, MODEL, PAPER_SLOS  # noqa: E402
from sim.simulate import prepare  # noqa: E402

RATES = {"sharegpt": (5.0, 10.0, 15.0), "code": (3.0, 5.0, 7.0)}
"""Requests/s, by built-in workload."""

REQUIRED_US = {"mean": 5.0, "P99": 50.0}


KINDS = ("next group", "decode alone", "plan")

Floats = NDArray[np.float64]


def kind(view: View) -> str:
    """Of KINDS, what there is to decide; a policy without these two lanes always plans."""
    prefill, decode = view.lanes.get(PREFILL), view.lanes.get(DECODE)
    if prefill is None or decode is None:
        return "plan"
    if prefill.batch and not prefill.busy and (decode.busy or not view.decoding):
        return "next group"
    return "plan" if prefill.batch or view.waiting else "decode alone"


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A policy that notes the kind and the seconds of each of its decisions."""

    policy: Policy
    kinds: list[str] = field(default_factory=list)
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
        self.kinds.append(kind(view))
        start = time.thread_time()
        decision = self.policy.decide(view)
        self.seconds.append(time.thread_time() - start)
        return decision


class Decisions(NamedTuple):
    """Decisions of one run or of several, an entry each: kinds, and microseconds the first time and again."""

    kinds: NDArray[np.str_]
    first_us: Floats
    again_us: Floats

    def of(self, one: str) -> Decisions:
        """Those of a kind."""
        return Decisions(*(values[self.kinds == one] for values in self))


def decisions(policy: str, workload: str, rate: float, requests: int, reference: Reference) -> Decisions:
    """Those of a run, served twice; ``reference`` runs before each."""
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
    if isinstance(prepared.estimator, KernelSumModel):
        prepared.estimator.make_ready()
    first, again = Timed(policy=prepared.policy), Timed(policy=prepared.policy)
    for timed in (first, again):
        reference.burst()
        # A policy in all but that its name is a property.
        replace(prepared, policy=cast(Policy, timed)).run()
    return Decisions(np.array(first.kinds), 1e6 * np.array(first.seconds), 1e6 * np.array(again.seconds))


def together(parts: Sequence[Decisions]) -> Decisions:
    return Decisions(*map(np.concatenate, zip(*parts, strict=True)))


def numbers(found: Decisions) -> tuple[str, ...]:
    """Columns of a table: how many there are, and microseconds."""
    us = []
    for values in (found.first_us, found.again_us):
        us += [values.mean(), *np.quantile(values, [0.5, 0.9, 0.99])] if len(values) else [0.0] * 4
    return (str(len(found.kinds)), *(f"{one:.1f}" for one in us))


def show(policy: str, requests: int, runs: Mapping[tuple[str, float], Decisions]) -> None:
    """Print the tables: by run and by kind."""
    columns = ("decisions", "mean, us", "P50", "P90", "P99", "again: mean", "P50", "P90", "P99")
    everything = together(list(runs.values()))
    rows = [(workload, f"{rate:g}", *numbers(found)) for (workload, rate), found in runs.items()]
    rows.append(("all", "", *numbers(everything)))
    title = f"{policy}: {MODEL} on {DEVICE}, {requests} requests a run"
    table(title, ("workload", "requests/s", *columns), rows)
    table("All of them by kind", ("kind", *columns), [(one, *numbers(everything.of(one))) for one in KINDS])
    asked = ", ".join(f"{name} {limit:g} us" for name, limit in REQUIRED_US.items())
    print(f"\nAsked for, over all decisions: {asked}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables. Status 0: a busy machine is no failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--policy", default="bullet")
    parser.add_argument("--compiled", type=Path, metavar="ENVIRONMENT")
    given = parser.parse_args(arguments)
    if given.compiled is not None:
        rest = ["--requests", str(given.requests), "--policy", given.policy]
        try:
            return in_environment(given.compiled, "decisions.py", rest)
        except ValueError as error:
            parser.error(str(error))
    about, reference = machine(), Reference()
    runs = {
        (workload, rate): decisions(given.policy, workload, rate, given.requests, reference)
        for workload, rates in RATES.items()
        for rate in rates
    }
    python = f"Python {about['python']}{', compiled' if about['compiled'] else ''}"
    load = f"load {about['load']} before the first run"
    iteration = f"a loop iteration: {1e9 * reference.iteration_s:.0f} ns"
    print(f"{about['cpu']}, {about['cores']} cores, {python}, {load}, {iteration}")
    show(given.policy, given.requests, runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
