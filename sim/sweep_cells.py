"""The runs of a sweep, spelled out: cases, what-ifs and grid points laid over one another, a policy in each."""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from sim.config import PolicySettings, RunConfig, one_line, place_of
from sim.expressions import Expression
from sim.fingerprint import fingerprint
from sim.sweep_spec import Grid, PolicyEntry, SweepSpec, grid_of
from sim.yaml_lines import Place

MOST_CELLS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of a sweep, what its policy is called in it, and the settings of its case, what-if and grid point.

    what_if: the name of the change it is made under; None for things as they are.
    lines: where each of its settings stands in the sweep's file, by dotted name, and under "" its policy.
    """

    label: str
    config: RunConfig
    point: Mapping[str, Any] = field(default_factory=dict)
    what_if: str | None = None
    lines: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def shown(self) -> str:
        """Label and point, which tell it from every other cell."""
        shown = ", ".join(f"{key}={value}" for key, value in self.point.items())
        return f"{self.label} ({shown})" if shown else self.label

    @property
    def key(self) -> str:
        """Names the run by all that its result depends on, 32 hexadecimal digits."""
        return fingerprint(self.config)[:32]

    def line_text(self, fault: str) -> str:
        """Such as ``, line 3``: of the setting whose value or name ``fault`` quotes, else of the policy."""
        document = self.config.model_dump(mode="json")
        settings = {**document["policy"].pop("settings"), **document}
        for name, line in reversed(list(self.lines.items())):
            last = name.rpartition(".")[2]
            value = _found(settings, name)
            if name and (repr(last) in fault or (isinstance(value, str) and value in fault)):
                return f", line {line}"
        return f", line {self.lines['']}" if "" in self.lines else ""


def cells(spec: SweepSpec, where: str = "sweep") -> list[Cell]:
    """Every run of a sweep in the order of the file: cases, what-ifs after things as they are, grid, policies.

    Raises ValueError where a setting is wrong, there are too many, two cells are the same run, or two policies of one
    label would be one curve; ``where`` begins the message.
    """
    _check_labels([entry.shown for entry in spec.policies], where)
    _check_number(spec, where)
    found = [
        cell
        for number, case in enumerate(spec.cases)
        for change in (None, *range(len(spec.what_if)))
        for point in _points(spec, case, where)
        for entry in range(len(spec.policies))
        if (cell := _Assembly(spec, number, change, point, entry, where).cell())
    ]
    if not found:
        raise ValueError(f"{where}: only leaves none of the cells; loosen it")
    _check_distinct(found, where)
    return found


def _check_labels(labels: Sequence[str], where: str) -> None:
    repeated = [label for label, times in Counter(labels).items() if times > 1]
    if repeated:
        raise ValueError(f"{where}: policies: two are called {repeated[0]!r}; give each a label of its own")


def _check_distinct(found: Sequence[Cell], where: str) -> None:
    seen: dict[str, Cell] = {}
    policies: dict[tuple[object, ...], PolicySettings] = {}
    for cell in found:
        if policies.setdefault(_curve(cell), cell.config.policy) != cell.config.policy:
            raise ValueError(
                f"{where}: two policies are called {cell.label!r}, which would make them one; vary their settings"
                " in the grid, or give each a label in policies"
            )
        twin = seen.setdefault(cell.key, cell)
        if twin is not cell:
            raise ValueError(
                f"{where}: two cells are the same run ({twin.label} and {cell.label}, rate"
                f" {cell.config.rate}); remove the repeated value from policies, grid, cases or what_if"
            )


def _curve(cell: Cell) -> tuple[object, ...]:
    """What tells the curves of figures and knees apart, the policy's settings aside."""
    config = cell.config
    device = (config.device, config.tensor_parallel, config.instances, config.instance_sms, config.shared_device)
    return (cell.label, config.trace, config.model, *device, config.slo)


def _check_number(spec: SweepSpec, where: str) -> None:
    points = sum(math.prod(map(len, _grid(spec, case, where).values())) for case in spec.cases)
    number = points * (1 + len(spec.what_if)) * len(spec.policies)
    if number > MOST_CELLS:
        raise ValueError(f"{where}: {number:,} cells, before only; a sweep has {MOST_CELLS:,} at most: split it up")


