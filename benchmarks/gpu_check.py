"""All that there is to find out on a GPU, in ten minutes at most, in order of worth, into one tar.

    python benchmarks/gpu_check.py --wheels wheels --out out/check.tar                        # a GPU, no network
    python benchmarks/gpu_check.py --device cpu --model tiny --limit-s 240 --out out/check.tar

    tests        kernels, lanes and shares against the CPU's, by the tests that need a GPU        tests.xml
    shares       granted, disjoint, at work at once (gpu_shares.py)                     shares.json, shares.md
    profile      kernels, whole layers and co-runs on the coarse grid (bulletsim profile)            profile.*
    fit          the latency model (bulletsim fit)                                          model.json, fit.txt
    efficiency   prefill and decode against measured ceilings (efficiency.py)    efficiency.json, efficiency.md
    rates        around the simulated knee (gpu_rates.py), unless given                             rates.json
    validate     policies for real and simulated (bulletsim validate), once each, then again        validation/
    report       of the runs that there are, where validate was cut off

Every stage has a part of --limit-s at most, and validate what the others leave. The tar is written anew after each, so
a stage that fails, hangs or is killed costs no more than itself. summary.txt holds stages and targets, log.txt the
rest. Needs nothing but Python and torch with what --wheels holds. Exit status 1 where a stage was not ok.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import gpu_profile, gpu_summary  # noqa: E402
from benchmarks.gpu_box import BULLETSIM, Box, add_options, check, folder_of, opened  # noqa: E402

PROGRAMS: dict[str, tuple[str, ...]] = {
    "tests": (
        *("-m", "pytest", "-q", "-m", "gpu", "-o", "filterwarnings=", "-p", "no:cacheprovider"),
        *("tests/test_measure_gpu.py", "tests/test_real_gpu.py"),
    ),
    "shares": ("benchmarks/gpu_shares.py",),
    "profile": (*BULLETSIM, "profile"),
    "fit": (*BULLETSIM, "fit"),
    "efficiency": ("benchmarks/efficiency.py",),
    "rates": ("benchmarks/gpu_rates.py",),
    "validate": (*BULLETSIM, "validate"),
}
"""What Python runs in each stage, without its options."""

LIMIT_S = 560.0
SLO_FIELDS = ("ttft_per_token_s", "ttft_floor_s", "tpot_s")


class Sizes(NamedTuple):
    """What is served, and the part of --limit-s that each stage may have; ``report`` is kept free for it.

    simulated: requests of the simulations that look for the knee. rates: those served where these came to nothing.
    """

    requests: int
    shrink: int
    slots: int
    simulated: int
    rates: tuple[float, ...]
    limits: dict[str, float]


SIZES = {
    "cuda": Sizes(
        requests=150,
        shrink=1,
        slots=128,
        simulated=600,
        rates=(25.0, 50.0, 65.0),
        limits={"tests": 0.11, "shares": 0.06, "profile": 0.3, "fit": 0.08, "efficiency": 0.04, "rates": 0.05}
        | {"report": 0.11},
    ),
    "cpu": Sizes(
        requests=5,
        shrink=16,
        slots=5,
        simulated=100,
        rates=(1.0, 2.0, 2.6),
        limits={"shares": 0.16, "profile": 0.2, "fit": 0.12, "efficiency": 0.08, "rates": 0.08, "report": 0.18},
    ),
}


def main(arguments: Sequence[str]) -> int:
    """The exit status; prints the summary."""
    options = parsed(arguments)
    made: Box | None = None
    with opened(options) as box:
        made = box
        box.before_packing = lambda: gpu_summary.write(box.folder, box.stages, options.device)
        Check(options, box).run()
    print()
    print((folder_of(options) / "summary.txt").read_text(encoding="utf-8"), end="")
    return int(made is None or any(stage.status not in ("ok", "skipped") for stage in made.stages))


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, LIMIT_S)
    parser.add_argument("--trace", default="workload:sharegpt")
    parser.add_argument("--requests", type=int, help="of each run")
    parser.add_argument("--shrink", type=int, help="divide lengths by this")
    parser.add_argument("--slots", type=int, help="requests that the device may hold")
    parser.add_argument("--rate", type=float, action="append", help="repeatable; by default around the knee")
    parser.add_argument("--until", type=float, help="stop each run at this second")
    parser.add_argument("--repeats", type=int, default=2, help="of each run (default %(default)s)")
    options = parser.parse_args(arguments)
    check(parser, options)
    sizes = SIZES[options.device]
    for name in ("requests", "shrink", "slots"):
        value = getattr(options, name)
        setattr(options, name, getattr(sizes, name) if value is None else value)
    for name, values in (("rate", options.rate or ()), ("until", () if options.until is None else [options.until])):
        for value in values:
            if not 0 < value < math.inf:
                parser.error(f"--{name} is {value:g}; it must be above 0, and finite")
    for name in ("requests", "shrink", "slots", "repeats"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; it must be 1 or more")
    return options


def policies(device: str) -> list[str]:
    """Bullet, chunked prefill, and two splits that never change: on a GPU of SMs that Bullet also moves to."""
    if device == "cuda":
        return ["bullet", "chunked", "static-split:decode_sms=48", "static-split:decode_sms=80"]
    if len(os.sched_getaffinity(0)) < 2:
        return ["chunked"]
    # Of two cores there is one split.
    return ["bullet", "chunked", "static-split:decode_sms=1"]


class Check:
    """The stages, in order."""

    def __init__(self, options: argparse.Namespace, box: Box) -> None:
        self.options, self.box, self.sizes = options, box, SIZES[options.device]
        self.folder = box.folder
        self.profile, self.model = self.folder / "profile", self.folder / "model.json"

    def run(self) -> None:
        for name, stage in self.stages().items():
            if self.box.left_s() <= 1:
                self.box.skip(name, "the time is up")
                continue
            stage()

    def stages(self) -> dict[str, Callable[[], object]]:
        return {
            "tests": self.tests,
            "shares": self.shares,
            "profile": self.measured,
            "fit": self.fitted,
            "efficiency": self.efficiency,
            "rates": self.rates,
            "validate": self.validated,
        }

    def limit_s(self, name: str) -> float:
        return min(self.sizes.limits[name] * float(self.options.limit_s), self.box.left_s())

    def tests(self) -> None:
        if self.options.device == "cpu":
            self.box.skip("tests", "they need a GPU")
        else:
            self.stage("tests", [f"--junitxml={self.folder / 'tests.xml'}"])

    def shares(self) -> None:
        json_path = str(self.folder / "shares.json")
        self.stage("shares", ["--device", self.options.device, "--json", json_path], "shares.md")

    def measured(self) -> None:
        limit_s = self.limit_s("profile")
        # Starting up and its last point are no part of the command's own limit.
        own_s = max(1.0, 0.9 * limit_s)
        command = ["--device", self.options.device, "--model", self.options.model, "--quick"]
        self.stage("profile", [*command, "--limit-s", f"{own_s:.0f}", "--out", str(self.profile)])
        gpu_profile.recover(self.box, self.profile)

    def fitted(self) -> None:
        self.stage("fit", [str(self.profile), "--quick", "--force", "--out", str(self.model)], "fit.txt")

    def efficiency(self) -> None:
        json_path = str(self.folder / "efficiency.json")
        self.stage("efficiency", [str(self.profile), "--json", json_path], "efficiency.md")

    def rates(self) -> None:
        options = self.options
        begun = (self.folder / "validation" / "plan.json").exists()
        if options.rate or (begun and self.found()):
            # A validation goes on with the limits that it began with.
            self.box.skip("rates", "given" if options.rate else "kept")
            return
        command = [str(self.model), "--model", options.model, "--trace", options.trace]
        command += ["--shrink", str(options.shrink), "--slots", str(options.slots)]
        self.stage("rates", [*command, "--requests", str(self.sizes.simulated)], "rates.json")

    def stage(self, name: str, options: Sequence[str], printed: str = "") -> None:
        """Runs a program with ``options``; what it prints goes to the file ``printed``, else to the log."""
        out = self.folder / printed if printed else None
        self.box.run(name, [*PROGRAMS[name], *options], self.limit_s(name), out)

    def validated(self) -> None:
        found = self.found()
        rates = self.options.rate or found.get("rates") or self.sizes.rates
        command = [*PROGRAMS["validate"], *self.validation(rates, found.get("slo") or {})]
        # Validate would fit the same model again.
        with suppress(FileNotFoundError):
            (self.folder / "validation").mkdir(exist_ok=True)
            shutil.copyfile(self.model, self.folder / "validation" / "model.json")
        reserve_s = self.sizes.limits["report"] * self.options.limit_s
        runs = len(policies(self.options.device)) * len(rates) * self.options.repeats

        def more_s() -> float:
            """With all runs served it is at its report."""
            done = sum(1 for _ in self.folder.glob("validation/runs/*/real-*/real.json"))
            return self.box.left_s() if done == runs else 0.0

        stage = self.box.run("validate", command, self.box.left_s(reserve_s), more_s=more_s)
        if stage.status != "ok" and any(self.folder.glob("validation/runs/*/*")):
            self.box.run("report", [*command, "--report"], self.box.left_s())

    def found(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.folder / "rates.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def validation(self, rates: Sequence[float], slo: dict[str, float | None]) -> list[str]:
        """The arguments of ``bulletsim validate``."""
        options = self.options
        command = ["--device", options.device, "--model", options.model, "--trace", options.trace]
        command += ["--requests", str(options.requests), "--shrink", str(options.shrink)]
        command += ["--slots", str(min(options.slots, options.requests)), "--repeats", str(options.repeats)]
        command += ["--profile", str(self.profile), "--out", str(self.folder / "validation")]
        command += [part for name in policies(options.device) for part in ("--policy", name)]
        command += [part for rate in rates for part in ("--rate", f"{rate:g}")]
        limits = {name: slo.get(name) for name in SLO_FIELDS}
        command += [
            part
            for name, value in limits.items()
            if value
            for part in (f"--slo-{name.removesuffix('_s').replace('_', '-')}", f"{value:g}")
        ]
        return command + (["--until", f"{options.until:g}"] if options.until else [])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
