"""Finished cells of a sweep on disk: one small file each, named by the hash of what its result depends on.

A file is renamed into place when whole, so a process killed at any moment leaves finished cells and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from sim.config import RunConfig
from sim.metrics import Metrics
from sim.records import STATES
from sim.rundir import replacing, write_json

CELLS = "cells"
DISTRIBUTIONS = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "normalised_s", "queueing_s")
_GROUPS = ("states", "source_share", "reject_reasons")


def check_directory(directory: Path) -> None:
    """Raises ValueError where ``directory`` holds something that is no sweep."""
    if directory.is_dir() and any(directory.iterdir()) and not (directory / CELLS).is_dir():
        raise ValueError(f"{directory} is not empty and holds no sweep; choose another --out")
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{directory} is not a directory; choose another --out")


def store(directory: Path, key: str, config: RunConfig, metrics: Metrics) -> None:
    """Writes a finished cell as ``key``."""
    with replacing(directory / CELLS / f"{key}.json") as partial:
        write_json(partial, {"config": config.model_dump(mode="json"), "metrics": metrics.to_dict()})


def stored(directory: Path, key: str) -> dict[str, Any] | None:
    """The metrics of a finished cell; None where it has not run, or its file is damaged and it must run again."""
    try:
        document = json.loads((directory / CELLS / f"{key}.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    metrics = document.get("metrics") if isinstance(document, dict) else None
    return metrics if isinstance(metrics, dict) and _whole(metrics) else None


def _whole(metrics: Mapping[str, Any]) -> bool:
    """Whether these are the metrics that a run writes, each of its kind."""
    if metrics.keys() != {field.name for field in fields(Metrics)} or not isinstance(metrics["states"], dict):
        return False
    if metrics["states"].keys() != set(STATES):
        return False
    groups = [metrics[name] for name in _GROUPS]
    groups += [metrics[name] for name in DISTRIBUTIONS if metrics[name] is not None]
    plain = [value for name, value in metrics.items() if name not in (*DISTRIBUTIONS, *_GROUPS)]
    if not all(isinstance(group, dict) for group in groups):
        return False
    values = [*plain, *(value for group in groups for value in group.values())]
    return all(value is None or isinstance(value, int | float) for value in values)
