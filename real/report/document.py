"""report.json: everything that the page shows, as numbers; null stands for what does not exist.

schema, header (as given), limit
verdict     judged, within: headline statistics; orders, orders_agree: comparisons of policies
orders      a rate and statistic each: measured, simulated (policies, least first), agree, pairs
cells       a policy at a rate each:
  policy, rate, partial, among (requests that statistics are over where every real run was cut off)
  real, simulated   finished, states, steps, facts (real.json), config, of each run
  statistics        metric, part, simulated, measured, runs, error, repeatability, within
  requests          columns: request_id, and simulated_ and measured_ of ttft_s, tpot_s, e2e_s
  request_errors    by metric: count, p50, p90, within (share of requests inside the limit)
  steps             real.stepwise.StepGroup; sms null: all shares together
  overlaps          real.stepwise.Overlap, a run each
  host              real.stepwise.HostTime, a lane and part each
  attribution       causes by metric (real.attribution.Cause, error, shares), host_s by kind of launch, outside_s,
                    kernels and contention (kind, sms, factor, steps); null where unexplained says why
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real.attribution import Attribution
from real.comparison import METRICS, Comparison, Paired, Side
from real.corrections import Key
from real.report.study import Studied, Study
from sim.records import STATES

SCHEMA = 1


def document(found: Study, header: Mapping[str, Any]) -> dict[str, Any]:
    """What report.json holds."""
    verdicts = found.verdicts
    return {
        "schema": SCHEMA,
        "header": plain(header),
        "limit": found.limit,
        "verdict": {
            "judged": len(verdicts),
            "within": sum(verdicts),
            "orders": len(found.orders),
            "orders_agree": sum(order.agree for order in found.orders),
        },
        "orders": [asdict(order) | {"agree": order.agree} for order in found.orders],
        "cells": [_cell(cell) for cell in found.cells],
    }


def _cell(studied: Studied) -> dict[str, Any]:
    comparison, cell = studied.comparison, studied.comparison.cell
    among = cell.among
    return {
        "policy": cell.policy,
        "rate": cell.rate,
        "partial": cell.partial,
        "among": None if among is None else len(among),
        "real": [_side(side) for side in cell.real],
        "simulated": _side(cell.simulated),
        "statistics": [asdict(statistic) for statistic in comparison.statistics],
        "requests": _requests(comparison.paired),
        "request_errors": {metric: request_errors(comparison, metric) for metric in METRICS},
        "steps": [asdict(group) for group in comparison.steps],
        "overlaps": [asdict(overlap) for overlap in comparison.overlaps],
        "host": [asdict(host) for host in comparison.host],
        "attribution": None if studied.attribution is None else _attribution(studied.attribution),
        "unexplained": studied.unexplained,
    }


def _side(side: Side) -> dict[str, Any]:
    counts = np.bincount(side.run.records.state, minlength=len(STATES)).tolist()
    return {
        "finished": side.finished,
        "states": dict(zip(STATES, counts, strict=True)),
        "steps": len(side.run.steps),
        "facts": plain(side.facts),
        "config": side.run.config.model_dump(mode="json"),
    }


def _requests(paired: Paired) -> dict[str, Any]:
    found: dict[str, Any] = {"request_id": list(paired.request_id)}
    for metric in METRICS:
        found[f"simulated_{metric}"] = _numbers(paired.simulated[metric])
        found[f"measured_{metric}"] = _numbers(paired.measured[metric])
    return found


def request_errors(comparison: Comparison, metric: str) -> dict[str, float | int | None]:
    """Of requests in both worlds: how many, the median and P90 of their error, the share within the limit."""
    errors = comparison.paired.errors(metric)
    if not len(errors):
        return {"count": 0, "p50": None, "p90": None, "within": None}
    p50, p90 = np.quantile(errors, (0.5, 0.9)).tolist()
    return {"count": len(errors), "p50": p50, "p90": p90, "within": float((errors <= comparison.limit).mean())}


def _attribution(found: Attribution) -> dict[str, Any]:
    known = found.corrections
    return {
        "causes": {
            metric: {**asdict(cause), "error": cause.error, "shares": cause.shares()}
            for metric, cause in found.causes.items()
        },
        "host_s": dict(known.host_s),
        "outside_s": dict(known.outside_s),
        "kernels": _factors(known.kernels, found.steps_alone),
        "contention": _factors(known.contention, found.steps_beside),
    }


def _factors(factors: Mapping[Key, float], counts: Mapping[Key, int]) -> list[dict[str, Any]]:
    return [
        {"kind": kind, "sms": sms, "factor": factor, "steps": counts[kind, sms]}
        for (kind, sms), factor in sorted(factors.items(), key=lambda item: (item[0][0], item[0][1] or 0))
    ]


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    return [None if np.isnan(value) else value for value in values.tolist()]


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: NaN and infinity as None, other objects as text."""
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
