"""Lines and markers of a series, in its colour: as matplotlib draws them, as paths of SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sim.plots.looks import BLACK, Look, Marker
from sim.report.markup import Markup, tag

DASHES = {"-": "", "--": "7 3", ":": "1.5 3", "-.": "7 3 1.5 3"}


def _star(points: int, inner: float, outer: float = 5.4) -> str:
    """A star; with ``inner`` the apothem's share it is a regular polygon."""
    corners = []
    for place in range(2 * points):
        radius = outer if place % 2 == 0 else inner * outer
        angle = math.pi * place / points - math.pi / 2
        corners.append(f"{radius * math.cos(angle):.1f} {radius * math.sin(angle):.1f}")
    return f"M{'L'.join(corners)}z"


def _polygon(sides: int) -> str:
    return _star(sides, math.cos(math.pi / sides), 4.6)


def _turned(path: str, quarter_turns: int) -> str:
    """A path of corners, turned about the middle."""
    corners = [tuple(map(float, corner.split())) for corner in path[1:-1].split("L")]
    for _ in range(quarter_turns):
        corners = [(-y, x) for x, y in corners]
    return f"M{'L'.join(f'{x:.1f} {y:.1f}' for x, y in corners)}z"


_CROSS = "M-1.5 -4.5L1.5 -4.5L1.5 -1.5L4.5 -1.5L4.5 1.5L1.5 1.5L1.5 4.5L-1.5 4.5L-1.5 1.5L-4.5 1.5L-4.5 -1.5L-1.5 -1.5z"
_TRIANGLE = "M0 -4.8L4.6 3.6L-4.6 3.6z"
MARKS: Mapping[Marker, str] = {
    "o": "M4 0A4 4 0 1 1 -4 0A4 4 0 1 1 4 0z",
    "s": "M-3.7 -3.7L3.7 -3.7L3.7 3.7L-3.7 3.7z",
    "D": "M0 -5L5 0L0 5L-5 0z",
    "d": "M0 -5.4L3.3 0L0 5.4L-3.3 0z",
    "^": _TRIANGLE,
    ">": _turned(_TRIANGLE, 1),
    "v": _turned(_TRIANGLE, 2),
    "<": _turned(_TRIANGLE, 3),
    "p": _polygon(5),
    "h": _polygon(6),
    "H": _turned(_polygon(6), 1),
    "8": _polygon(8),
    "P": _CROSS,
    "X": "M-4.3 -2.2L-2.2 -4.3L0 -2.1L2.2 -4.3L4.3 -2.2L2.1 0L4.3 2.2L2.2 4.3L0 2.1L-2.2 4.3L-4.3 2.2L-2.1 0z",
    "*": _star(5, 0.4),
    (4, 1, 0): _star(4, 0.4),
}
"""By marker a path about its middle; those that matplotlib calls alike look alike here."""


def series(colour: str, *parts: object, **attributes: str) -> Markup:
    """Parts of one colour; black is the page's ink, which is light where the page is dark."""
    return tag("g", *parts, class_="s", style=f"--c:{'var(--ink)' if colour == BLACK else colour}", **attributes)


def key(look: Look) -> Markup:
    """A line with its marker, as in a legend."""
    dash = {"stroke-dasharray": DASHES[look.line]} if DASHES[look.line] else {}
    line = tag("path", d="M0 6H26", class_="l", **dash)
    mark = tag("path", d=MARKS[look.marker], transform="translate(13 6)", class_="m")
    return tag("svg", series(look.colour, line, mark), viewBox="0 0 26 12")


def swatch(colour: str) -> Markup:
    """A patch of colour, as in a legend of areas."""
    return tag("svg", series(colour, tag("path", d="M4 0H22V12H4z", class_="a")), viewBox="0 0 26 12")
