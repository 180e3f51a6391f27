"""A sweep as YAML: which runs, spelled out and checked before the first of them starts.

    base:                                   # settings of every run (sim.config.RunConfig)
      trace: workload:sharegpt
      model: llama-3.1-8b
      device: a100-80g
      slo: {ttft_per_token_s: 0.003, ttft_floor_s: 1.0, tpot_s: 0.15}
    policies:                               # a name, or a name with a label and settings
      - bullet
      - {name: chunked, label: chunked-2048, settings: {budget_tokens: 2048}}
    grid:                                   # every combination; the last key varies fastest
      rate_per_gpu: {from: 2, to: 8, step: 2}
      slo.tpot_s: [0.1, 0.15]
    cases:                                  # optional: the grid once for each, with settings of its own
      - {trace: workload:code, grid: {rate_per_gpu: [1, 2]}}
    what_if:                                # optional: everything again with these changes, each by its name
      - {name: more memory, memory_fraction: 0.95}
    derive: {queue_limit: 64 * instances}   # optional: settings that follow from others
    only: rate <= 16 or policy.name == 'bullet'   # optional: the cells to keep
    repeats: 5                              # optional: so many seeds, the same ones for every policy

A grid key is a setting, dotted where nested. ``policy.x`` is short for ``policy.settings.x``, and
``rate_per_gpu`` for a ``rate`` that is so many times the GPUs. All policies get the same seeds and with them the
same requests at the same times.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationError, model_validator

from sim.config import Settings, checked, one_line, place_of, shown
from sim.expressions import Expression
from sim.yaml_lines import Lines, read_yaml

MOST_VALUES = 100_000
LONGEST_LABEL = 100


class Range(Settings):
    """Evenly spaced values from one end to the other, both included where the steps meet it.

    step: the distance of neighbours. count: how many values, evenly spaced or, with scale ``log``, in equal ratios.
    """

    from_: Annotated[float, Field(alias="from")]
    to: float
    step: Annotated[float, Field(gt=0)] | None = None
    count: Annotated[int, Field(ge=2, le=MOST_VALUES)] | None = None
    scale: Literal["linear", "log"] = "linear"

    @model_validator(mode="after")
    def _one_spacing(self) -> Self:
        if self.step is not None and (self.count is not None or self.scale == "log"):
            raise ValueError("step is given beside count or scale; give step alone, or count with a scale")
        if self.scale == "log" and (self.count is None or min(self.from_, self.to) <= 0):
            raise ValueError("scale log needs a count, and both ends above 0")
        step = 1.0 if self.step is None else self.step
        if self.count is None and not self.from_ <= self.to <= self.from_ + MOST_VALUES * step:
            raise ValueError(
                f"from {self.from_:g} to {self.to:g} by {step:g} makes no list of values;"
                f" give a higher `to`, and a step or count that makes {MOST_VALUES:,} at most"
            )
        return self

    def values(self) -> list[float]:
        """Whole numbers where all are, else to 12 digits: 0.1 + 0.2 is 0.3."""
        if self.count is None:
            step = 1.0 if self.step is None else self.step
            found = [self.from_ + place * step for place in range(math.floor((self.to - self.from_) / step + 1e-9) + 1)]
        elif self.scale == "linear":
            found = [self.from_ + (self.to - self.from_) * place / (self.count - 1) for place in range(self.count)]
        else:
            ratio = self.to / self.from_
            found = [self.from_ * ratio ** (place / (self.count - 1)) for place in range(self.count)]
        rounded = [float(f"{value:.12g}") for value in found]
        return [int(value) for value in rounded] if all(value.is_integer() for value in rounded) else rounded


def _listed(value: object) -> object:
    if not isinstance(value, dict) or "from" not in value:
        return value
    try:
        return Range.model_validate(value).values()
    except ValidationError as error:
        raise ValueError(one_line(error, "range", Range)) from None


def _parsed(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no expression in quotes, such as 'rate_per_gpu <= 8'")
    Expression(value)
    return value


def _several(value: object) -> object:
    return value if isinstance(value, list) else [value]


Grid = dict[str, Annotated[list[Any], Field(min_length=1), BeforeValidator(_listed)]]
Formula = Annotated[str, BeforeValidator(_parsed)]


def _of_one_line(label: str | None) -> str | None:
    if label is not None and not (0 < len(label) <= LONGEST_LABEL and label.isprintable()):
        raise ValueError(f"{shown(label)} is no label; give 1 to {LONGEST_LABEL} letters on one line")
    return label


class PolicyEntry(Settings):
    """One of the policies compared.

    ``label`` names it in tables and plots; by default its name and settings.
    """

    name: str
    label: Annotated[str | None, AfterValidator(_of_one_line)] = None
    settings: dict[str, Any] = Field(default_factory=dict)

    @property
    def shown(self) -> str:
        if self.label is not None or not self.settings:
            return self.label or self.name
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.settings.items())})"


def _named(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


Named = Annotated[PolicyEntry, BeforeValidator(_named)]
"""An entry, or a name alone."""


class SweepSpec(Settings):
    """The file as it stands; :func:`sim.sweep_cells.cells` turns it into runs."""

    base: dict[str, Any] = Field(default_factory=dict)
    policies: Annotated[list[Named], Field(min_length=1)]
    grid: Grid = Field(default_factory=dict)
    cases: Annotated[list[dict[str, Any]], Field(min_length=1, default_factory=lambda: [{}])]
    what_if: list[dict[str, Any]] = Field(default_factory=list)
    derive: dict[str, Formula] = Field(default_factory=dict)
    only: Annotated[list[Formula], BeforeValidator(_several)] = Field(default_factory=list)
    repeats: Annotated[int, Field(ge=1, le=10_000)] = 1
    _lines: Lines = PrivateAttr(default_factory=Lines)

    @model_validator(mode="after")
    def _names_of_what_ifs(self) -> Self:
        names = [change.get("name") for change in self.what_if]
        for place, name in enumerate(names):
            if not isinstance(name, str):
                raise ValueError(f"what_if.{place} has no name; give it one, such as name: more memory")
            _of_one_line(name)
            if name in names[:place]:
                raise ValueError(f"what_if: two are called {name!r}; give each a name of its own")
            if len(self.what_if[place]) == 1:
                raise ValueError(f"what_if {name!r} changes nothing; give it a setting")
        return self

    @property
    def lines(self) -> Lines:
        """Where its parts stand in the file; empty for one that was made in Python."""
        return self._lines


def read_spec(path: Path) -> SweepSpec:
    """The sweep in a YAML file. Raises ValueError naming the file, the line or field, and the fault."""
    document, lines = read_yaml(path, "sweep")
    try:
        spec = SweepSpec.model_validate(document)
    except ValidationError as error:
        line = lines.find(*place_of(error, SweepSpec))
        where = str(path) if line is None else f"{path}, line {line}"
        raise ValueError(one_line(error, where, SweepSpec)) from None
    spec._lines = lines
    return spec


class _CaseGrid(Settings):
    grid: Grid


def grid_of(case: dict[str, Any], where: str) -> Grid:
    """The ``grid`` of a case; empty where it has none."""
    return checked(_CaseGrid, {"grid": case.get("grid", {})}, where).grid
