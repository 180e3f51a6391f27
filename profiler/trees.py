"""Boosted regression trees as plain integers: what scikit-learn grew, kept as data and evaluated with numpy alone.

A tree is stored node by node, parents before children. Thresholds are numbers in a table a feature, leaves are in
units of :data:`LEAF_UNIT`, so that a file holds short integers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingRegressor  # type: ignore[import-untyped]

LEAF_UNIT = 1e-4
"""Leaves are rounded to this; sums of some hundred of them then err by about 0.0005 in the logarithm of a time."""

LARGEST_LEAF = 500_000
"""Of a leaf, and of what all trees together can add: 50 in the logarithm of a time, beyond any measurement."""

ROWS_AT_ONCE = 128
"""That pass through all trees together."""

MOST_LEVELS = 1000
"""Of one tree; each is a step for every row that is asked."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """A sum of regression trees.

    thresholds: a sorted table for each feature. roots: index of each tree's first node.
    feature, threshold: of each node: go left where x[feature] <= thresholds[feature][threshold]; a leaf has feature -1.
    right: index of the right child, of a leaf itself; the left one is the next. value: of a leaf, in LEAF_UNIT.
    levels: of each tree, from its root to its deepest leaf.
    """

    baseline: float
    thresholds: tuple[tuple[float, ...], ...]
    roots: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: NDArray[np.int32]
    right: NDArray[np.int32]
    value: NDArray[np.int32]
    levels: NDArray[np.int32]

    def predict(self, features: Floats) -> Floats:
        """The sum for each row of ``features`` (n x f)."""
        cuts, columns = self._cuts(), features.T
        # What is looked up by so many indices at once is flat, and indices are of the machine's own kind.
        split_on, right = np.maximum(self.feature, 0).astype(np.intp), self.right.astype(np.intp)
        roots, levels = self.roots.astype(np.intp)[:, None], int(self.levels.max(initial=0))
        total = np.zeros(len(features), dtype=np.int64)
        # All trees at once, for so many rows that what they need stays in the cache.
        for first in range(0, len(features), ROWS_AT_ONCE):
            asked = columns[:, first : first + ROWS_AT_ONCE]
            flat, count = asked.ravel(), asked.shape[1]
            starts, rows = split_on * count, np.arange(count)
            node = np.repeat(roots, count, axis=1)
            for _ in range(levels):
                goes_left = flat.take(starts.take(node) + rows) <= cuts.take(node)
                node = np.where(goes_left, node + 1, right.take(node))
            total[first : first + count] = self.value.take(node).sum(axis=0, dtype=np.int64)
        return np.asarray(self.baseline + LEAF_UNIT * total, dtype=np.float64)

    def _cuts(self) -> Floats:
        """Of each node; nothing is at most what a leaf has, so that all goes on to its right, which is itself."""
        cuts = np.full(len(self.feature), np.nan)
        for index, table in enumerate(self.thresholds):
            here = self.feature == index
            cuts[here] = np.asarray(table)[self.threshold[here]]
        return cuts

    def document(self) -> dict[str, Any]:
        """JSON types; :meth:`read` makes the trees again. A node is (feature, threshold) or (-1, value)."""
        second = np.where(self.feature < 0, self.value, self.threshold)
        nodes = np.column_stack([self.feature, second]).ravel().tolist()
        return {
            "baseline": self.baseline,
            "thresholds": [list(table) for table in self.thresholds],
            "trees": len(self.roots),
            "nodes": nodes,
        }

    @classmethod
    def read(cls, document: dict[str, Any]) -> Self:
        """Raises ValueError where the nodes are not whole trees over the thresholds' features."""
        thresholds = tuple(tuple(map(float, table)) for table in document["thresholds"])
        nodes = np.asarray(document["nodes"], dtype=np.int32)
        if nodes.ndim != 1 or nodes.size % 2:
            raise ValueError("nodes are no pairs of whole numbers")
        feature, second = nodes.reshape(-1, 2).T
        sizes = np.array([len(table) for table in thresholds] or [0])
        inner = feature >= 0
        if (
            feature.min(initial=-1) < -1
            or feature.max(initial=-1) >= len(thresholds)
            or second[inner].min(initial=0) < 0
            or (second[inner] >= sizes[feature[inner]]).any()
        ):
            raise ValueError("a node splits on a feature or threshold that is not there")
        right, roots, levels = _linked(feature, int(document["trees"]))
        value = np.where(inner, 0, second)
        _check_reach(value, roots)
        return cls(
            baseline=float(document["baseline"]),
            thresholds=thresholds,
            roots=roots,
            feature=feature,
            threshold=np.where(inner, second, 0),
            right=right,
            value=value,
            levels=levels,
        )

    @classmethod
    def of(cls, model: HistGradientBoostingRegressor, features: Floats) -> Self:
        """The trees of a fitted model. Raises ValueError where they do not predict on ``features`` as it does.

        scikit-learn has no public view of these trees; that they are read rightly is therefore checked each time.
        """
        grown = [predictor.nodes for (predictor,) in model._predictors]
        cuts: list[set[float]] = [set() for _ in range(features.shape[1])]
        for nodes in grown:
            for node in nodes[nodes["is_leaf"] == 0]:
                cuts[node["feature_idx"]].add(float(node["num_threshold"]))
        exact = [sorted(found) for found in cuts]
        thresholds = [_short(table, column) for table, column in zip(exact, features.T, strict=True)]
        places = [{cut: place for place, cut in enumerate(table)} for table in exact]
        pairs: list[int] = []
        for nodes in grown:
            _write(nodes, places, pairs)
        document = {
            "baseline": float(np.ravel(model._baseline_prediction)[0]),
            "thresholds": thresholds,
            "trees": len(grown),
            "nodes": pairs,
        }
        trees = cls.read(document)
        if np.abs(trees.predict(features) - model.predict(features)).max(initial=0.0) > LEAF_UNIT * len(grown):
            raise ValueError("this version of scikit-learn keeps its boosted trees in another form; use 1.5 to 1.9")
        return trees


