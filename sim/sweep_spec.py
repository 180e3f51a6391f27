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
      rate_per_gpu: [2, 4, 8]
      slo.tpot_s: [0.1, 0.15]
    cases:                                  # optional: the grid once for each, with settings of its own
      - {trace: workload:code, grid: {rate_per_gpu: [1, 2]}}

A grid key is a setting, dotted where nested. ``policy.x`` is short for ``policy.settings.x``, and
``rate_per_gpu`` for a ``rate`` that is so many times the GPUs. All policies get the same seed and with it the
same requests at the same times.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field

from sim.config import PolicySettings, RunConfig, Settings, checked
from sim.fingerprint import fingerprint

Grid = dict[str, Annotated[list[Any], Field(min_length=1)]]


class PolicyEntry(Settings):
    """One of the policies compared.

    ``label`` names it in tables and plots; by default its name and settings.
    """

    name: str
    label: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)

    @property
    def shown(self) -> str:
        if self.label is not None or not self.settings:
            return self.label or self.name
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.settings.items())})"


def _named(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class SweepSpec(Settings):
    """The file as it stands; :func:`cells` turns it into runs."""

    base: dict[str, Any] = Field(default_factory=dict)
    policies: Annotated[list[Annotated[PolicyEntry, BeforeValidator(_named)]], Field(min_length=1)]
    grid: Grid = Field(default_factory=dict)
    cases: Annotated[list[dict[str, Any]], Field(min_length=1, default_factory=lambda: [{}])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of a sweep, what its policy is called in it, and the settings of its case and grid point."""

    label: str
    config: RunConfig
    point: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """Label and point, which tell it from every other cell."""
        shown = ", ".join(f"{key}={value}" for key, value in self.point.items())
        return f"{self.label} ({shown})" if shown else self.label

    @property
    def key(self) -> str:
        """Names the run by all that its result depends on, 32 hexadecimal digits."""
        return fingerprint(self.config)[:32]


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a key given twice is an error; YAML itself keeps the last and says nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key.value, str):
                raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
            seen.add(key.value if isinstance(key.value, str) else id(key))
        return super().construct_mapping(node, deep)


def read_spec(path: Path) -> SweepSpec:
    """The sweep in a YAML file. Raises ValueError naming the file, the line or field, and the fault."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except (IsADirectoryError, UnicodeDecodeError):
        raise ValueError(f"{path} is not a text file") from None
    try:
        document = yaml.load(text, _UniqueKeys)
    except RecursionError:
        raise ValueError(f"{path} is no sweep: it is nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise ValueError(f"{where}: not YAML: {getattr(error, 'problem', None) or error}") from None
    return checked(SweepSpec, document, str(path))


def cells(spec: SweepSpec, where: str) -> list[Cell]:
    """Every run of a sweep in the order of the file: cases, then grid, then policies.

    Raises ValueError where a setting is wrong, two cells are the same run, or two policies of one label would
    be one curve; ``where`` begins the message.
    """
    _check_labels([entry.shown for entry in spec.policies], where)
    found = [
        Cell(
            label=_label(entry, point),
            config=_config(spec.base, case, point, entry, where),
            point={name: value for name, value in {**case, **point}.items() if name != "grid"},
        )
        for case in spec.cases
        for point in _points(spec, case, where)
        for entry in spec.policies
    ]
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
                f" {cell.config.rate}); remove the repeated value from policies, grid or cases"
            )
    return found


def _check_labels(labels: Sequence[str], where: str) -> None:
    repeated = [label for label, times in Counter(labels).items() if times > 1]
    if repeated:
        raise ValueError(f"{where}: policies: two are called {repeated[0]!r}; give each a label of its own")


def _curve(cell: Cell) -> tuple[object, ...]:
    """What tells the curves of figures and knees apart, the policy's settings aside."""
    config = cell.config
    device = (config.device, config.tensor_parallel, config.instances, config.instance_sms)
    return (cell.label, config.trace, config.model, *device, config.slo)


def _label(entry: PolicyEntry, point: Mapping[str, Any]) -> str:
    varied = [f"{path.split('.')[-1]}={value}" for path, value in point.items() if path.startswith("policy.")]
    return f"{entry.shown} {', '.join(varied)}" if varied else entry.shown


def _points(spec: SweepSpec, case: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    grid: Grid = checked(_CaseGrid, {"grid": spec.grid | case.get("grid", {})}, f"{where}: cases").grid
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


class _CaseGrid(Settings):
    grid: Grid


def _config(
    base: Mapping[str, Any], case: Mapping[str, Any], point: Mapping[str, Any], entry: PolicyEntry, where: str
) -> RunConfig:
    settings = copy.deepcopy(dict(base))
    for path, value in {**case, **point}.items():
        if path != "grid":
            _place(settings, path.split("."), copy.deepcopy(value), where, path)
    policy = settings.pop("policy", {})
    if not isinstance(policy, dict) or "name" in policy:
        raise ValueError(f"{where}: base.policy is {policy!r}; name policies in the list `policies`")
    own = policy.get("settings", {}) | {key: value for key, value in policy.items() if key != "settings"}
    settings["policy"] = {"name": entry.name, "settings": own | entry.settings}
    per_gpu = settings.pop("rate_per_gpu", None)
    if per_gpu is not None:
        settings["rate"] = _total_rate(per_gpu, settings, where)
    shown = ", ".join(f"{key}={value}" for key, value in point.items())
    return checked(RunConfig, settings, f"{where} ({shown})" if shown else where)


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
