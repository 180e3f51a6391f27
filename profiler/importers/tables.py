"""Tables of other people's measurements: CSV or Parquet files read whole, their rows checked and gathered.

A row that cannot be a measurement is refused with the file's name and the row's number, counted from 1 after the
header, or left out and counted where the user asked for that.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]

from profiler.profile import SHAPES, Profile, Provenance
from profiler.specs import DeviceSpec

MOST = float(2**53)
"""Counts above it are no counts, and a float would not hold them exactly."""
_POINTER = b"version https://git-lfs"
Progress = Callable[[float], None]
"""Hears the share of the tables that has been read."""

SUFFIXES = (".csv", ".csv.gz", ".txt", ".parquet")


def untold(share: float) -> None:
    """Tells nobody."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of one file; the index of ``frame`` holds the rows' numbers in it."""

    path: Path
    frame: pd.DataFrame

    def where(self, wanted: pd.Series[bool]) -> Self:
        return type(self)(self.path, self.frame[wanted])

    def texts(self, name: str) -> pd.Series[str]:
        return self.frame[name].fillna("").astype("str").str.strip()

    def numbers(self, name: str) -> pd.Series[float]:
        """The column as numbers, NaN where a value is none."""
        return pd.to_numeric(self.frame[name], errors="coerce").astype("float64")

    def refusal(self, name: str, row: int, wanted: str) -> ValueError:
        value: Any = self.frame.loc[row, name]
        shown = "empty" if pd.isna(value) or value == "" else value
        return ValueError(
            f"{self.path}: row {row}: {name} is {shown}; wanted: {wanted}; correct the file, "
            "or leave such rows out with --skip-bad"
        )


def must_exist(path: Path) -> None:
    """Raises ValueError unless ``path`` is a file."""
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no such file"
        raise ValueError(f"{path}: {what}; give a table as .csv, .csv.gz or .parquet")


def read_table(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> Table:
    """The columns ``needed`` and those of ``optional`` that are there. ValueError where the file has them not."""
    must_exist(path)
    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    except (EOFError, zlib.error, UnicodeDecodeError, pd.errors.ParserError, pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path}: cut off, or no table ({reason}); fetch it again") from None
    except pd.errors.EmptyDataError:
        raise ValueError(f"{path}: the file is empty; fetch it again") from None
    for name in needed:
        if name not in frame.columns:
            known = ", ".join(map(str, frame.columns))[:200]
            raise ValueError(f"{path}: column {name!r} is missing; the file has {known}: is it of this format?")
    if frame.empty:
        raise ValueError(f"{path}: a header and no rows; fetch it again")
    frame.index = pd.RangeIndex(1, len(frame) + 1)
    return Table(path, frame[[*needed, *(name for name in optional if name in frame.columns)]])


def _read_csv(path: Path) -> pd.DataFrame:
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise ValueError(f"{path}: Git LFS's pointer to the table, not the table; run git lfs pull there")
    # As text, so that a refusal can show what the file holds.
    frame = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False, encoding="utf-8-sig")
    return frame.rename(columns=str.strip)


