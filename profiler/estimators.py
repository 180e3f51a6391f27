"""Regressions from kernel shapes to seconds, in scikit-learn's conventions: ours, and those that others use.

``X`` is a table with the columns ``structure.AXES[op]`` and, optionally, ``sms``; ``y`` is seconds. Only ours knows
what SMs and tiles are; only ours can be frozen into a calibration.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.interpolate import RBFInterpolator
from scipy.spatial import Delaunay, QhullError
from sklearn.base import BaseEstimator, RegressorMixin  # type: ignore[import-untyped]
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped]
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from profiler.calibration import MeasuredPoints, OpCalibration
from profiler.kerneltime import KernelClock, sharp_bandwidth
from profiler.profile import Profile
from profiler.specs import DeviceSpec
from profiler.structure import AXES, Floats, Shapes, base_seconds, features
from profiler.trees import Trees

FEW_POINTS = 200
"""Kept points, fewer than which interpolate better without trees that have learnt from so few."""

FEWEST_TREES = 60
"""Trees of a small profile; with five leaves a row, more only repeat the noise and fill the file."""

FLOOR_ROWS = 0.05
"""Share of the smallest shapes that the time of the smallest launch is read from."""


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """How the trees of one op grow. Each further tree costs every prediction its time, and a file its bytes.

    iterations: trees for each dtype that was measured.
    """

    iterations: int = 120
    leaves: int = 31
    depth: int = 8
    learning_rate: float = 0.2
    min_leaf: int = 10


DEFAULTS: dict[str, TreeSettings] = {
    "gemm": TreeSettings(iterations=150, min_leaf=20),
    "attention_prefill": TreeSettings(iterations=140, learning_rate=0.15),
    "attention_decode": TreeSettings(iterations=120, min_leaf=5),
}
"""Chosen on the tables of three devices (docs/accuracy.md), the same for all of them; other ops take the class's."""


def rows_of(profile: Profile, op: str) -> pd.DataFrame:
    """An op's measurements without a co-runner: its axes, ``sms``, ``latency_s`` and ``spread``.

    Operands of a CPU are of its native fp32, which counts as the 16 bits of a GPU.
    """
    rows = profile.select(op)
    return rows.assign(dtype_bytes=np.where(rows["dtype"] == "fp8", 1.0, 2.0))


def shapes_of(op: str, X: pd.DataFrame) -> Shapes:
    """The op's axes as float columns."""
    return {name: X[name].to_numpy(dtype=np.float64) for name in AXES[op]}


def clock_of(
    device: DeviceSpec, floors: dict[str, float] | None = None, bandwidth: Floats | None = None
) -> KernelClock:
    """The formula at the peaks of the specification, with no efficiency in it: that is what is to be found."""
    flops = {("gemm", "bf16"): device.bf16_flops, ("attention", "bf16"): device.bf16_flops}
    if device.fp8_flops is not None:
        flops |= {("gemm", "fp8"): device.fp8_flops}
    curve = sharp_bandwidth(device) if bandwidth is None else bandwidth
    return KernelClock(device, flops, tuple(curve), floors or {})


