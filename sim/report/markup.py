"""HTML in small pieces. Everything that is text is escaped here, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import repeat
from typing import Any

from sim.report.words import DASH


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Markup:
    """``value`` as HTML: as it is where it is markup, else escaped."""
    return value if isinstance(value, Markup) else Markup(escape(str(value)))


def joined(parts: Iterable[object]) -> Markup:
    """The parts one after another."""
    return Markup("".join(text(part) for part in parts))


def tag(name: str, *content: object, **attributes: str) -> Markup:
    """An element; ``class_`` stands for class."""
    shown = "".join(f' {key.rstrip("_")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{shown}>{joined(content)}</{name}>\n")


def table(
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    left: int = 1,
    attributes: Iterable[Mapping[str, str]] | None = None,
) -> Markup:
    """A table whose first ``left`` columns are words and whose others are numbers; ``attributes`` are of its rows."""

    def cells(name: str, values: Sequence[object], given: Mapping[str, str]) -> Markup:
        marked = ((value, {} if column < left else {"class_": "n"}) for column, value in enumerate(values))
        return tag("tr", *(tag(name, value, **kind) for value, kind in marked), **given)

    given = repeat({}) if attributes is None else attributes
    body = joined(cells("td", row, own) for row, own in zip(rows, given, strict=False))
    inner = tag("table", tag("thead", cells("th", head, {})), tag("tbody", body))
    return tag("div", inner, class_="wide")


def facts(entries: Mapping[str, Any]) -> Markup:
    """Names and values, nested ones by their path."""
    return table(("", ""), [(name, value) for name, value in flat(entries)], left=2) if entries else Markup("")


def flat(entries: Mapping[str, Any], path: str = "") -> Iterable[tuple[str, str]]:
    """(path, value) of everything in ``entries``; what is in a list goes by its place."""
    for name, value in entries.items():
        if isinstance(value, (list, tuple)) and any(isinstance(entry, Mapping) for entry in value):
            yield from flat({str(place): entry for place, entry in enumerate(value)}, f"{path}{name}.")
        elif isinstance(value, Mapping):
            yield from flat(value, f"{path}{name}.")
        elif isinstance(value, (list, tuple)):
            yield f"{path}{name}", ", ".join(map(str, value))
        else:
            yield f"{path}{name}", DASH if value is None else str(value)
