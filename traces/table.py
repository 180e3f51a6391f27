"""CSV files by column: parsed by pyarrow, found by name, checked as whole columns.

Nothing is looked at row by row until a column fails; only then is the first offending row searched for,
so a good file of millions of rows costs seconds and a bad one still gets its line number. pyarrow is
imported inside functions: `import traces` stays light. (Its ``to_numpy`` would import pandas;
``np.from_dlpack`` does not.)
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from traces.errors import TraceError
from traces.progress import Progress, ToldFile, part, untold
from traces.request import MAX_ARRIVAL_S, FloatColumn, IntColumn

MAX_TOKENS = 2**31 - 1
"""A larger count is a broken file, not a prompt."""
BELOW = "below 2^31"
PARSED = 0.5
"""Share of reading a table that is done when its text has been taken apart; numbers are made of it after that."""


def times_wanted(what: str, unit_s: float) -> str:
    """What a refusal says of a time counted in units of ``unit_s`` seconds."""
    return f"{what} of 0 or more, at most {MAX_ARRIVAL_S / unit_s:g}"


def header_of(path: Path) -> list[str]:
    """The column names of a CSV file, spaces and byte-order mark taken off; TraceError if there is none."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            names = next((row for row in csv.reader(lines) if row), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: not a text file in UTF-8 ({error}); give a CSV or JSONL trace") from None
    names = [name.strip() for name in names]
    if not names:
        raise TraceError(f"{path}: the file is empty; give a trace with a header and rows")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TraceError(f"{path}: line 1: column {twice[0]!r} appears twice; rename or remove one")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The columns of one file as text; each accessor converts one and raises TraceError with its place.

    A row is spoken of by its line in the file, or by its number where the file has no lines.
    """

    path: Path
    rows: int
    columns: dict[str, Any]  # name -> pyarrow string column (rows,)
    in_lines: bool = True

    def has(self, name: str) -> bool:
        return name in self.columns

    def texts(self, name: str) -> list[str]:
        values: list[str] = self.columns[name].to_pylist()
        return values

    def tokens(self, name: str) -> IntColumn:
        """Token counts, shape (rows,): whole numbers in 0..MAX_TOKENS, also written as "7564.0"."""
        counts = _counts(self.columns[name])
        if counts is None:
            raise self._refuse(name, f"whole numbers of 0 or more, {BELOW}", _counts)
        return counts

    def times(self, name: str, unit_s: float = 1.0) -> FloatColumn:
        """Numbers of 0 up to MAX_ARRIVAL_S, shape (rows,), in the column's unit of ``unit_s`` seconds."""
        convert = partial(_numbers_to, MAX_ARRIVAL_S / unit_s)
        times = convert(self.columns[name])
        if times is None:
            raise self._refuse(name, times_wanted("finite numbers", unit_s), convert)
        return times

    def epoch_ns(self, name: str) -> tuple[IntColumn, bool]:
        """ISO 8601 stamps as nanoseconds since 1970, shape (rows,), and whether only some of them had a zone.

        Up to nine decimals, or none; "Z" and offsets are honoured; stamps without a zone are taken as UTC.
        """
        stamps = _stamps(self.columns[name])
        if stamps is None:
            raise self._refuse(name, "a time such as 2023-11-16 18:17:03.97996", _stamps)
        return stamps

    def _refuse(self, name: str, wanted: str, convert: Callable[[Any], Any]) -> TraceError:
        """The error for the first value that ``convert`` gives None for."""
        good, bad = 0, self.rows
        while bad - good > 1:
            middle = (good + bad) // 2
            converted = convert(self.columns[name].slice(0, middle)) is not None
            good, bad = (middle, bad) if converted else (good, middle)
        return self.refusal(name, good, wanted)

    def refusal(self, name: str, row: int, wanted: str) -> TraceError:
        """The error for one value: file, line, column, value, what is wanted and what to do."""
        value = self.columns[name][row].as_py()
        return TraceError(
            f"{self.path}: {self.place(row)}: {name} is {value!r}; wanted: {wanted}; correct or remove the row"
        )

    def place(self, row: int) -> str:
        return f"line {_line_of(self.path, row)}" if self.in_lines else f"row {row}"