class CalibratedRoofline(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """SM-scaling roofline with waves, times a measured efficiency (paper, section 3.2).

    op, device: what is predicted, and on what. bandwidth: DRAM bytes/s by SMs, None for the sharp knee.
    iterations, leaves, depth, learning_rate, min_leaf: of the trees that learn the efficiency over shapes; None for
        the op's of ``DEFAULTS``. Of small profiles leaves are smaller, a fortieth of the rows, and trees fewer.
    min_rows: with fewer measured rows on the largest share the efficiency is one number; with kept points, fewer
        than FEW_POINTS.
    keep_points: give measured points back exactly, and let them correct their neighbours.
    """

    def __init__(
        self,
        op: str = "gemm",
        device: DeviceSpec | None = None,
        *,
        bandwidth: Floats | None = None,
        iterations: int | None = None,
        leaves: int | None = None,
        depth: int | None = None,
        learning_rate: float | None = None,
        min_leaf: int | None = None,
        min_rows: int = 40,
        keep_points: bool = False,
        seed: int = 0,
    ) -> None:
        self.op = op
        self.device = device
        self.bandwidth = bandwidth
        self.iterations = iterations
        self.leaves = leaves
        self.depth = depth
        self.learning_rate = learning_rate
        self.min_leaf = min_leaf
        self.min_rows = min_rows
        self.keep_points = keep_points
        self.seed = seed

    def fit(self, X: pd.DataFrame, y: Any) -> Self:
        device = self._device()
        shapes, seconds = shapes_of(self.op, X), np.asarray(y, dtype=np.float64)
        if self.op == "gemm" and (shapes["dtype_bytes"] < 2).any():
            device.peak_flops("fp8")  # refuses a device that has none
        sms = self._sms(X)
        shares = tuple(int(share) for share in np.unique(sms))
        widest = sms == shares[-1]
        floor = self._floor(shapes, seconds, sms, widest)
        self.clock_ = clock_of(device, {self.op: floor}, self.bandwidth)
        base = base_seconds(self.op, shapes, self.clock_, sms)
        target = np.log(seconds / base)
        constant, trees = self._trend(_rows(shapes, widest), base[widest], target[widest])
        self.calibration_ = OpCalibration(
            op=self.op,
            floor_s=floor,
            constant=constant,
            trees=trees,
            ranges={name: (float(column.min()), float(column.max())) for name, column in shapes.items()},
            share_sms=shares,
            share_log=(0.0,) * len(shares),
            rows=len(seconds),
            prefixed="cached_tokens" in shapes and bool((shapes["cached_tokens"] > 0).any()),
        )
        left = target - self.calibration_.log_alpha(shapes, self.clock_)[:, 0]
        share_log = tuple(0.0 if share == shares[-1] else float(np.median(left[sms == share])) for share in shares)
        points = self._points(shapes, sms, left, shares, share_log) if self.keep_points else None
        self.calibration_ = replace(self.calibration_, share_log=share_log, points=points)
        return self

    def predict(self, X: pd.DataFrame) -> Floats:
        """Seconds of each row on its own ``sms``, or on the whole device where there is no such column."""
        check_is_fitted(self, "calibration_")
        shapes, sms = shapes_of(self.op, X), self._sms(X)
        base = base_seconds(self.op, shapes, self.clock_, sms)
        alphas = self.calibration_.log_alpha(shapes, self.clock_)
        place = np.searchsorted(self.calibration_.share_sms, sms, side="right") - 1
        predicted: Floats = base * np.exp(alphas[np.arange(len(base)), np.maximum(place, 0)])
        return predicted

    def freeze(self) -> OpCalibration:
        """The fitted parameters as data."""
        check_is_fitted(self, "calibration_")
        return self.calibration_

    def _device(self) -> DeviceSpec:
        if self.device is None:
            raise ValueError("device is None; give the DeviceSpec that the rows were measured on")
        return self.device

    def _settings(self) -> TreeSettings:
        given = {field.name: getattr(self, field.name) for field in fields(TreeSettings)}
        default = DEFAULTS.get(self.op, TreeSettings())
        return replace(default, **{name: value for name, value in given.items() if value is not None})

    def _sms(self, X: pd.DataFrame) -> NDArray[np.int64]:
        if "sms" in X.columns:
            return X["sms"].to_numpy(dtype=np.int64)
        return np.full(len(X), self._device().sms, dtype=np.int64)

    def _floor(self, shapes: Shapes, seconds: Floats, sms: NDArray[np.int64], widest: NDArray[np.bool_]) -> float:
        """What the smallest shapes take beyond the formula at the efficiency of the larger ones."""
        base = base_seconds(self.op, _rows(shapes, widest), clock_of(self._device(), None, self.bandwidth), sms[widest])
        smallest = base <= np.quantile(base, FLOOR_ROWS)
        slowness = max(1.0, float(np.median((seconds[widest] / base)[base >= np.median(base)])))
        return max(0.0, float((seconds[widest] - slowness * base)[smallest].min()))

    def _trend(self, shapes: Shapes, base: Floats, target: Floats) -> tuple[float, Trees | None]:
        if len(target) < (FEW_POINTS if self.keep_points else self.min_rows):
            return float(np.median(target)), None
        settings = self._settings()
        precisions = len(np.unique(shapes.get("dtype_bytes", 2.0)))
        most = settings.iterations * precisions
        model = HistGradientBoostingRegressor(
            max_iter=min(most, max(FEWEST_TREES, 5 * len(target) // settings.leaves)),
            max_leaf_nodes=settings.leaves,
            max_depth=settings.depth,
            learning_rate=settings.learning_rate,
            min_samples_leaf=max(2, min(settings.min_leaf, len(target) // 40)),
            early_stopping=False,
            random_state=self.seed,
        )
        table = features(self.op, shapes, base, self._device())
        # Threads that wait for each other after every leaf cost more than they gain, beside other programs many times.
        with threadpool_limits(1, user_api="openmp"):
            return 0.0, Trees.of(model.fit(table, target), table)

    def _points(
        self,
        shapes: Shapes,
        sms: NDArray[np.int64],
        left: Floats,
        shares: tuple[int, ...],
        share_log: tuple[float, ...],
    ) -> MeasuredPoints:
        """Each measured shape once; of repeated measurements the mean."""
        table = np.column_stack([shapes[name] for name in AXES[self.op]])
        unique, place = np.unique(table, axis=0, return_inverse=True)
        sums, counts = np.zeros((2, len(unique), len(shares)))
        column = np.searchsorted(shares, sms)
        np.add.at(sums, (place, column), left - np.asarray(share_log)[column])
        np.add.at(counts, (place, column), 1)
        residuals = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
        return MeasuredPoints(unique, residuals)


class ShapeForest(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A random forest from the logarithms of a shape to that of its time, with no knowledge of the device (Vidur)."""

    def __init__(self, op: str = "gemm", device: DeviceSpec | None = None, *, trees: int = 100, seed: int = 0) -> None:
        self.op = op
        self.device = device
        self.trees = trees
        self.seed = seed

    def fit(self, X: pd.DataFrame, y: Any) -> Self:
        self.forest_ = RandomForestRegressor(self.trees, random_state=self.seed, n_jobs=-1)
        self.forest_.fit(_logarithms(self.op, X), np.log(np.asarray(y, dtype=np.float64)))
        self.forest_.n_jobs = None  # threads would add the trees up in any order, to sums that differ in the last digit
        return self

    def predict(self, X: pd.DataFrame) -> Floats:
        check_is_fitted(self, "forest_")
        predicted: Floats = np.exp(self.forest_.predict(_logarithms(self.op, X)))
        return predicted


class LogInterpolation(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Interpolation of log time between measured shapes (AIConfigurator), with no knowledge of the device.

    Products: along m among rows of the same (n, k), and between the three nearest (n, k) for a pair that was not
    measured, within one dtype and SM share. Everything else: radial basis functions over the nearest 32 shapes.
    """

    def __init__(self, op: str = "gemm", device: DeviceSpec | None = None) -> None:
        self.op = op
        self.device = device

    def fit(self, X: pd.DataFrame, y: Any) -> Self:
        table, target = _logarithms(self.op, X), np.log(np.asarray(y, dtype=np.float64))
        if self.op == "gemm":
            self.kinds_ = np.unique(table[:, 3:], axis=0)
            self.pairs_ = [_Pairs(table[rows, :3], target[rows]) for rows in self._by_kind(table)]
        else:
            unique, place = np.unique(table, axis=0, return_inverse=True)
            means = np.bincount(place, target) / np.bincount(place)
            self.between_ = RBFInterpolator(unique, means, neighbors=min(32, len(unique)), kernel="linear")
        return self

    def predict(self, X: pd.DataFrame) -> Floats:
        check_is_fitted(self)
        table = _logarithms(self.op, X)
        if self.op != "gemm":
            return np.asarray(np.exp(self.between_(table)))
        answer = np.zeros(len(table))
        for pairs, rows in zip(self.pairs_, self._by_kind(table), strict=True):
            answer[rows] = pairs.predict(table[rows, :3])
        return np.asarray(np.exp(answer))

    def _by_kind(self, table: Floats) -> list[NDArray[np.intp]]:
        """Rows of each dtype and SM share that was measured; others go to the nearest of these."""
        distances = ((table[:, None, 3:] - self.kinds_[None, :, :]) ** 2).sum(axis=2)
        nearest = distances.argmin(axis=1)
        return [np.flatnonzero(nearest == kind) for kind in range(len(self.kinds_))]


class _Pairs:
    """Log times of products of one kind over the logarithms of (m, n, k)."""

    def __init__(self, table: Floats, target: Floats) -> None:
        self.curves: list[tuple[Floats, Floats]] = []
        self.pairs, place = np.unique(table[:, 1:], axis=0, return_inverse=True)
        for pair in range(len(self.pairs)):
            rows = np.flatnonzero(place == pair)
            rows = rows[np.argsort(table[rows, 0], kind="stable")]
            self.curves.append((table[rows, 0], target[rows]))
        try:
            self.mesh = Delaunay(self.pairs) if len(self.pairs) > 3 else None
        except QhullError:  # pairs of one n or one k lie on a line
            self.mesh = None

    def predict(self, table: Floats) -> Floats:
        answer = np.zeros(len(table))
        asked, place = np.unique(table[:, 1:], axis=0, return_inverse=True)
        for index, pair in enumerate(asked):
            rows = np.flatnonzero(place == index)
            for known, weight in self._near(pair):
                answer[rows] += weight * self._along(known, table[rows, 0])
                if weight == 1.0:  # nothing to interpolate between: scaled to the size that is asked for
                    answer[rows] += float((pair - self.pairs[known]).sum())
        return answer

    def _near(self, asked: Floats) -> list[tuple[int, float]]:
        """(pair, weight) of the measured pairs around one."""
        nearest = int(((self.pairs - asked) ** 2).sum(axis=1).argmin())
        simplex = -1 if self.mesh is None else int(self.mesh.find_simplex(asked))
        if self.mesh is None or simplex < 0 or (self.pairs[nearest] == asked).all():
            return [(nearest, 1.0)]
        transform = self.mesh.transform[simplex]
        weights = transform[:2] @ (asked - transform[2])
        corners = self.mesh.simplices[simplex]
        return [(int(pair), float(w)) for pair, w in zip(corners, [*weights, 1 - weights.sum()], strict=True)]

    def _along(self, pair: int, sizes: Floats) -> Floats:
        """Log time along m; beyond the greatest as over the last octave, no more than in proportion to m."""
        known, times = self.curves[pair]
        before = int(np.searchsorted(known, known[-1] - np.log(2), side="right")) - 1
        rise = times[-1] - times[before] if before >= 0 else 0.0
        slope = np.clip(rise / (known[-1] - known[max(0, before)] or 1.0), 0.0, 1.0)
        return np.asarray(np.interp(sizes, known, times) + slope * np.maximum(0.0, sizes - known[-1]))


CANDIDATES: dict[str, type[Any]] = {
    "calibrated roofline": CalibratedRoofline,
    "random forest": ShapeForest,
    "log interpolation": LogInterpolation,
}
"""What hold-out compares; the first is the default."""


def _logarithms(op: str, X: pd.DataFrame) -> Floats:
    """An op's axes, and ``sms`` where X has it."""
    names = [*AXES[op], *(["sms"] if "sms" in X.columns else [])]
    columns = [np.log1p(X[name]) if name == "cached_tokens" else np.log(X[name].astype(float)) for name in names]
    return np.column_stack([np.asarray(column, dtype=np.float64) for column in columns])


def _rows(shapes: Shapes, which: NDArray[np.bool_]) -> Shapes:
    return {name: column[which] for name, column in shapes.items()}
