"""What a page can be filtered by: policies, devices and traces, as buttons, and as attributes of what they hide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sim.plots.looks import Look, looks
from sim.plots.series import workload_name
from sim.report.marks import key
from sim.report.markup import Markup, joined, tag
from sim.results import Row

NAMES = ("policy", "device", "trace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facets:
    """The distinct values of each facet in order of appearance, and how each policy's label looks."""

    values: Mapping[str, Sequence[str]]
    looks: Mapping[str, Look]

    def attributes(self, *names: str, row: Row) -> dict[str, str]:
        """By which buttons of these facets what shows ``row`` is hidden."""
        return {f"data-{name}": str(self.values[name].index(row[name])) for name in names}

    def filters(self) -> Markup:
        """The buttons. A facet of one value has none, except that policies' are the legend too."""
        shown = [name for name in NAMES if len(self.values[name]) > 1 or name == "policy"]
        count = tag("span", id="count", class_="note", **{"aria-live": "polite"})
        return tag("div", *(self._buttons(name) for name in shown), count, class_="filters")

    def _buttons(self, name: str) -> Markup:
        buttons = []
        for place, value in enumerate(self.values[name]):
            label = value if name == "policy" else workload_name(value)
            inside = [key(self.looks[value])] if name == "policy" else []
            inside.append(tag("span", label))
            pressed = {"aria-pressed": "false"}
            buttons.append(tag("button", *inside, class_="chip", type="button", value=str(place), **pressed))
        return tag("div", tag("span", name), joined(buttons), class_="chips", **{"data-facet": name})


def facets(rows: Sequence[Row]) -> Facets:
    """Of a sweep's rows."""
    values = {name: list(dict.fromkeys(row[name] for row in rows)) for name in NAMES}
    return Facets(values=values, looks=looks((row["policy"], row["policy_name"]) for row in rows))
