"""Columns to Parquet and back, the same bytes for the same values.

Arrow arrays are built from their buffers: Arrow's own converters import pandas, which costs a command half a
second and which nothing here needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

GROUP_ROWS = 1 << 18
"""Rows of a row group: few enough for a long run to be written in little more memory than it takes."""

Column = Any
"""An Arrow array; Arrow ships no types."""


def float_column(values: NDArray[np.float64]) -> Column:
    """float64 of shape (n,); NaN becomes null."""
    values = np.ascontiguousarray(values, np.float64)
    absent = np.isnan(values)
    valid = pa.py_buffer(np.packbits(~absent, bitorder="little")) if absent.any() else None
    return pa.Array.from_buffers(pa.float64(), len(values), [valid, pa.py_buffer(np.nan_to_num(values))])


def int_column(values: NDArray[np.integer[Any]]) -> Column:
    """int64 of shape (n,)."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values, np.int64))])


def text_column(values: Sequence[str | None]) -> Column:
    """UTF-8 strings, n of them; None becomes null."""
    encoded = [(value or "").encode() for value in values]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(value) for value in encoded], out=offsets[1:])
    valid = None
    if None in values:
        valid = pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(encoded), buffers)


def category_column(codes: NDArray[np.integer[Any]], names: Sequence[str]) -> Column:
    """``names[codes]`` as a dictionary, shape (n,)."""
    index = pa.Array.from_buffers(pa.int8(), len(codes), [None, pa.py_buffer(np.ascontiguousarray(codes, np.int8))])
    return pa.DictionaryArray.from_arrays(index, text_column(names))


def plain_column(values: Sequence[float | str | None]) -> Column:
    """Python values as text if any is text, as integers if all are, else as floats; None becomes null."""
    if any(isinstance(value, str) for value in values):
        return text_column([None if value is None else str(value) for value in values])
    if all(isinstance(value, int) for value in values):
        return int_column(np.array(values, np.int64))
    return float_column(np.array([np.nan if value is None else value for value in values], np.float64))


def write_columns(path: Path, columns: Mapping[str, Column]) -> None:
    """One Parquet file at ``path``."""
    write_groups(path, [columns])


def write_groups(path: Path, groups: Iterable[Mapping[str, Column]]) -> None:
    """One Parquet file at ``path`` of one row group after another, none of which need be there before its turn."""
    writer = None
    try:
        for columns in groups:
            table = pa.Table.from_arrays(list(columns.values()), names=list(columns))
            writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd", compression_level=3)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def row_groups(rows: int) -> Iterator[slice]:
    """The rows of each group of a file of so many; one group where there is none."""
    return (slice(begin, begin + GROUP_ROWS) for begin in range(0, max(1, rows), GROUP_ROWS))


def _unpacked(chunk: Column, kind: Any) -> NDArray[Any]:
    """An Arrow array of numbers as an array of ``kind``, shape (n,); null is NaN."""
    here = slice(chunk.offset, chunk.offset + len(chunk))
    valid, values = chunk.buffers()
    found: NDArray[Any] = np.frombuffer(values, chunk.type.to_pandas_dtype())[here].astype(kind)
    if chunk.null_count:
        bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")
        found[bits[here] == 0] = np.nan
    return found


class Columns:
    """The columns of a Parquet file.

    Raises ValueError, naming the file, where it is missing or no Parquet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.is_file():
            raise ValueError(f"{path} does not exist")
        try:
            self._table = pq.ParquetFile(path).read()
        except pa.ArrowException as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"{path} is not a readable Parquet file: {reason}") from None

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._table.column_names)

    def floats(self, name: str) -> NDArray[np.float64]:
        """Shape (n,); null is NaN."""
        return self._numbers(name, np.float64)

    def ints(self, name: str) -> NDArray[np.int64]:
        """Shape (n,). Raises ValueError for a null."""
        column = self._column(name)
        if column.null_count:
            raise ValueError(f"{self._path}, column {name}: {column.null_count} values are missing")
        return self._numbers(name, np.int64)

    def _numbers(self, name: str, kind: Any) -> NDArray[Any]:
        column = self._column(name)
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            raise ValueError(f"{self._path}, column {name}: of type {column.type}; wanted: numbers")
        return np.concatenate([np.empty(0, kind), *(_unpacked(chunk, kind) for chunk in column.chunks)])

    def texts(self, name: str) -> tuple[str, ...]:
        """Shape (n,)."""
        return tuple(self._column(name).to_pylist())

    def categories(self, name: str) -> tuple[NDArray[np.int8], tuple[str, ...]]:
        """What :func:`category_column` is made of: codes, shape (n,), and names in the order of their first rows."""
        column = self._column(name)
        if not pa.types.is_dictionary(column.type) or column.null_count:
            texts = self.texts(name)
            codes = {word: code for code, word in enumerate(dict.fromkeys(texts))}
            return np.array([codes[word] for word in texts], np.int8), tuple(codes)
        known: dict[str, int] = {}
        parts = [np.empty(0, np.int8)]
        for chunk in column.chunks:
            own = [known.setdefault(word, len(known)) for word in chunk.dictionary.to_pylist()]
            parts.append(np.array(own, np.int8)[np.from_dlpack(chunk.indices)])
        rows = np.concatenate(parts)
        firsts = {code: int(np.argmax(rows == code)) for code in np.flatnonzero(np.bincount(rows)).tolist()}
        order = sorted(firsts, key=firsts.__getitem__)
        ranks = np.zeros(len(known), np.int8)
        ranks[order] = np.arange(len(order))
        return ranks[rows], tuple(list(known)[code] for code in order)

    def values(self, name: str) -> list[Any]:
        """Plain Python values, null as None."""
        found: list[Any] = self._column(name).to_pylist()
        return found

    def _column(self, name: str) -> Any:
        if name not in self._table.column_names:
            raise ValueError(f"{self._path} has no column {name}; it has {', '.join(self.names)}")
        return self._table.column(name)