def sha256(path: Path) -> str:
    """The hash of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_device(path: Path, found: str, device: DeviceSpec) -> None:
    """ValueError where a file says that it was measured on another device than ``device``.

    Vendors' names are longer than ours: every word of ours must begin one of theirs. "NVIDIA A100-SXM4-80GB" is
    A100-80G and no A100-SXM4-40GB is. Presets of cards that come in both forms are the SXM ones.
    """
    theirs = found.casefold().replace("-", " ").replace("_", " ").split()
    ours = device.name.casefold().split("-")
    known = all(any(word == part or word == f"{part}b" for word in theirs) for part in ours)
    if not known or "pcie" in theirs:
        raise ValueError(
            f"{path}: measured on {found!r}, which is not the device {device.name}; name that device, or other files"
        )


@dataclass(slots=True)
class Gathered:
    """Rows of a profile in the making, with what was left out of them and why; files are named from ``root`` on.

    ``sources``: what a kernel is called where it comes from, for tables that say so in ``kernel_source``. ``expected``:
    the tables that there will be, of which ``progress`` hears.
    """

    device: DeviceSpec
    skip_bad: bool = False
    root: Path | None = None
    expected: int = 1
    progress: Progress = untold
    parts: dict[str, list[pd.DataFrame]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    sources: dict[str, set[str]] = field(default_factory=dict)

    def open(self, path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> Table:
        table = read_table(path, needed, optional)
        name = path.name if self.root is None else path.relative_to(self.root).as_posix()
        self.files[name if name not in self.files else path.as_posix()] = sha256(path)
        self.progress(len(self.files) / self.expected)
        return table

    def keep(self, table: Table, wanted: pd.Series[bool], others: str) -> Table:
        """The wanted rows; the others are counted under that name."""
        self.skip(others, int((~wanted).sum()))
        return table.where(wanted)

    def skip(self, what: str, rows: int) -> None:
        if rows:
            self.skipped[what] = self.skipped.get(what, 0) + rows

    def add(
        self,
        table: Table,
        kernel: str,
        shape: Mapping[str, str | int | pd.Series[Any]],
        latency: str,
        unit_s: float,
        **values: Any,
    ) -> None:
        """Rows of ``kernel``: ``shape`` gives each of its columns as a column's name, one number, or a series.

        ``latency`` is a column in units of ``unit_s`` seconds. ``values``: other columns of a profile (dtype, ...).
        """
        if table.frame.empty:
            return
        columns: dict[str, Any] = {name: values[name] for name in ("dtype", "repeats", "spread") if name in values}
        good = pd.Series(True, index=table.frame.index)
        for name in SHAPES[kernel]:
            source = shape[name]
            if isinstance(source, str):
                least = 0 if name == "cached_tokens" else 1
                numbers = table.numbers(source)
                whole = numbers.between(least, MOST) & (numbers == np.floor(numbers))
                good &= self._judged(table, source, whole, f"a whole number of {least} or more")
                source = numbers
            columns[name] = source
        numbers = table.numbers(latency)
        good &= self._judged(table, latency, (numbers > 0) & (numbers < np.inf), "a time above 0")
        columns["latency_s"] = numbers * unit_s
        self.parts.setdefault(kernel, []).append(pd.DataFrame(columns, index=table.frame.index)[good])
        self.skip(f"rows of {table.path.name} that cannot be", int((~good).sum()))
        if "kernel_source" in table.frame:
            self.sources.setdefault(kernel, set()).update(table.texts("kernel_source").unique())

    def _judged(self, table: Table, name: str, good: pd.Series[bool], wanted: str) -> pd.Series[bool]:
        if not self.skip_bad and not good.all():
            raise table.refusal(name, int(good.index[~good][0]), wanted)
        return good

    def profile(self, origin: str, model: str | None = None, tensor_parallel: int = 1, **settings: Any) -> Profile:
        """The profile of all rows, each shape once. ValueError where there are none."""
        rows = [_once(kernel, pd.concat(self.parts[kernel])) for kernel in SHAPES if kernel in self.parts]
        frame = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()
        if frame.empty:
            left_out = ", ".join(f"{count:,} {what}" for what, count in self.skipped.items())
            raise ValueError(f"{', '.join(self.files)}: nothing to import; left out: {left_out}")
        gathered = sum(len(part) for parts in self.parts.values() for part in parts)
        self.skip("repeats of a shape, folded into its median", gathered - len(frame))
        frame["sms"] = self.device.sms
        provenance = Provenance(
            device=self.device.name,
            sms=self.device.sms,
            source="imported",
            origin=origin,
            date="",
            model=model,
            tensor_parallel=tensor_parallel,
            settings={
                **settings,
                "kernels": {kernel: sorted(names) for kernel, names in sorted(self.sources.items())},
                "files_sha256": self.files,
                "left_out": self.skipped,
            },
        )
        return Profile.of(frame, provenance)


def _once(kernel: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of equal dtype and shape as one, at their median: a model that returns measured points needs one each."""
    key = ["dtype", *SHAPES[kernel]]
    rows = rows.astype(dict.fromkeys(SHAPES[kernel], np.int64))
    if rows.duplicated(key).any():
        rest = {name: "median" for name in ("latency_s", "spread") if name in rows}
        if "repeats" in rows:
            rest["repeats"] = "sum"
        rows = rows.groupby(key, sort=False, as_index=False).agg(rest)
    return rows.assign(kernel=kernel)
