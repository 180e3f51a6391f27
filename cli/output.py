"""What commands print: tables of at most 80 columns for people, one JSON document for programs, progress."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

WIDTH = 80
NARROWEST = 16
"""Characters of a line, and of a column of names that has to give way."""
LEAST_S, MOST_S = 1.0, 60.0
"""Seconds between two lines of progress."""


def print_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    """The document on stdout, where nothing else goes with ``--json``."""
    print(json.dumps(document, indent=2, allow_nan=False))


def note(text: str) -> None:
    """One line for people, on stderr."""
    print(text, file=sys.stderr)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Aligned columns: the first ``left`` to the left, the others, which are numbers, to the right.

    A cell may have several lines. Where all is wider than WIDTH, headings go over several lines, and then what stands
    in the columns to the left.
    """
    columns = list(zip(head, *rows, strict=True))
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    _narrow(widths, [max(map(len, (*name.split(), *cells)), default=0) for name, *cells in columns], by=WIDTH)
    _narrow(widths, [NARROWEST if place < left else width for place, width in enumerate(widths)], by=1)
    rule = "  ".join("-" * width for width in widths)
    first, *others = (_aligned(row, widths, left) for row in (head, *rows))
    return "\n".join([*first, rule, *(line for lines in others for line in lines)])


def _narrow(widths: list[int], least: Sequence[int], *, by: int) -> None:
    """Takes so much from the widest column, none below its ``least``, until all fit or nothing is left to take."""
    while sum(widths) + 2 * (len(widths) - 1) > WIDTH:
        loose = [place for place, width in enumerate(widths) if width > least[place]]
        if not loose:
            return
        widest = max(loose, key=widths.__getitem__)
        widths[widest] = max(widths[widest] - by, least[widest])


def _aligned(row: Sequence[str], widths: Sequence[int], left: int) -> list[str]:
    """A row: one line, or as many as its fullest cell takes."""
    cells = [_broken(cell, width) for cell, width in zip(row, widths, strict=True)]
    lines = []
    for parts in zip_longest(*cells, fillvalue=""):
        aligned = [
            part.ljust(width) if place < left else part.rjust(width)
            for place, (part, width) in enumerate(zip(parts, widths, strict=True))
        ]
        lines.append("  ".join(aligned).rstrip())
    return lines


def _broken(cell: str, width: int) -> list[str]:
    lines = cell.split("\n")
    if all(len(line) <= width for line in lines):
        return lines
    from textwrap import wrap

    return [part for line in lines for part in wrap(line, width)]


def number(value: float | None, scale: float = 1.0, digits: int = 3) -> str:
    """``value * scale`` to some significant digits without an exponent; a dash where there is none."""
    if value is None:
        return "-"
    scaled = value * scale
    if abs(scaled) >= 10 ** (digits - 1):
        return f"{scaled:.0f}"
    return f"{scaled:#.{digits}g}".rstrip(".") if abs(scaled) >= 1e-4 or not scaled else f"{scaled:.1e}"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours to two digits."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


@contextmanager
def kept(place: Path, *, quiet: bool) -> Iterator[None]:
    """Says, where Ctrl-C or SIGTERM ends the block, that what is done stays in ``place``, if it is there by then."""
    try:
        yield
    except BaseException as error:
        if not (quiet or isinstance(error, Exception)) and place.exists():
            note(f"what is done stays in {place}; the same command goes on")
        raise


@contextmanager
def progress(what: str, total: int | None, *, quiet: bool) -> Iterator[Callable[[int, str], None]]:
    """Gives a function to be told (done, text).

    On a terminal it moves a bar that goes away at the end; where stderr is a pipe it prints a line now and then, at
    tenths of ``total`` and each minute; ``quiet`` says nothing.
    """
    if quiet:
        yield lambda done, text: None
    elif sys.stderr.isatty():
        with _bar(what, total) as tell:
            yield tell
    else:
        yield _lines(what, total)


@contextmanager
def shares(what: str, *, quiet: bool) -> Iterator[Callable[[float], None]]:
    """As :func:`progress`, of work that tells which share of it is done, from 0 to 1."""
    with progress(what, 100, quiet=quiet) as tell:
        yield lambda share: tell(round(100 * share), "%")