def read_table(path: Path, needed: tuple[str, ...], format_name: str, progress: Progress = untold) -> Table:
    """All columns of ``path`` as text; TraceError if one of ``needed`` is missing or there are no rows."""
    names = header_of(path)
    missing = [name for name in needed if name not in names]
    if missing:
        raise TraceError(
            f"{path}: line 1: format {format_name!r} needs column {missing[0]!r}; the file has "
            f"{', '.join(names)[:200]}; name the right format or leave it to be detected"
        )
    table = _parse(path, names, part(progress, 0, PARSED))
    if table.num_rows == 0:
        raise TraceError(f"{path}: a header and no rows; give a trace with at least one request")
    columns = dict(zip(names, table.columns, strict=True))
    return Table(path=path, rows=table.num_rows, columns=columns)


def _parse(path: Path, names: list[str], progress: Progress) -> Any:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.csv as arrow_csv  # type: ignore[import-untyped]

    uneven: list[Any] = []

    def note(row: Any) -> str:
        uneven.append(row)
        return "error"

    try:
        with ToldFile(path, progress) as file:
            return arrow_csv.read_csv(
                file,
                # One thread: the parser then knows the row that it stumbles over.
                read_options=arrow_csv.ReadOptions(use_threads=False, column_names=names, skip_rows_after_names=1),
                parse_options=arrow_csv.ParseOptions(invalid_row_handler=note),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
                ),
            )
    except pa.ArrowInvalid as error:
        if uneven:
            line = _line_of(path, uneven[0].number - 2)
            raise TraceError(
                f"{path}: line {line}: {uneven[0].actual_columns} values for {len(names)} columns; "
                "correct or remove the row"
            ) from None
        raise TraceError(f"{path}: not a CSV table: {str(error).splitlines()[0]}; check the file") from None


def _line_of(path: Path, row: int) -> int:
    """The 1-based line of data row ``row`` (0-based); blank lines are no rows. Read only on failure."""
    with path.open("rb") as lines:
        filled = (number for number, line in enumerate(lines, start=1) if line.strip())
        return next((number for index, number in enumerate(filled) if index == row + 1), row + 2)


def _numbers(column: Any, kind: Any) -> Any:
    chunks = [np.from_dlpack(chunk) for chunk in column.chunks if len(chunk)]
    return np.concatenate(chunks).astype(kind, copy=False) if chunks else np.empty(0, kind)


def _counts(column: Any) -> IntColumn | None:
    """Whole numbers in 0..MAX_TOKENS, or None if one is not."""
    import pyarrow as pa

    try:
        counts: IntColumn = _numbers(column.cast(pa.int64()), np.int64)
    except pa.ArrowInvalid:
        numbers = _numbers_to(MAX_TOKENS, column)
        if numbers is None or not bool(np.all(numbers == np.floor(numbers))):
            return None
        return numbers.astype(np.int64)
    return counts if bool(np.all((counts >= 0) & (counts <= MAX_TOKENS))) else None


def _numbers_to(most: float, column: Any) -> FloatColumn | None:
    """Numbers of 0 up to ``most``, or None if one is not."""
    import pyarrow as pa
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    try:
        numbers: FloatColumn = _numbers(pc.utf8_trim_whitespace(column).cast(pa.float64()), np.float64)
    except pa.ArrowInvalid:
        return None
    return numbers if bool(np.all((numbers >= 0) & (numbers <= most))) else None


def _stamps(column: Any) -> tuple[IntColumn, bool] | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    for zone in (None, "UTC"):
        try:
            return _numbers(column.cast(pa.timestamp("ns", zone)).cast(pa.int64()), np.int64), False
        except pa.ArrowInvalid:
            continue
    has_zone = pc.match_substring_regex(column, r"(Z|[+-]\d\d(:?\d\d)?)\s*$")
    completed = pc.if_else(has_zone, column, pc.binary_join_element_wise(column, "Z", ""))
    try:
        return _numbers(completed.cast(pa.timestamp("ns", "UTC")).cast(pa.int64()), np.int64), True
    except pa.ArrowInvalid:
        return None
