"""Numbers of the paper beside ours: what every figure's command reduces to, prints and writes for the summary."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from benchmarks.paper_kernels import table

TOLERANCE = 0.15
"""A difference above it has a sentence in why.toml that explains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number that the paper states, or an order that it shows.

    key: unique, after the figure. paper: None where the paper has no number: then ``ours`` is shown alone, or
        ``holds`` says whether the order is ours too.
    """

    figure: str
    key: str
    what: str
    ours: float | None = None
    paper: float | None = None
    unit: str = ""
    holds: bool | None = None

    @property
    def difference(self) -> float | None:
        """Ours over the paper's, less one."""
        return None if self.paper is None or self.ours is None else self.ours / self.paper - 1

    @property
    def differs(self) -> bool:
        """Whether it has to be explained."""
        return self.holds is False or (self.difference is not None and abs(self.difference) > TOLERANCE)

    def cells(self) -> tuple[str, ...]:
        """Its row in a table."""
        if self.holds is not None:
            ours = "" if self.ours is None else f" ({shown(self.ours)}{self.unit})"
            return self.figure, self.what, "order", ("holds" if self.holds else "does not hold") + ours, ""
        paper = "" if self.paper is None else shown(self.paper) + self.unit
        ours = "" if self.ours is None else shown(self.ours) + self.unit
        return self.figure, self.what, paper, ours, "" if self.difference is None else f"{self.difference:+.0%}"


HEADER = ("figure", "quantity", "paper", "ours", "difference")


def shown(value: float) -> str:
    """Three digits."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def print_numbers(title: str, numbers: Iterable[Number]) -> None:
    """The numbers as a Markdown table."""
    table(title, HEADER, [number.cells() for number in numbers])


def write_numbers(path: Path, numbers: Sequence[Number]) -> None:
    """A row each; what is absent is empty."""
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, [field.name for field in fields(Number)], lineterminator="\n")
        out.writeheader()
        for number in numbers:
            row = asdict(number)
            row["ours"] = None if number.ours is None else f"{number.ours:.6g}"
            out.writerow({name: "" if value is None else value for name, value in row.items()})


def read_numbers(path: Path) -> tuple[Number, ...]:
    """What :func:`write_numbers` wrote."""
    with path.open(newline="") as file:
        return tuple(
            Number(
                figure=row["figure"],
                key=row["key"],
                what=row["what"],
                ours=_number(row["ours"]),
                paper=_number(row["paper"]),
                unit=row["unit"],
                holds=None if not row["holds"] else row["holds"] == "True",
            )
            for row in csv.DictReader(file)
        )


def _number(text: str) -> float | None:
    return float(text) if text else None