def _grid(spec: SweepSpec, case: dict[str, Any], where: str) -> Grid:
    grid: Grid = spec.grid | grid_of(case, f"{where}: cases")
    if spec.repeats > 1:
        if "seed" in grid:
            raise ValueError(f"{where}: seed is in the grid and repeats is {spec.repeats}; keep one")
        first = {**spec.base, **case}.get("seed", 0)
        if not isinstance(first, int):
            raise ValueError(f"{where}: seed is {first!r}; it must be a whole number")
        grid = {**grid, "seed": [first + repeat for repeat in range(spec.repeats)]}
    return grid


def _points(spec: SweepSpec, case: dict[str, Any], where: str) -> Iterator[dict[str, Any]]:
    grid = _grid(spec, case, where)
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


class _Assembly:
    """One cell being put together: what its settings are, and where each of them was written."""

    def __init__(
        self, spec: SweepSpec, case: int, change: int | None, point: dict[str, Any], entry: int, where: str
    ) -> None:
        self._spec, self._case, self._point, self._where = spec, case, point, where
        self._change: dict[str, Any] = {} if change is None else spec.what_if[change]
        self._change_number, self._entry_number = change, entry
        self._entry: PolicyEntry = spec.policies[entry]
        self._settings = copy.deepcopy(dict(spec.base))
        self._lines: dict[str, int] = {}

    def cell(self) -> Cell | None:
        """The cell; None where the sweep's ``only`` leaves it out."""
        self._lay_over()
        self._set_policy()
        for name, text in self._spec.derive.items():
            value = self._worked_out(text, self._known(), ("derive", name))
            self._put(name, value, ("derive", name))
        per_gpu = self._settings.pop("rate_per_gpu", None)
        if per_gpu is not None:
            self._settings["rate"] = _total_rate(per_gpu, self._settings, self._where)
        config = self._checked()
        what_if = self._change.get("name")
        known = {**_names(config), "what_if": what_if, "label": self._entry.shown}
        for number, text in enumerate(self._spec.only):
            if not self._is_true(text, known, number):
                return None
        label = _label(self._entry, self._point)
        return Cell(
            label=f"{label}, {what_if}" if what_if else label,
            config=config,
            point={**self._case_settings(), **self._changes(), **self._point},
            what_if=what_if,
            lines=self._lines,
        )

    def _lay_over(self) -> None:
        grid = ("cases", self._case, "grid")
        own = self._spec.cases[self._case].get("grid", {})
        for name in _leaves(self._spec.base):
            self._note(name, ("base", *name.split(".")))
        for name, value in self._case_settings().items():
            self._put(name, value, ("cases", self._case, name))
        for name, value in self._changes().items():
            self._put(name, value, ("what_if", self._change_number or 0, name))
        for name, value in self._point.items():
            place: Place = (*grid, name) if name in own else ("grid", name)
            repeated = name == "seed" and self._spec.repeats > 1
            self._put(name, value, ("repeats",) if repeated else place)

    def _set_policy(self) -> None:
        policy = self._settings.pop("policy", {})
        if not isinstance(policy, dict) or "name" in policy:
            raise ValueError(f"{self._where}: base.policy is {policy!r}; name policies in the list `policies`")
        named = policy.get("settings", {})
        if not isinstance(named, dict):
            raise ValueError(f"{self._where}: base.policy.settings is {named!r}; give names and values")
        own = named | {key: value for key, value in policy.items() if key != "settings"}
        self._settings["policy"] = {"name": self._entry.name, "settings": own | self._entry.settings}
        place: Place = ("policies", self._entry_number)
        self._note("", place)
        for name in self._entry.settings:
            self._note(f"policy.{name}", (*place, "settings", name))

    def _put(self, name: str, value: object, place: Place) -> None:
        self._note(name, place)
        path = name.split(".")
        if path[0] == "policy" and "name" in self._settings.get("policy", {}) and len(path) > 1:
            path = ["policy", "settings", path[-1]]  # derived, when the policy is already in its place
        _place(self._settings, path, copy.deepcopy(value), self._where, name)

    def _note(self, name: str, place: Place) -> None:
        line = self._spec.lines.find(*place)
        if line is not None:
            self._lines.pop(name, None)  # the latest word on a setting comes last
            self._lines[name] = line

    def _case_settings(self) -> dict[str, Any]:
        case = self._spec.cases[self._case]
        return {name: value for name, value in case.items() if name != "grid"}

    def _changes(self) -> dict[str, Any]:
        return {name: value for name, value in self._change.items() if name != "name"}

    def _known(self) -> dict[str, Any]:
        """Settings so far, by dotted name, with defaults for those that have one."""
        defaults = {name: field.default for name, field in RunConfig.model_fields.items() if not field.is_required()}
        plain = {name: value for name, value in defaults.items() if isinstance(value, bool | int | float | str | None)}
        found = plain | _flat(self._settings)
        sizes = [found["instances"], found["tensor_parallel"]]
        found["gpus"] = sizes[0] * sizes[1] if all(isinstance(size, int) for size in sizes) else None
        return found | {name.replace(".settings.", "."): value for name, value in found.items()}

    def _worked_out(self, text: str, known: Mapping[str, Any], place: Place) -> Any:
        try:
            return Expression(text).value(known)
        except ValueError as error:
            raise ValueError(f"{self._where}{_line(self._spec.lines.find(*place))}: {error}") from None

    def _is_true(self, text: str, known: Mapping[str, Any], number: int) -> bool:
        value = self._worked_out(text, known, ("only", number))
        if not isinstance(value, bool):
            where = f"{self._where}{_line(self._spec.lines.find('only', number))}"
            raise ValueError(f"{where}: only: {text!r} is {value!r}, neither true nor false; compare it with something")
        return value

    def _checked(self) -> RunConfig:
        try:
            return RunConfig.model_validate(self._settings)
        except ValidationError as error:
            field = ".".join(map(str, place_of(error, RunConfig)))
            shown = ", ".join(f"{key}={value}" for key, value in self._point.items())
            where = f"{self._where}{_line(self._line_of(field))}" + (f" ({shown})" if shown else "")
            raise ValueError(one_line(error, where, RunConfig)) from None

    def _line_of(self, loc: str) -> int | None:
        loc = "rate_per_gpu" if loc == "rate" and "rate" not in self._lines else loc
        for name, line in reversed(self._lines.items()):
            if name and (loc == name or loc.startswith(f"{name}.") or name.startswith(f"{loc}.")):
                return line
        return None


