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
            self._grow(2 * end)
        for column, added in zip(self._columns.values(), values, strict=True):
            column[self._rows : end] = added
        self._rows = end

    def whole(self) -> dict[str, np.ndarray]:
        """The columns, of shape (n,), which are then the caller's: nothing is left here."""
        columns, self._columns = self._columns, {}
        for column in columns.values():
            # Nobody else has seen them yet.
            column.resize(self._rows, refcheck=False)
        return columns

    def _grow(self, rows: int) -> None:
        # Room that nothing has been written to takes no memory. An array that is resized is filled with zeros.
        for name, column in self._columns.items():
            larger = np.empty(rows, dtype=column.dtype)
            larger[: self._rows] = column[: self._rows]
            self._columns[name] = larger
        self._room = rows
