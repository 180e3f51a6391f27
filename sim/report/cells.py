"""The cells of a sweep: what a page tells of the one that is pointed at, and the table of all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from sim.config import checked, read_json
from sim.plots.series import workload_name
from sim.report.facets import NAMES, Facets
from sim.report.markup import Markup, table, tag
from sim.report.page import Cells
from sim.report.words import number, percent, seconds
from sim.results import Row

SETTINGS_END = "gpus"
"""The first column of a row that is a metric; those before it are settings, which are at its head."""

SHARES = ("attainment", "ttft_attainment", "tpot_attainment", "utilisation")
HEADLINES = ("attainment", "ttft_p50_s", "ttft_p90_s", "tpot_p50_s", "tpot_p90_s", "goodput_per_s_per_gpu")
NEVER_TOLD = ("policy_name", "what_if")


def told(rows: Sequence[Row]) -> Cells:
    """Of each row its policy, the settings in which cells differ and its headline numbers; and what all share."""
    names = [name for name in settings_of(rows[0]) if name not in NEVER_TOLD]
    varied = [name for name in names if len({row.get(name) for row in rows}) > 1]
    shared = {name: str(rows[0][name]) for name in names if name not in varied and rows[0].get(name) is not None}
    each = []
    for row in rows:
        cell = {"policy": row["policy"]}
        cell |= {name: _plain(row[name]) for name in varied if row.get(name) is not None}
        cell["requests/s per GPU"] = number(rate_of(row))
        cell |= {title_of(name): amount(name, row.get(name)) for name in (*HEADLINES, "utilisation")}
        each.append(cell)
    return shared, each


def settings_of(row: Row) -> list[str]:
    """The columns that are settings: those before the first metric."""
    names = list(row)
    return names[: names.index(SETTINGS_END)] if SETTINGS_END in names else names


def rate_of(row: Row) -> float | None:
    """Offered requests/s per GPU; None where the trace's own times were kept."""
    return None if row["rate"] is None else float(row["rate"]) / float(row["gpus"])


def amount(name: str, value: float | None) -> str:
    """A value of a results column in words."""
    if name in SHARES:
        return percent(value)
    return seconds(value) if name.endswith("_s") and "_per_s" not in name else number(value)


def cells_table(rows: Sequence[Row], facets: Facets) -> Markup:
    """A line a cell, which the buttons hide and a click chooses."""
    devices = len(facets.values["device"]) > 1
    head = ["policy", *(["device"] if devices else []), "trace", "seed", "requests/s per GPU"]
    lines = []
    for place, row in enumerate(rows):
        words = [row["policy"], *([row["device"]] if devices else []), workload_name(row["trace"]), row.get("seed", "")]
        numbers = [number(rate_of(row)), *(amount(name, row.get(name)) for name in HEADLINES)]
        lines.append((facets.attributes(*NAMES, row=row) | {"data-cell": str(place)}, [*words, *numbers]))
    return table(
        [*head, *map(title_of, HEADLINES)],
        [cells for _, cells in lines],
        left=len(head) - 1,
        attributes=[attributes for attributes, _ in lines],
    )


def chosen() -> Markup:
    """Where the settings of the cell that is clicked will stand."""
    inside = tag("div", tag("table", tag("tbody")), class_="wide")
    return tag("section", tag("h3", "Chosen cell"), inside, id="chosen", hidden="hidden", **{"aria-live": "polite"})


def settings_table(shared: Mapping[str, str]) -> Markup:
    """What all cells have in common."""
    return table(("setting", "of all cells"), shared.items(), left=2)


def config_section(config: Mapping[str, Any]) -> Markup:
    """The config.json of the run that a search is around."""
    return tag("details", tag("summary", "config.json"), tag("pre", json.dumps(config, indent=2)))


class _Failed(BaseModel):
    policy: str
    rate: float | None
    settings: dict[str, Any]
    error: str


class _Failures(BaseModel):
    failures: list[_Failed]


def failures(file: Path) -> Markup:
    """Cells that failed, from a sweep's failures.json. Raises ValueError where it is none."""
    listed = checked(_Failures, read_json(file), str(file)).failures
    lines = [
        (one.policy, ", ".join(f"{name}={value}" for name, value in one.settings.items()), one.error) for one in listed
    ]
    return table(("policy that failed", "settings", "error"), lines, left=3)


def title_of(name: str) -> str:
    """A column's name in words, such as TTFT P90."""
    if name.endswith("_per_s_per_gpu"):
        return f"{name.removesuffix('_per_s_per_gpu')}, requests/s per GPU".removeprefix("requests, ")
    if name in SHARES:
        return {"attainment": "SLO attainment", "utilisation": "SM utilisation"}.get(name, name.replace("_", " "))
    first, _, part = name.removesuffix("_s").partition("_")
    return f"{first.upper()} {part.upper() if part.startswith('p') else part}"


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)
