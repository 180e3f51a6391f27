"""One look for every figure: quiet, legible in print."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from sim.plots.looks import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LANE_COLOURS,
    LINES,
    ORANGE,
    POLICY_LOOKS,
    PURPLE,
    SKY,
    VERMILION,
    YELLOW,
    Look,
    looks,
)
from sim.rundir import replacing
from traces.progress import Progress, untold

__all__ = [
    "BLACK",
    "BLUE",
    "GREEN",
    "GREY",
    "LANE_COLOURS",
    "LINES",
    "ORANGE",
    "POLICY_LOOKS",
    "PURPLE",
    "RC",
    "SKY",
    "VERMILION",
    "YELLOW",
    "Drawing",
    "Look",
    "PlainLog",
    "figure",
    "legend_above",
    "looks",
    "save",
    "styled",
]

SCREEN_DPI = 100
FIRST = 0.7
"""Share of saving a figure that is done when the first of its files is written."""

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


class Drawing(Figure):
    """A figure that a notebook shows as it would be saved, whatever style and backend the notebook has."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Twice as many pixels as it is shown with, for screens that have them."""
        picture = BytesIO()
        with styled():
            self.savefig(picture, format="png", dpi=2 * SCREEN_DPI)
        width, height = (round(SCREEN_DPI * inches) for inches in self.get_size_inches())
        return picture.getvalue(), {"width": width, "height": height}


def figure(width: float, height: float, **layout: Any) -> Drawing:
    """An empty figure of this size in inches, laid out so that nothing overlaps."""
    return Drawing(figsize=(width, height), layout="constrained", **layout)


def row_title(first: Axes, text: str) -> None:
    """Names a row of panels over its ``first``, and over the others where it is long.

    A title proper would widen the first panel's column: the layout makes room for the middle of its text.
    """
    first.set_title("\N{NO-BREAK SPACE}")
    first.annotate(
        text,
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, matplotlib.rcParams["axes.titlepad"]),
        textcoords="offset points",
        fontsize=matplotlib.rcParams["axes.titlesize"],
    ).set_in_layout(False)


def legend_above(drawing: Figure, *axes: Axes) -> None:
    """The series of all ``axes``, each once, in one row above all panels: outside the data."""
    series = {label: handle for one in axes for handle, label in zip(*one.get_legend_handles_labels(), strict=True)}
    columns = min(len(series), 5)
    drawing.legend(list(series.values()), list(series), loc="outside upper center", ncols=columns, handlelength=2.2)


def save(drawing: Figure, path: Path, progress: Progress = untold) -> tuple[Path, ...]:
    """Writes a vector file and a PNG of the same name; the paths, the one asked for first.

    ``path`` ends in .pdf, .svg or .png; for .png the vector file is a PDF. Raises ValueError for anything
    else. No file holds a date, so equal figures are equal bytes. ``progress`` hears how far it is.
    """
    if path.suffix not in (".pdf", ".svg", ".png"):
        raise ValueError(f"{path}: a figure ends in .pdf, .svg or .png")
    twin = path.with_suffix(".pdf" if path.suffix == ".png" else ".png")
    for target in (path, twin):
        if target.is_dir():
            raise ValueError(f"{target} is a directory; a figure is a file, choose another --out")
    path.parent.mkdir(parents=True, exist_ok=True)
    layout = drawing.get_layout_engine()
    try:
        _write(drawing, path)
        progress(FIRST)
        # The second file has the layout of the first: to find it takes longer than to draw.
        drawing.set_layout_engine("none")
        _write(drawing, twin)
    finally:
        drawing.set_layout_engine(layout)
    return path, twin


def _write(drawing: Figure, target: Path) -> None:
    date = {".pdf": "CreationDate", ".svg": "Date"}.get(target.suffix)
    with matplotlib.rc_context(RC), replacing(target) as partial:
        drawing.savefig(partial, format=target.suffix[1:], metadata={date: None} if date else None)


class PlainLog(LogFormatter):
    """The labels between powers of ten as plain numbers, 0.06 and not 6x10^-2; as few as matplotlib chooses."""

    def __init__(self) -> None:
        super().__init__(labelOnlyBase=False)

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def styled() -> Any:
    """The context in which figures are made."""
    return matplotlib.rc_context(RC)
