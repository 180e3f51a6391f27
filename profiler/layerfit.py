"""Whole layers of a profile against the sum of their kernels: what a layer, and a product in it, takes beyond them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import lsq_linear

from profiler.composition import LayerCosts, ProductFactors
from profiler.fittedmodel import FittedModel
from profiler.profile import LAYERS
from profiler.work import Work

LEAST_S = 1e-9
LEAST_FACTOR = 0.1
LARGEST_FACTOR = 3.0
"""On products in a layer, or one over it: more is a row gone wrong."""


def layer_costs(model: FittedModel, rows: pd.DataFrame, host_s: float = 0.0) -> LayerCosts:
    """The costs that explain best how long ``rows`` of LAYERS, timed alone, took; ``host_s`` of each was the host's.

    Least squares of the relative error, on each share for itself: a time for a layer and a factor for each kind of
    launch, the first not below 0 and the others above it. A share with no more different launches than such numbers has
    factors alone.
    """
    seconds: list[tuple[int, float]] = []
    factors: dict[str, list[tuple[int, float]]] = {kind: [] for kind in LAYERS}
    for share in sorted(set(rows["sms"].astype(int).tolist())):
        layer_s, ratios = _on_share(model, share, rows[rows["sms"] == share].to_dict("records"), host_s)
        seconds.append((share, layer_s))
        for kind, ratio in ratios.items():
            factors[kind].append((share, ratio))
    prefill, decode = (tuple(factors[kind]) for kind in LAYERS)
    return LayerCosts(tuple(seconds), prefill, decode)


def _on_share(
    model: FittedModel, sms: int, rows: list[dict[Any, Any]], host_s: float
) -> tuple[float, dict[str, float]]:
    """Seconds a layer, and the factor of each kind of launch that there is."""
    kinds = [kind for kind in LAYERS if any(row["kernel"] == kind for row in rows)]
    measured = np.maximum([float(row["latency_s"]) - host_s for row in rows], LEAST_S)
    summed = np.array([model.device_seconds(work_of(row), sms) for row in rows]) / measured
    of_kind = np.array([[row["kernel"] == kind for kind in kinds] for row in rows])
    if len(set(summed.tolist())) <= 1 + len(kinds):
        return 0.0, {kind: float(np.median(1 / summed[mine])) for kind, mine in zip(kinds, of_kind.T, strict=True)}
    layers = np.array([float(row["layers"]) for row in rows]) / measured
    terms = np.column_stack([layers, of_kind * summed[:, None]])
    lowest = [0.0, *[LEAST_FACTOR] * len(kinds)]
    layer_s, *found = lsq_linear(terms, np.ones(len(rows)), bounds=(lowest, np.inf)).x.tolist()
    return layer_s, dict(zip(kinds, found, strict=True))


class Timed(NamedTuple):
    """Whole layers alone on ``sms`` SMs, and the device's seconds of them."""

    work: Work
    sms: int
    seconds: float


def timed(rows: pd.DataFrame, host_s: float = 0.0) -> list[Timed]:
    """``rows`` of LAYERS, timed alone; ``host_s`` of each was the host's."""
    return [Timed(work_of(row), int(row["sms"]), float(row["latency_s"]) - host_s) for row in rows.to_dict("records")]


def product_factors(model: FittedModel, layers: Iterable[Timed]) -> ProductFactors:
    """The factors on the products of ``model`` by which it says what ``layers`` took.

    All else in a layer stays as the model has it. Where layers on one share have as many tokens, least squares of their
    relative errors.
    """
    found: dict[int, dict[int, list[Timed]]] = {}
    for one in layers:
        found.setdefault(one.sms, {}).setdefault(one.work.new_tokens, []).append(one)
    return ProductFactors(
        tuple(
            (sms, tuple((tokens, _product_factor(model, alike)) for tokens, alike in sorted(by_tokens.items())))
            for sms, by_tokens in sorted(found.items())
        )
    )


def _product_factor(model: FittedModel, layers: Sequence[Timed]) -> float:
    measured = np.maximum([one.seconds for one in layers], LEAST_S)
    predicted = np.array([model.device_seconds(one.work, one.sms) for one in layers]) / measured
    products = np.array([_products_s(model, one.work, one.sms) for one in layers]) / measured
    more = products @ (1 - predicted) / (products @ products)
    return min(max(1 + float(more), 1 / LARGEST_FACTOR), LARGEST_FACTOR)


def _products_s(model: FittedModel, work: Work, sms: int) -> float:
    """Of all that ``model`` says of a launch, its matrix products."""
    seconds = sum(part.seconds for part in model.breakdown(work, sms) if part.kernel.op == "gemm")
    costs = model.layer_costs.by_sms(model.device.sms)
    if costs is None:
        return seconds
    _, of_prefill, of_decode = costs[sms]
    return seconds * (of_prefill if work.prefill else of_decode)


def work_of(row: Mapping[Any, Any], prefix: str = "") -> Work:
    """The launch that a row of whole layers measured."""
    layers = int(row[f"{prefix}layers"])
    kernel = row["kernel"] if not prefix else row["beside"]
    if kernel == "prefill_layers":
        chunk = (int(row[f"{prefix}new_tokens"]), int(row[f"{prefix}cached_tokens"]))
        return Work(prefill=(chunk,) * int(row[f"{prefix}sequences"]), layers=layers, head=False)
    requests = int(row[f"{prefix}decode_requests"])
    context = requests * int(row[f"{prefix}decode_context_tokens"])
    return Work(decode_requests=requests, decode_context_tokens=context, layers=layers, head=False)
