"""Everything at once: the paper's numbers, ours, the difference, and why where it is over 15 %.

    python -m benchmarks.paper.summary [--out out/paper] [--save]

Reads what the figures' commands have written to --out and runs those that are missing (all: some six minutes).
--save keeps the numbers in the repository, with docs/paper.md's table and small copies of the figures.
Exit status 1 where a difference has no sentence in why.toml.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from PIL import Image

from benchmarks.paper.command import OUT
from benchmarks.paper.numbers import HEADER, Number, read_numbers, write_numbers
from benchmarks.paper.points import KNEE, METRICS, points
from benchmarks.paper_kernels import table
from sim.metrics import knee

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SAVED = HERE / "summary.csv"
WHY = HERE / "why.toml"
PAGE = ROOT / "docs" / "paper.md"
PICTURES = ROOT / "docs" / "figures" / "paper"
BEGIN, END = "<!-- summary -->\n", "<!-- end of summary -->\n"

FIGURES = (
    "table2",
    "fig05",
    "fig08",
    "fig09",
    "fig11",
    "fig16",
    "fig17",
    "fig18",
    "fig20",
    "utilisation",
    "fig22",
    "fig23",
    "headline",
)
FIG15 = "fig15"
WIDTH, COLOURS = 900, 128
"""Pixels and colours of the copies in docs/."""

UNITS = {"ttft_s": " s", "tpot_ms": " ms", "throughput_rps": " req/s", "slo_attainment": ""}


def gather(out: Path) -> list[Number]:
    """The numbers of every figure, those that are missing made first."""
    found: list[Number] = []
    for figure in FIGURES:
        path = out / f"{figure}.numbers.csv"
        if not path.exists():
            _make(figure, out)
        found += read_numbers(path)
    if not (out / f"{FIG15}.csv").exists():
        _make(FIG15, out)
    return found + fig15_numbers(out / f"{FIG15}.csv")


def _make(figure: str, out: Path) -> None:
    subprocess.run([sys.executable, "-m", f"benchmarks.paper.{figure}", "--out", str(out)], check=True, cwd=ROOT)


def fig15_numbers(path: Path) -> list[Number]:
    """Of figure 15: rates at 90 % attainment, and each curve's mean over the paper's points of it."""
    rows: dict[tuple[str, str, str], list[tuple[float, float, float | None]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            told = float(row["paper"]) if row["paper"] else None
            point = (float(row["request_rate_rps"]), float(row["ours"]), told)
            rows.setdefault((row["workload"], row["metric"], row["system"]), []).append(point)
    found = []
    for (workload, metric, system), curve in rows.items():
        both = [(ours, told) for _, ours, told in curve if told is not None]
        if both:
            found.append(
                Number(
                    figure="15",
                    key=f"fig15.{workload}.{metric}.{system}",
                    what=f"{METRICS[metric]} of {system}, {workload}, mean of {len(both)} points",
                    paper=fmean(told for _, told in both),
                    ours=fmean(ours for ours, _ in both),
                    unit=UNITS[metric],
                )
            )
    return _knees(rows) + found


def _knees(rows: Mapping[tuple[str, str, str], Sequence[tuple[float, float, float | None]]]) -> list[Number]:
    found = []
    for told in points():
        curve = rows.get((told.workload, "slo_attainment", told.system))
        if told.metric == KNEE and curve:
            crossing = knee([rate for rate, *_ in curve], [ours for _, ours, _ in curve])
            what = f"rate at 90 % attainment of {told.system}, {told.workload}"
            key = f"fig15.{told.workload}.knee.{told.system}"
            found.append(Number(figure="15", key=key, what=what, paper=told.value, ours=crossing.rate, unit=" req/s"))
    return found


def sentences(path: Path = WHY) -> dict[str, str]:
    """The explanation of each number that has one, by key."""
    with path.open("rb") as file:
        return {key: entry["because"] for entry in tomllib.load(file)["why"] for key in entry["keys"]}


def unexplained(numbers: Iterable[Number], why: Mapping[str, str]) -> list[str]:
    """Keys of numbers that differ and have no sentence."""
    return [number.key for number in numbers if number.differs and number.key not in why]


def page_table(numbers: Iterable[Number], why: Mapping[str, str]) -> str:
    """The table of docs/paper.md."""
    lines = [f"| {' | '.join((*HEADER, 'why'))} |", "|---|---|---:|---:|---:|---|"]
    for number in numbers:
        reason = why.get(number.key, "") if number.differs else ""
        lines.append(f"| {' | '.join((*number.cells(), reason))} |")
    return "\n".join(lines) + "\n"


def with_table(page: str, numbers: Iterable[Number], why: Mapping[str, str]) -> str:
    """The page with its table made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{page_table(numbers, why)}{END}{after}"


def small_copy(picture: Path, to: Path) -> None:
    """A PNG of a few colours, for the documentation."""
    with Image.open(picture) as image:
        height = round(image.height * WIDTH / image.width)
        small = image.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS)
        small.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(to, optimize=True)


def save_all(out: Path, numbers: Sequence[Number], why: Mapping[str, str]) -> None:
    """Into the repository."""
    write_numbers(SAVED, numbers)
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), numbers, why), encoding="utf-8")
    PICTURES.mkdir(parents=True, exist_ok=True)
    for figure in (*FIGURES, FIG15):
        small_copy(out / f"{figure}.png", PICTURES / f"{figure}.png")


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--save", action="store_true", help="keep the result in the repository")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    numbers, why = gather(options.out), sentences()
    rows = [(*number.cells(), why.get(number.key, "") if number.differs else "") for number in numbers]
    table("The paper and ours", (*HEADER, "why"), rows)
    if options.save:
        save_all(options.out, numbers, why)
    missing = unexplained(numbers, why)
    if missing:
        print(f"error: no sentence in {WHY.name} for: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
