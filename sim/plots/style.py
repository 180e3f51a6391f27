"""One look for every figure: quiet, legible in print, and the same colour and marker for a policy everywhere.

Colours are Okabe and Ito's, which stay apart for colour-blind readers and in grey with the markers' help.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # figures go to files; a window system may be absent

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from sim.rundir import replacing

BLUE, VERMILION, GREEN = "#0072B2", "#D55E00", "#009E73"
PURPLE, ORANGE, SKY, YELLOW, BLACK = "#CC79A7", "#E69F00", "#56B4E9", "#B8A800", "#000000"
GREY = "#707070"

POLICY_LOOKS = {
    "bullet": (VERMILION, "s"),
    "chunked": (BLUE, "o"),
    "disaggregation": (GREEN, "^"),
    "prefill-first": (SKY, "v"),
    "static-split": (PURPLE, "D"),
    "nanoflow": (ORANGE, "P"),
    "oracle": (BLACK, "*"),
}
SPARE_LOOKS = (
    (YELLOW, "X"),
    (PURPLE, "<"),
    (SKY, ">"),
    (ORANGE, "h"),
    (GREEN, "d"),
    (BLUE, "p"),
)
LANE_COLOURS = {"prefill": "#F0B27A", "decode": "#7FB8DA", "main": "#7FB8DA"}
LINES = ("-", "--", ":", "-.")

RC: Any = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.direction": "out",
    "ytick.direction": "out",
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "figure.dpi": 100,
    "savefig.dpi": 220,
    "pdf.fonttype": 42,
    "svg.hashsalt": "bulletsim",
    "svg.fonttype": "none",
}


@dataclass(frozen=True, slots=True)
class Look:
    """How a series is drawn."""

    colour: str
    marker: str
    line: str

    def plot(self, axes: Axes, x: Sequence[float], y: Sequence[float], label: str) -> None:
        (drawn,) = axes.plot(
            x,
            y,
            color=self.colour,
            marker=self.marker,
            linestyle=self.line,
            markeredgecolor="white",
            markeredgewidth=0.5,
            label=label,
            clip_on=False,
            zorder=3,
        )
        # An empty series is for the legend only; its extent would count as one at the figure's corner.
        drawn.set_in_layout(len(x) > 0)


def looks(series: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """A look for each (label, policy name): by policy, and by line style among labels of one policy."""
    found: dict[str, Look] = {}
    drawn: dict[str, int] = {}
    spare = iter(SPARE_LOOKS * 8)
    assigned: dict[str, tuple[str, str]] = {}
    for label, policy in series:
        if label in found:
            continue
        if policy not in assigned:
            assigned[policy] = POLICY_LOOKS.get(policy) or next(spare)
        colour, marker = assigned[policy]
        turn = drawn[policy] = drawn.get(policy, -1) + 1
        found[label] = Look(colour, marker, LINES[turn % len(LINES)])
    return found


def figure(width: float, height: float, **layout: Any) -> Figure:
    """An empty figure of this size in inches, laid out so that nothing overlaps."""
    return Figure(figsize=(width, height), layout="constrained", **layout)


def legend_above(drawing: Figure, *axes: Axes) -> None:
    """The series of all ``axes``, each once, in one row above all panels: outside the data."""
    series = {label: handle for one in axes for handle, label in zip(*one.get_legend_handles_labels(), strict=True)}
    columns = min(len(series), 5)
    drawing.legend(list(series.values()), list(series), loc="outside upper center", ncols=columns, handlelength=2.2)


def save(drawing: Figure, path: Path) -> tuple[Path, ...]:
    """Writes a vector file and a PNG of the same name; the paths, the one asked for first.

    ``path`` ends in .pdf, .svg or .png; for .png the vector file is a PDF. Raises ValueError for anything
    else. No file holds a date, so equal figures are equal bytes.
    """
    if path.suffix not in (".pdf", ".svg", ".png"):
        raise ValueError(f"{path}: a figure ends in .pdf, .svg or .png")
    twin = path.with_suffix(".pdf" if path.suffix == ".png" else ".png")
    for target in (path, twin):
        if target.is_dir():
            raise ValueError(f"{target} is a directory; a figure is a file, choose another --out")
    path.parent.mkdir(parents=True, exist_ok=True)
    for target in (path, twin):
        date = {".pdf": "CreationDate", ".svg": "Date"}.get(target.suffix)
        with matplotlib.rc_context(RC), replacing(target) as partial:
            drawing.savefig(partial, format=target.suffix[1:], metadata={date: None} if date else None)
    return path, twin


class PlainLog(LogFormatter):
    """The labels between powers of ten as plain numbers, 0.06 and not 6x10^-2; as few as matplotlib chooses."""

    def __init__(self) -> None:
        super().__init__(labelOnlyBase=False)

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def styled() -> Any:
    """The context in which figures are made."""
    return matplotlib.rc_context(RC)
