"""The rows of a sweep, one a finished cell: its settings and its metrics as flat columns, to Parquet and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.cellfiles import DISTRIBUTIONS
from sim.columns import Columns, plain_column, write_columns
from sim.config import RunConfig
from sim.records import STATES
from sim.rundir import replacing
from sim.sweep_cells import Cell

RESULTS = "results.parquet"

Row = Mapping[str, Any]

_STATISTICS = ("count", "mean", "p50", "p90", "p95", "p99")
LATENCIES = tuple(f"{name.removesuffix('_s')}_{part}_s" for name in DISTRIBUTIONS for part in _STATISTICS[1:])
"""Columns that hold seconds."""

_NEEDED: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("cell", "policy", "policy_name", "trace", "model", "device"), (str,)),
    **dict.fromkeys(("rate", "gpus", "tensor_parallel", "instances", "attainment"), (int, float)),
    **dict.fromkeys(("slo_ttft_s", "slo_ttft_per_token_s", "slo_ttft_floor_s", "slo_tpot_s"), (int, float)),
}


def row(cell: Cell, key: str, metrics: dict[str, Any]) -> Row:
    """A cell as its row; ``metrics`` is the document of :meth:`sim.metrics.Metrics.to_dict`."""
    names = {"cell": key, "policy": cell.label, "what_if": cell.what_if}
    return names | _settings(cell.config) | _measures(metrics)


def write_results(directory: Path, rows: Sequence[Row]) -> None:
    """results.parquet; a column that some rows lack is null there."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with replacing(directory / RESULTS) as partial:
        write_columns(partial, {name: plain_column([row.get(name) for row in rows]) for name in names})


def load_results(directory: Path) -> list[Row]:
    """The rows of a sweep, one a finished cell. Raises ValueError where there are none, or the file is another."""
    if not (directory / RESULTS).is_file():
        raise ValueError(f"{directory} is no sweep: it has no {RESULTS}; give the --out of a bulletsim sweep")
    file = Columns(directory / RESULTS)
    absent = [name for name in _NEEDED if name not in file.names]
    if absent and len(file):
        raise ValueError(f"{directory / RESULTS} is not of a sweep: it has no column {absent[0]}; give a sweep's --out")
    if not len(file):
        raise ValueError(f"{directory / RESULTS} has no rows: no cell of this sweep has finished")
    columns = {name: file.values(name) for name in file.names}
    for name, kinds in _NEEDED.items():
        wrong = next((value for value in columns[name] if value is not None and not isinstance(value, kinds)), None)
        if wrong is not None:
            raise ValueError(f"{directory / RESULTS}, column {name}: {wrong!r} is not what a sweep writes there")
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _settings(config: RunConfig) -> dict[str, Any]:
    document = config.model_dump(mode="json")
    policy, estimator = document.pop("policy"), document.pop("estimator")
    flat: dict[str, Any] = {}
    for name in ("slo", "window", "latency"):
        flat |= {f"{name}_{part}": value for part, value in document.pop(name).items()}
    del document["version"], document["trace_sha256"], flat["latency_model_sha256"]
    settings = json.dumps(policy["settings"], sort_keys=True)
    flat["estimator"] = None if estimator is None else json.dumps(estimator, sort_keys=True)
    return {"policy_name": policy["name"], "policy_settings": settings} | document | flat


def _measures(metrics: dict[str, Any]) -> dict[str, Any]:
    """A summary as flat columns: ttft_mean_s, ttft_p90_s and so on for distributions."""
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        if name in DISTRIBUTIONS:
            stem = name.removesuffix("_s")
            given = value or {}
            flat |= {f"{stem}_{part}" + ("" if part == "count" else "_s"): given.get(part) for part in _STATISTICS}
        elif name == "states":
            flat |= {state: value[state] for state in STATES}
        elif name == "source_share":
            flat |= {f"share_{source}": share for source, share in value.items()}
        elif name == "reject_reasons":
            flat |= {f"rejected_{reason}": count for reason, count in value.items()}
        else:
            flat[name] = value
    return flat