def _check_reach(value: NDArray[np.int32], roots: NDArray[np.int32]) -> None:
    """Raises ValueError where trees add up to what no logarithm of a time is."""
    if len(roots) and np.maximum.reduceat(np.abs(value.astype(np.int64)), roots).sum() > LARGEST_LEAF:
        raise ValueError(f"the leaves add up to more than {LARGEST_LEAF * LEAF_UNIT:g}")


def _short(thresholds: list[float], column: Floats) -> list[float]:
    """For each threshold the number of fewest digits that parts the values of its feature in the same way."""
    values = np.unique(column)
    short = []
    for threshold in thresholds:
        place = int(np.searchsorted(values, threshold, side="right"))
        least = values[place - 1] if place else -np.inf
        beyond = values[place] if place < len(values) else np.inf
        middle = (least + beyond) / 2 if np.isfinite(least) and np.isfinite(beyond) else threshold
        candidates = (float(f"{middle:.{digits}g}") for digits in range(1, 17))
        short.append(next((cut for cut in candidates if least <= cut < beyond), threshold))
    return short


def _write(nodes: Any, places: list[dict[float, int]], pairs: list[int]) -> None:
    """One tree's nodes, parents first and left before right."""
    waiting = [0]
    while waiting:
        node = nodes[waiting.pop()]
        if node["is_leaf"]:
            pairs += [-1, round(float(node["value"]) / LEAF_UNIT)]
            continue
        feature = int(node["feature_idx"])
        pairs += [feature, places[feature][float(node["num_threshold"])]]
        waiting += [int(node["right"]), int(node["left"])]


def _linked(feature: NDArray[np.int32], trees: int) -> tuple[NDArray[np.int32], ...]:
    """(right, roots, levels) of nodes written parents first and left before right."""
    inner = feature >= 0
    # Before each node and after the last: right children that wait for their turn, one less a tree that is whole.
    waiting = np.concatenate(([0], np.cumsum(np.where(inner, 1, -1))))
    least = np.minimum.accumulate(waiting)
    whole = np.flatnonzero(np.diff(least)) + 1
    if (whole[-1] if len(whole) else 0) != len(feature):
        raise ValueError("the last tree breaks off")
    if len(whole) != trees:
        raise ValueError(f"{trees} trees are announced and {len(whole)} are there")
    roots = np.concatenate(([0], whole[:-1])) if trees else np.zeros(0, dtype=np.int64)
    right = np.arange(len(feature))
    # A right child is the first node after its parent with as many waiting as there were before the parent.
    alike = np.argsort(waiting[:-1], kind="stable")
    right[alike[:-1]] = np.where(inner[alike[:-1]], alike[1:], alike[:-1])
    return right.astype(np.int32), roots.astype(np.int32), _levels(inner, right, roots)


def _levels(inner: NDArray[np.bool_], right: NDArray[np.int64], roots: NDArray[np.int64]) -> NDArray[np.int32]:
    """Of each tree, from its root to its deepest leaf. Raises ValueError where one is too deep to ask."""
    levels = np.zeros(len(roots), dtype=np.int32)
    tree, node, depth = np.arange(len(roots)), roots, 0
    while True:
        splits = inner[node]
        if not splits.any():
            return levels
        depth += 1
        if depth > MOST_LEVELS:
            raise ValueError(f"a tree has over {MOST_LEVELS} levels")
        tree, node = np.tile(tree[splits], 2), node[splits]
        node = np.concatenate((node + 1, right[node]))
        levels[tree] = depth