def _line(number: int | None) -> str:
    return "" if number is None else f", line {number}"


def _names(config: RunConfig) -> dict[str, Any]:
    """What an expression of ``only`` may name: every setting, and rates and GPUs in all."""
    found = _flat(config.model_dump(mode="json"))
    found |= {name.replace("policy.settings.", "policy."): value for name, value in found.items()}
    per_gpu = None if config.rate is None else config.rate / config.gpus
    return found | {"gpus": config.gpus, "rate_per_gpu": per_gpu}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _leaves(settings: Mapping[str, Any]) -> list[str]:
    return list(_flat(settings))


def _found(settings: Mapping[str, Any], name: str) -> Any:
    for part in name.removeprefix("policy.settings.").split("."):
        settings = settings.get(part, {}) if isinstance(settings, Mapping) else {}
    return settings


def _label(entry: PolicyEntry, point: Mapping[str, Any]) -> str:
    varied = [f"{path.split('.')[-1]}={value}" for path, value in point.items() if path.startswith("policy.")]
    return f"{entry.shown} {', '.join(varied)}" if varied else entry.shown


def _total_rate(per_gpu: object, settings: Mapping[str, Any], where: str) -> float:
    if "rate" in settings:
        raise ValueError(f"{where}: rate and rate_per_gpu are both given; keep one")
    if isinstance(per_gpu, bool) or not isinstance(per_gpu, int | float):
        raise ValueError(f"{where}: rate_per_gpu is {per_gpu!r}; it must be a number")
    sizes = [settings.get(name, 1) for name in ("instances", "tensor_parallel")]
    return float(per_gpu) * (sizes[0] * sizes[1] if all(isinstance(size, int) for size in sizes) else 1)


def _place(settings: dict[str, Any], path: list[str], value: object, where: str, shown: str) -> None:
    for part in path[:-1]:
        settings = settings.setdefault(part, {})
        if not isinstance(settings, dict):
            raise ValueError(f"{where}: {shown} has no place: {part} is {settings!r}, not a group of settings")
    known = settings.get(path[-1])
    merged = known | value if isinstance(known, dict) and isinstance(value, dict) else value
    settings[path[-1]] = merged
