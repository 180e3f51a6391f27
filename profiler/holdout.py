"""How far estimators are from measurements that they were not fitted to.

The splits are drawn with a seed, and rows of one shape on one SM share stay together. Errors are |predicted /
measured - 1|.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone  # type: ignore[import-untyped]

from profiler.devicecalibration import DeviceCalibration
from profiler.estimators import CANDIDATES, CalibratedRoofline, clock_of, rows_of, shapes_of
from profiler.fitting import device_of, fit_device
from profiler.profile import Profile
from profiler.specs import DeviceSpec
from profiler.structure import AXES, Floats, base_seconds

Mask = NDArray[np.bool_]

RANDOM = "random 20 %"
PAIRS = "20 % of (n, k)"
LARGEST = "largest quarter"
MOST = "90 % out"
"""Splits: which rows are held out. Largest: by m n k, of other ops by the formula's time."""

FEW_ROWS = 30
"""With fewer rows there is cross-validation instead of splits."""

FOLDS = 10
FEWEST_ROWS = 5
"""With fewer rows of an op nothing is said of its errors."""

WIDE = 1024
"""n and k from which a product is as wide as the projections of a model."""

SAMPLES = (100, 300, 1000, 3000)
"""Sizes of the nested samples of a learning curve, before all rows."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one estimator on held-out rows of one op.

    split: which rows were held out. subset: of these, which the errors are of. fitted: rows that were fitted to;
    rows: rows that were predicted. spread: median spread of the measurements themselves, None where it is unknown.
    """

    op: str
    split: str
    subset: str
    estimator: str
    fitted: int
    rows: int
    median: float
    p90: float
    spread: float | None

    def document(self) -> dict[str, Any]:
        """JSON types; errors to a thousandth of a percent."""
        rounded = {name: round(value, 5) for name, value in asdict(self).items() if isinstance(value, float)}
        return {**asdict(self), **rounded}


def candidates(
    op: str, device: DeviceSpec, *, bandwidth: Floats | None = None, keep_points: bool = False
) -> dict[str, Any]:
    """Every estimator for an op of a device, unfitted; ours as it will be used."""
    unfitted = {name: estimator(op, device) for name, estimator in CANDIDATES.items()}
    for estimator in unfitted.values():
        if isinstance(estimator, CalibratedRoofline):
            estimator.set_params(bandwidth=bandwidth, keep_points=keep_points)
    return unfitted


def splits(op: str, rows: pd.DataFrame, device: DeviceSpec, seed: int = 0) -> dict[str, list[Mask]]:
    """By name, the masks of held-out rows: one for a split, one a fold for cross-validation."""
    groups = rows.groupby([*AXES[op], "sms"], sort=False).ngroup().to_numpy()
    count = int(groups.max(initial=-1)) + 1
    order = np.random.default_rng(seed).permutation(count)
    if len(rows) < FEW_ROWS:
        folds = min(FOLDS, count)
        name = "leave one out" if folds == count else f"{folds}-fold"
        return {name: [np.isin(groups, order[fold::folds]) for fold in range(folds)]} if count > 1 else {}
    held: dict[str, list[Mask]] = {RANDOM: [np.isin(groups, order[: round(0.2 * count)])]}
    if op == "gemm":
        pairs = rows.groupby(["n", "k"], sort=False).ngroup().to_numpy()
        chosen = np.random.default_rng(seed).permutation(pairs.max() + 1)
        held[PAIRS] = [np.isin(pairs, chosen[: round(0.2 * len(chosen))])]
    sizes = _sizes(op, rows, device)
    held[LARGEST] = [sizes >= np.sort(sizes)[len(sizes) - max(1, round(len(sizes) / 4))]]
    held[MOST] = [np.isin(groups, order[: round(0.9 * count)])]
    return {name: masks for name, masks in held.items() if masks[0].any() and not masks[0].all()}


def compare(
    profile: Profile,
    device: DeviceSpec,
    *,
    ops: Sequence[str] | None = None,
    quick: bool = False,
    bandwidth: Floats | None = None,
    keep_points: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Errors]:
    """Errors of every candidate on every split of every op that has rows enough.

    ops: which ones, all by default. quick: the first split alone. bandwidth, keep_points: of our own estimator.
    """
    found = []
    for op in ops if ops is not None else AXES:
        rows = rows_of(profile, op)
        if len(rows) < FEWEST_ROWS:
            continue
        estimators = candidates(op, device, bandwidth=bandwidth, keep_points=keep_points)
        for split, masks in list(splits(op, rows, device, seed).items())[: 1 if quick else None]:
            for name, estimator in estimators.items():
                if progress is not None:
                    progress(f"{op}, {split}: {name}")
                found += list(_held_out(op, rows, split, masks, name, estimator))
    return found


