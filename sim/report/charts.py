"""Charts as SVG within a page: two axes with plain numbers, lines, areas and marks, in the page's own colours.

Coordinates are in units of a drawing 420 wide, so that a chart of a third of a screen and one of a phone's width both
have legible text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sim.plots.looks import Marker
from sim.report.axes import Axis
from sim.report.marks import DASHES, MARKS
from sim.report.markup import Markup, joined, tag

Point = tuple[float, float]

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 26, 42


@dataclass(slots=True)
class Chart:
    """A drawing that is added to and then shown."""

    title: str
    x: Axis
    y: Axis
    _parts: list[Markup] = field(default_factory=list)

    def at(self, point: Point) -> Point:
        """A point of the data in the drawing."""
        x = LEFT + (WIDTH - LEFT - RIGHT) * self.x.share(point[0])
        return x, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * self.y.share(point[1])

    def add(self, *parts: Markup) -> None:
        self._parts += parts

    def path(self, points: Iterable[Point], *, stepped: bool = False) -> str:
        """The ``d`` of a line through points; ``stepped`` goes along before it goes up."""
        placed = [tuple(f"{value:.1f}" for value in self.at(point)) for point in points]
        if not placed:
            return ""
        first, *others = placed
        line = "".join(f"H{x}V{y}" if stepped else f"L{x} {y}" for x, y in others)
        return f"M{' '.join(first)}{line}"

    def line(self, points: Iterable[Point], *, dash: str = "-", stepped: bool = False, class_: str = "l") -> Markup:
        """A line; ``dash`` as matplotlib names it."""
        dashes = {"stroke-dasharray": DASHES[dash]} if DASHES[dash] else {}
        return tag("path", d=self.path(points, stepped=stepped), class_=class_, **dashes)

    def area(self, low: Sequence[Point], high: Sequence[Point], *, class_: str = "a") -> Markup:
        """What lies between two lines."""
        return tag("path", d=f"{self.path([*low, *reversed(high)])}z", class_=class_)

    def mark(self, point: Point, marker: Marker, *, class_: str = "m", **attributes: str) -> Markup:
        """A marker at a point."""
        x, y = self.at(point)
        return tag("path", d=MARKS[marker], transform=f"translate({x:.1f} {y:.1f})", class_=class_, **attributes)

    def across(self, value: float, name: str) -> Markup:
        """A limit on the y axis."""
        x, y = self.at((self.x.high, value))
        label = tag("text", name, x=f"{x - 2:.1f}", y=f"{y - 4:.1f}", class_="end")
        return joined([tag("path", d=f"M{LEFT} {y:.1f}H{x:.1f}", class_="limit"), label])

    def upright(self, value: float, name: str) -> Markup:
        """A limit on the x axis."""
        x, y = self.at((value, self.y.high))
        end = x > 0.8 * WIDTH
        label = tag("text", name, x=f"{x + (-3 if end else 3):.1f}", y=f"{y + 9:.1f}", class_="end" if end else "")
        return joined([tag("path", d=f"M{x:.1f} {y:.1f}V{HEIGHT - BOTTOM}", class_="limit"), label])

    def svg(self) -> Markup:
        """The whole chart."""
        inside = [tag("text", self.title, x=str(LEFT), y="15", class_="title"), *self._axes(), *self._parts]
        box = f"0 0 {WIDTH} {HEIGHT}"
        return tag("svg", *inside, viewBox=box, class_="chart", role="img", **{"aria-label": self.title})

    def _axes(self) -> Iterable[Markup]:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        for value, number in self.y.ticks():
            y = self.at((self.x.low, value))[1]
            yield tag("path", d=f"M{LEFT} {y:.1f}H{right}", class_="grid")
            yield tag("text", number, x=str(LEFT - 5), y=f"{y + 4:.1f}", class_="end")
        for value, number in self.x.ticks():
            x = self.at((value, self.y.low))[0]
            yield tag("path", d=f"M{x:.1f} {bottom}v4", class_="frame")
            yield tag("text", number, x=f"{x:.1f}", y=str(bottom + 17), class_="mid")
        yield tag("path", d=f"M{LEFT} {TOP}V{bottom}H{right}", class_="frame")
        yield tag("text", self.x.label, x=str((LEFT + right) // 2), y=str(HEIGHT - 6), class_="mid")
        # Above the axis, since text on its side is hard to read.
        yield tag("text", self.y.label, x=str(right), y="15", class_="end")