@contextmanager
def stage(what: str, *, quiet: bool) -> Iterator[Callable[[int], Callable[[int, str], None]]]:
    """Gives a function to be told how many steps ``what`` has; it gives one as :func:`progress` does.

    Until it is told, a terminal shows that the work is starting.
    """
    with ExitStack() as shown:
        if not quiet and sys.stderr.isatty():
            from rich.console import Console

            shown.enter_context(Console(stderr=True).status(f"{what}: starting"))

        def begin(steps: int) -> Callable[[int, str], None]:
            shown.close()
            return shown.enter_context(progress(what, steps, quiet=quiet))

        yield begin


@contextmanager
def searching(*, quiet: bool) -> Iterator[Callable[[str, str], None]]:
    """Gives a function to be told what a search has just tried, empty where nothing new, and how long it will take yet.

    On a terminal the latest stands on one line that goes away at the end, but where Ctrl-C or SIGTERM is it; where
    stderr is a pipe each thing tried has its own.
    """
    if quiet:
        yield lambda tried, left: None
    elif sys.stderr.isatty():
        with _status() as tell:
            yield tell
    else:
        yield lambda tried, left: note("; ".join(filter(None, (tried, left)))) if tried else None


@contextmanager
def _status() -> Iterator[Callable[[str, str], None]]:
    from rich.console import Console
    from rich.text import Text

    latest = ""

    def tell(tried: str, left: str) -> None:
        nonlocal latest
        latest = tried or latest
        # One line, the time left first: what a narrow terminal lacks room for is cut off.
        shown = ": ".join(filter(None, (left, latest or "searching")))
        status.update(Text(shown, no_wrap=True, overflow="ellipsis"))

    try:
        with Console(stderr=True).status("searching") as status:
            yield tell
    except BaseException as error:
        if latest and not isinstance(error, Exception):
            note(f"last: {latest}")
        raise


@contextmanager
def _bar(what: str, total: int | None) -> Iterator[Callable[[int, str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    pace = _Pace(total)

    class Left(ProgressColumn):
        def render(self, task: Task) -> Text:
            left_s = pace.left_s()
            return Text("" if left_s is None else f"{duration(left_s)} left")

    counted = "{task.completed}" if total is None else "{task.completed}/{task.total}"
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn(counted + " {task.fields[text]}"),
        Left(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=total, text="")

        def tell(done: int, text: str) -> None:
            pace.told(done)
            bars.update(task, completed=done, text=text)

        yield tell


def _lines(what: str, total: int | None) -> Callable[[int, str], None]:
    pace, printed, printed_s = _Pace(total), 0, time.monotonic()

    def tell(done: int, text: str) -> None:
        nonlocal printed, printed_s
        pace.told(done)
        now_s = time.monotonic()
        if now_s - printed_s < LEAST_S:
            return
        tenth = done * 10 // total if total else 0
        if tenth > printed or now_s - printed_s >= MOST_S:
            printed, printed_s = tenth, now_s
            left_s = pace.left_s() or 0.0
            left = f", about {duration(left_s)} left" if left_s >= 1 else ""
            counted = f"{done}" if total is None else f"{done}/{total}"
            note(f"{what}: {counted} {text}".rstrip() + left)

    return tell


class _Pace:
    """How long work of ``total`` steps, None if nobody knows, will take yet if a step takes as long as those told of.

    What was done when it began to tell took another time: what an earlier start had left.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._first: int | None = None
        self._done = 0
        self._began_s = self._told_s = 0.0

    def told(self, done: int) -> None:
        now_s = time.monotonic()
        if self._first is None:
            self._first, self._began_s = done, now_s
        if done != self._done:
            self._done, self._told_s = done, now_s

    def left_s(self) -> float | None:
        """None as long as no step is over, and where the total is unknown."""
        if self._total is None or self._first is None or self._done <= self._first:
            return None
        step_s = (self._told_s - self._began_s) / (self._done - self._first)
        ahead = self._total - self._done
        # The step under way takes no less than nothing.
        return max(step_s * ahead - (time.monotonic() - self._told_s), step_s * (ahead - 1), 0.0)
