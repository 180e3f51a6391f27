"""What measurements say of one op on one device: fitted parameters, and the measured points where they are kept.

    log alpha(shape, N_p) = trend(shape) + share(N_p) + what measured neighbours have beyond that

alpha is measured time over that of ``KernelClock``'s formula. The trend is a sum of trees over ``structure.features``,
or a constant where there are few measurements; outside the measured range it stays what it is at the border. A kept
table gives its own points back exactly. Needs numpy alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from profiler.kerneltime import KernelClock
from profiler.structure import AXES, Floats, Shapes, base_seconds, features
from profiler.trees import Trees

NEIGHBOURS = 16
"""Measured points that a shape between them looks at."""

EXACT = 1e-9
"""Distance below which a shape is a measured point itself."""

REACH = math.log(2)
"""Distance (of logarithms of sizes) at which a measured point's deviation from the trees counts half."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredPoints:
    """Measured shapes (points x axes) and, for each share, what is left of log alpha there (points x shares, NaN where
    that share was not measured)."""

    shapes: Floats
    residuals: Floats

    def correction(self, op: str, shapes: Shapes, reach: float) -> Floats:
        """What neighbours among the points add to log alpha, rows x shares: exact at a point, half at ``reach``."""
        asked = coordinates(op, shapes)
        known = coordinates(op, dict(zip(AXES[op], self.shapes.T, strict=True)))
        answer = np.zeros((len(asked), self.residuals.shape[1]))
        for share, residuals in enumerate(self.residuals.T):
            there = np.isfinite(residuals)
            if there.any():
                answer[:, share] = _between(asked, known[there], residuals[there], reach)
        return answer


def coordinates(op: str, shapes: Shapes) -> Floats:
    """Where shapes lie to each other: logarithms of their axes; of a cached prefix, relative to the new tokens."""
    columns = []
    for name in AXES[op]:
        values = shapes[name]
        columns.append(np.log1p(values / shapes["new_tokens"]) if name == "cached_tokens" else np.log(values))
    return np.column_stack(columns)


def _between(asked: Floats, known: Floats, residuals: Floats, reach: float) -> Floats:
    """Interpolation among the nearest known points, linear along a line of them; it fades with distance from all.

    Radial basis functions |distance| with a constant, which neither overshoot nor need a scale.
    """
    answer = np.empty(len(asked))
    count = min(NEIGHBOURS, len(known))
    for row, point in enumerate(asked):
        squares = ((known - point) ** 2).sum(axis=1)
        near = np.argpartition(squares, count - 1)[:count]
        least = squares[near].min()
        if least < EXACT**2:
            answer[row] = residuals[near[squares[near].argmin()]]
            continue
        places = known[near]
        system = np.ones((count + 1, count + 1))
        system[:count, :count] = np.sqrt(((places[:, None] - places[None]) ** 2).sum(axis=2))
        system[count, count] = 0.0
        weights = np.linalg.solve(system, np.append(np.sqrt(squares[near]), 1.0))[:count]
        answer[row] = (weights @ residuals[near]) / (1 + least / reach**2)
    return answer


@dataclass(frozen=True, slots=True, eq=False)
class OpCalibration:
    """One op on one device.

    floor_s: seconds that the smallest launch takes. constant: the trend without trees, else 0.
    ranges: least and greatest measured value of each axis. prefixed: whether prefill attention over a cached prefix
        was measured; where it was not, the unprefixed shape of equal FLOPs stands in.
    share_sms, share_log: SM shares that were measured, ascending, and what each adds to log alpha.
    rows: measurements that this rests on.
    """

    op: str
    floor_s: float
    constant: float
    trees: Trees | None
    ranges: Mapping[str, tuple[float, float]]
    share_sms: tuple[int, ...]
    share_log: tuple[float, ...]
    rows: int
    prefixed: bool = False
    points: MeasuredPoints | None = None

    def log_alpha(self, shapes: Shapes, clock: KernelClock) -> Floats:
        """Rows x shares. ``clock`` is that of the whole device, with this op's floor."""
        shapes = self._stand_in(shapes)
        trend = np.full(len(shapes[AXES[self.op][0]]), self.constant)
        if self.trees is not None:
            # On the share that the trees were fitted on.
            base = base_seconds(self.op, shapes, clock, self.share_sms[-1])
            trend = trend + self.trees.predict(features(self.op, shapes, base, clock.device))
        answer: Floats = trend[:, None] + np.asarray(self.share_log)[None, :]
        if self.points is not None:
            # A constant trend knows nothing of shapes, so what the nearest points have holds everywhere.
            reach = math.inf if self.trees is None else REACH
            answer = answer + self.points.correction(self.op, shapes, reach)
        return answer

    def inside(self, shapes: Shapes) -> NDArray[np.bool_]:
        """Whether each row lies within the measured range of every axis."""
        rows = np.ones(len(shapes[AXES[self.op][0]]), dtype=bool)
        for name, (least, greatest) in self.ranges.items():
            rows &= (shapes[name] >= least) & (shapes[name] <= greatest)
        return rows

    def known(self, shapes: Shapes) -> NDArray[np.bool_]:
        """Whether each row is a measured point that was kept, on every share that was measured at all."""
        rows = np.zeros(len(shapes[AXES[self.op][0]]), dtype=bool)
        if self.points is None:
            return rows
        everywhere = np.isfinite(self.points.residuals).all(axis=1)
        measured = {tuple(point) for point in self.points.shapes[everywhere].tolist()}
        asked = np.column_stack([shapes[name] for name in AXES[self.op]])
        return np.array([tuple(row) in measured for row in asked.tolist()], dtype=bool)

    def _stand_in(self, shapes: Shapes) -> Shapes:
        if self.op != "attention_prefill" or self.prefixed:
            return shapes
        new, cached = shapes["new_tokens"], shapes["cached_tokens"]
        equal = np.sqrt(new**2 + 2 * new * cached)
        return {**shapes, "new_tokens": equal, "cached_tokens": np.zeros_like(cached)}

    def document(self) -> dict[str, Any]:
        """JSON types; :meth:`read` makes it again."""
        points = None
        if self.points is not None:
            residuals = [
                [None if math.isnan(value) else value for value in row] for row in self.points.residuals.tolist()
            ]
            points = {"shapes": self.points.shapes.tolist(), "residuals": residuals}
        return {
            "floor_s": self.floor_s,
            "constant": self.constant,
            "trees": None if self.trees is None else self.trees.document(),
            "ranges": {name: list(ends) for name, ends in self.ranges.items()},
            "share_sms": list(self.share_sms),
            "share_log": list(self.share_log),
            "rows": self.rows,
            "prefixed": self.prefixed,
            "points": points,
        }

    @classmethod
    def read(cls, op: str, document: Mapping[str, Any]) -> Self:
        points = document["points"]
        if points is not None:
            residuals = np.array(points["residuals"], dtype=np.float64)
            points = MeasuredPoints(np.array(points["shapes"], dtype=np.float64), residuals)
        return cls(
            op=op,
            floor_s=float(document["floor_s"]),
            constant=float(document["constant"]),
            trees=None if document["trees"] is None else Trees.read(document["trees"]),
            ranges={name: (float(ends[0]), float(ends[1])) for name, ends in document["ranges"].items()},
            share_sms=tuple(map(int, document["share_sms"])),
            share_log=tuple(map(float, document["share_log"])),
            rows=int(document["rows"]),
            prefixed=bool(document["prefixed"]),
            points=points,
        )
