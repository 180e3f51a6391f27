"""How DRAM bandwidth depends on SMs, by what decode loses on fewer of them. Prints Markdown.

    python benchmarks/bandwidth.py [PROFILES]

PROFILES holds sm_scaling_derived.csv (default: shared/profiles beside the repository), slowdowns of decode by SMs that
follow from another server's latency predictor. The two numbers of D_p = D_peak (1 + (N_d / N_p)^p)^(-1/p) are those
with the least squared error of the logarithm of an 8B model's decode slowdown, from 16 SMs up; a slowdown that grows
with SMs is held at what fewer SMs have. Exit status 2 where the file is absent.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.data import NOTHING_CHECKED  # noqa: E402
from benchmarks.paper_kernels import table  # noqa: E402
from profiler import Work  # noqa: E402
from profiler.devicecalibration import Bandwidth, DeviceCalibration, built_in  # noqa: E402
from profiler.fittedmodel import fitted  # noqa: E402
from profiler.fitting import ASSUMED_BANDWIDTH  # noqa: E402

CURVES = {"A100": ("8B", "A100-80G"), "H800": ("unnamed", "H100")}
"""GPU of the file: the label of its curves that are fitted, and the device they are fitted for."""

FEWEST_SMS = 16
KNEES = range(8, 42, 2)
SHARPNESS = (0.7, 1.0, 1.25, 1.5, 2.0, 3.0)


class Point(NamedTuple):
    """One decode launch on some SMs and how much longer it takes there."""

    work: Work
    sms: int
    slowdown: float


def points_of(path: Path, gpu: str, label: str) -> list[Point]:
    """Decode points of one GPU, never growing with SMs."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["gpu"], row["model_label"]) == (gpu, label)]
    points: list[Point] = []
    least: dict[str, float] = {}
    for row in sorted(rows, key=lambda row: int(row["sms"])):
        if row["phase"] != "decode":
            continue
        requests, context = map(int, re.findall(r"=(\d+)", row["shape"]))
        least[row["shape"]] = min(least.get(row["shape"], math.inf), float(row["slowdown_vs_full"]))
        if int(row["sms"]) >= FEWEST_SMS:
            points.append(Point(Work((), requests, context), int(row["sms"]), least[row["shape"]]))
    return points


def error(points: list[Point], calibration: DeviceCalibration, curve: Bandwidth) -> float:
    """Root mean square of the logarithm of predicted over given slowdown."""
    model = fitted("Llama-3.1-8B", replace(calibration, bandwidth=curve))
    squares = [
        math.log(model.estimate(work, sms).seconds / model.estimate(work, model.device.sms).seconds / slowdown) ** 2
        for work, sms, slowdown in points
    ]
    return math.sqrt(sum(squares) / len(squares))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", nargs="?", type=Path, default=ROOT.parent / "shared" / "profiles")
    path = parser.parse_args().profiles / "sm_scaling_derived.csv"
    if not path.is_file():
        print(f"error: {path} does not exist; give the folder that holds sm_scaling_derived.csv", file=sys.stderr)
        return NOTHING_CHECKED
    rows = []
    for gpu, (label, device) in CURVES.items():
        calibration = built_in(device)
        assert calibration is not None
        points = points_of(path, gpu, label)
        found = min(
            (error(points, calibration, Bandwidth(knee, sharpness)), knee, sharpness)
            for knee in KNEES
            for sharpness in SHARPNESS
        )
        used = error(points, calibration, Bandwidth(*ASSUMED_BANDWIDTH[device]))
        sharp = error(points, calibration, Bandwidth(calibration.device.bandwidth_knee_sms, 64.0))
        rows.append(
            (gpu, device, len(points), found[1], found[2], *(f"{100 * e:.1f}" for e in (found[0], used, sharp)))
        )
    head = ("curves of", "for", "points", "N_d", "p", "rms error, %", "of the numbers in use", "of a sharp knee")
    table("Bandwidth by SMs", head, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
