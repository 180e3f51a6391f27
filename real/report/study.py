"""All cells of a validation compared and their errors explained: what a report and a terminal show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from real.attribution import Attribution, attribute
from real.comparison import LIMIT, Cell, Comparison, Order, compare, orders
from real.telling import SILENT, Teller
from sim.simulate import prepare


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Studied:
    """A cell's comparison and causes. ``unexplained`` says why there are none; ``sms`` is what a device has."""

    comparison: Comparison
    attribution: Attribution | None
    unexplained: str
    sms: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Study:
    """All cells, in the order given, and the order of policies at each rate."""

    cells: tuple[Studied, ...]
    orders: tuple[Order, ...]
    limit: float

    @property
    def verdicts(self) -> list[bool]:
        """Of every headline statistic that could be judged, whether it is within."""
        found = [statistic.within for cell in self.cells for statistic in cell.comparison.headlines]
        return [within for within in found if within is not None]


def study(cells: Sequence[Cell], *, limit: float = LIMIT, teller: Teller = SILENT) -> Study:
    """Compares and explains ``cells``; ``limit`` is the error that a headline statistic may have.

    Takes three simulations a cell. Raises ValueError where there is no cell, or two are of one policy and rate.
    """
    names = [(cell.policy, cell.rate) for cell in cells]
    if not names:
        raise ValueError("a report needs at least one policy at one rate")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[0]} at {twice[1]:g} requests/s is there twice; give each policy a name of its own")
    studied = []
    with teller.stage("finding causes") as begin:
        tell = begin(len(cells))
        for cell in cells:
            studied.append(_studied(cell, limit))
            tell(len(studied), cell.policy)
    return Study(cells=tuple(studied), orders=orders([cell.comparison for cell in studied]), limit=limit)


def _studied(cell: Cell, limit: float) -> Studied:
    comparison, attribution = compare(cell, limit), None
    try:
        prepared = prepare(cell.simulated.run.config)
        sms = prepared.latency.device.sms
        attribution = attribute(cell, prepared)
        reason = "" if attribution is not None else "no real run has a record of its launches"
    except ValueError as error:
        # The report is of the runs; what they were made from may have moved since.
        sms, reason = _most_sms(cell), f"the simulation cannot be repeated: {error}"
    return Studied(comparison=comparison, attribution=attribution, unexplained=reason, sms=sms)


def _most_sms(cell: Cell) -> int:
    sides = (*cell.real, cell.simulated)
    return max([1, *(int(side.run.steps.sms.max()) for side in sides if len(side.run.steps))])
