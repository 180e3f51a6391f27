"""Columns that grow in place: a long run has so many rows that holding them twice would not do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

FIRST_ROWS = 1 << 12


class GrowingColumns:
    """Columns of these types, filled a batch of rows at a time and handed out whole."""

    def __init__(self, columns: Mapping[str, type[np.generic]]) -> None:
        self._columns = {name: np.empty(FIRST_ROWS, dtype=dtype) for name, dtype in columns.items()}
        self._room = FIRST_ROWS
        self._rows = 0

    def extend(self, values: Sequence[Sequence[Any] | np.ndarray]) -> None:
        """Adds rows: of each column its values, in the columns' order."""
        end = self._rows + len(values[0])
        if end > self._room:
            self._resize(end + end // 8)
        for column, added in zip(self._columns.values(), values, strict=True):
            column[self._rows : end] = added
        self._rows = end

    def whole(self) -> dict[str, np.ndarray]:
        """The columns, of shape (n,); nothing is to be added after that."""
        self._resize(self._rows)
        return self._columns

    def _resize(self, rows: int) -> None:
        # Large arrays are remapped, not copied. Nobody else has seen them yet.
        for column in self._columns.values():
            column.resize(rows, refcheck=False)
        self._room = rows
