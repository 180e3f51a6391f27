"""What a policy looks like, in every figure and on every page: its colour and its marker.

The first eight colours are Okabe and Ito's, the others Tol's muted ones, a brown and a grey: they stay apart for
colour-blind readers and in grey with the help of the markers, of which no two policies share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Marker = str | tuple[int, int, int]
"""As matplotlib names it; a tuple is a star of so many points."""

BLUE, VERMILION, GREEN = "#0072B2", "#D55E00", "#009E73"
PURPLE, ORANGE, SKY, YELLOW, BLACK = "#CC79A7", "#E69F00", "#56B4E9", "#B8A800", "#000000"
INDIGO, WINE, TEAL, OLIVE, ROSE, FOREST, MAGENTA = (
    "#332288",
    "#882255",
    "#44AA99",
    "#999933",
    "#CC6677",
    "#117733",
    "#AA4499",
)
BROWN, GREY = "#8C564B", "#707070"

POLICY_LOOKS: dict[str, tuple[str, Marker]] = {
    "bullet": (VERMILION, "s"),
    "bullet-eager": (WINE, "p"),
    "chunked": (BLUE, "o"),
    "vllm-chunked": (INDIGO, "8"),
    "sglang-chunked": (TEAL, "H"),
    "disaggregation": (GREEN, "^"),
    "prefill-first": (SKY, "v"),
    "static-split": (PURPLE, "D"),
    "semi-pd": (MAGENTA, "d"),
    "nanoflow": (ORANGE, "P"),
    "pod": (OLIVE, "h"),
    "nexus": (ROSE, "<"),
    "duetserve": (FOREST, ">"),
    "muxwise": (BROWN, (4, 1, 0)),
    "uncapped-streams": (GREY, "X"),
    "oracle": (BLACK, "*"),
}
SPARE_LOOKS: tuple[tuple[str, Marker], ...] = (
    (YELLOW, "X"),
    (PURPLE, "<"),
    (SKY, ">"),
    (ORANGE, "h"),
    (GREEN, "d"),
    (BLUE, "p"),
)
LANE_COLOURS = {"prefill": "#F0B27A", "decode": "#7FB8DA", "main": "#7FB8DA"}
LINES = ("-", "--", ":", "-.")


@dataclass(frozen=True, slots=True)
class Look:
    """How a series is drawn."""

    colour: str
    marker: Marker
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
    assigned: dict[str, tuple[str, Marker]] = {}
    for label, policy in series:
        if label in found:
            continue
        if policy not in assigned:
            assigned[policy] = POLICY_LOOKS.get(policy) or next(spare)
        colour, marker = assigned[policy]
        turn = drawn[policy] = drawn.get(policy, -1) + 1
        found[label] = Look(colour, marker, LINES[turn % len(LINES)])
    return found