def learning_curve(
    profile: Profile,
    op: str,
    device: DeviceSpec,
    *,
    bandwidth: Floats | None = None,
    keep_points: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Errors]:
    """Errors on the same fifth of the rows after fitting to samples of the others, each within the next larger."""
    rows = rows_of(profile, op)
    if len(rows) < FEW_ROWS:
        return []
    held = splits(op, rows, device, seed).get(RANDOM)
    if held is None:
        return []
    (test,) = held
    others = np.random.default_rng(seed + 1).permutation(np.flatnonzero(~test))
    found = []
    for samples in (*(size for size in SAMPLES if size < len(others)), len(others)):
        fitted = np.zeros(len(rows), dtype=bool)
        fitted[others[:samples]] = True
        for name, estimator in candidates(op, device, bandwidth=bandwidth, keep_points=keep_points).items():
            if progress is not None:
                progress(f"{op}, {samples} samples: {name}")
            errors = errors_of(estimator, rows, fitted, test)
            found.append(_summary(op, RANDOM, "all", name, samples, errors, rows[test]))
    return found


def errors_of(estimator: Any, rows: pd.DataFrame, fitted: Mask, test: Mask) -> Floats:
    """|predicted / measured - 1| of the rows ``test`` by a copy of ``estimator`` that saw the rows ``fitted``."""
    known, asked = rows[fitted], rows[test]
    predicted = clone(estimator).fit(known, known["latency_s"]).predict(asked)
    return np.asarray(np.abs(predicted / asked["latency_s"].to_numpy(dtype=np.float64) - 1))


def _held_out(
    op: str, rows: pd.DataFrame, split: str, masks: Sequence[Mask], name: str, estimator: Any
) -> Iterator[Errors]:
    errors = np.concatenate([errors_of(estimator, rows, ~test, test) for test in masks])
    asked = pd.concat([rows[test] for test in masks])
    fitted = round(float(np.mean([(~test).sum() for test in masks])))
    for subset, chosen in _subsets(op, asked).items():
        if chosen.any():
            yield _summary(op, split, subset, name, fitted, errors[chosen], asked[chosen])


def _subsets(op: str, rows: pd.DataFrame) -> Mapping[str, Mask]:
    everything = np.ones(len(rows), dtype=bool)
    if op != "gemm":
        return {"all": everything}
    wide = ((rows["n"] >= WIDE) & (rows["k"] >= WIDE)).to_numpy(dtype=bool)
    return {"all": everything, f"n, k >= {WIDE}": wide}


def _summary(op: str, split: str, subset: str, name: str, fitted: int, errors: Floats, rows: pd.DataFrame) -> Errors:
    spread = rows["spread"].median() if "spread" in rows else np.nan
    return Errors(
        op=op,
        split=split,
        subset=subset,
        estimator=name,
        fitted=fitted,
        rows=len(errors),
        median=float(np.median(errors)),
        p90=float(np.quantile(errors, 0.9)),
        spread=None if np.isnan(spread) else float(spread),
    )


def _sizes(op: str, rows: pd.DataFrame, device: DeviceSpec) -> Floats:
    if op == "gemm":
        return np.asarray(rows["m"] * rows["n"] * rows["k"], dtype=np.float64)
    return base_seconds(op, shapes_of(op, rows), clock_of(device), device.sms)


def fitting_steps(profile: Profile, *, quick: bool) -> int:
    """How many steps :func:`fit_with_errors` tells of."""
    return len(_measured_ops(profile)) * (2 if quick else 3)


def fit_with_errors(
    profile: Profile, *, keep_points: bool, quick: bool, progress: Callable[[int, str], None]
) -> DeviceCalibration:
    """The model fitted to all of a profile, with the errors of others fitted to parts of it.

    quick: one split only, and no error by samples. ``progress`` is told (steps done, what comes now).
    Raises ValueError as :func:`profiler.fitting.fit_device` does.
    """
    device_of(profile)
    done = count()
    model = fit_device(profile, keep_points=keep_points, progress=lambda op: progress(next(done), op))
    bandwidth = np.asarray(model.bandwidth.curve(model.device))
    ops = _measured_ops(profile)
    holdout: list[Errors] = []
    curve: list[Errors] = []
    for op in ops:
        progress(next(done), f"{op}: hold-out")
        holdout += compare(profile, model.device, ops=[op], quick=quick, bandwidth=bandwidth, keep_points=keep_points)
    for op in [] if quick else ops:
        progress(next(done), f"{op}: error by samples")
        curve += learning_curve(profile, op, model.device, bandwidth=bandwidth, keep_points=keep_points)
    return replace(
        model,
        holdout=tuple(errors.document() for errors in holdout),
        learning_curve=tuple(errors.document() for errors in curve),
    )


def _measured_ops(profile: Profile) -> list[str]:
    return [op for op in AXES if not rows_of(profile, op).empty]
