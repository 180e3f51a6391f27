"""Measured kernel times of one device: a table with one row a measurement, and where it comes from.

Two files: ``NAME.parquet`` holds the rows, ``NAME.json`` beside it the provenance and the hash of the rows. Units are
seconds, tokens, bytes and SMs. A row names a kernel, its shape, the SMs it ran on, what ran beside it, and how long
it took. Only the columns of :data:`SHAPES` that belong to its kernel are filled; the others are empty.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field, ValidationError

SHAPES: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention_prefill": ("sequences", "new_tokens", "cached_tokens", "heads", "kv_heads", "head_dim"),
    "attention_decode": ("decode_requests", "decode_context_tokens", "heads", "kv_heads", "head_dim"),
    "attention_mixed": (
        "new_tokens",
        "cached_tokens",
        "decode_requests",
        "decode_context_tokens",
        "heads",
        "kv_heads",
        "head_dim",
    ),
    "norm": ("tokens", "width"),
    "rotary": ("tokens", "heads", "kv_heads", "head_dim"),
    "activation": ("tokens", "width"),
    "embedding": ("tokens", "width"),
    "sampling": ("tokens", "width"),
    "all_reduce": ("bytes", "devices"),
    "copy": ("bytes",),
    "prefill_layers": ("sequences", "new_tokens", "cached_tokens", "layers"),
    "decode_layers": ("decode_requests", "decode_context_tokens", "layers"),
    "host_pass": ("tokens",),
    "host_launch": ("tokens",),
}
"""The shape columns of each kernel, all for one device.

gemm: (m x k) times (k x n). attention_prefill: ``sequences`` times ``new_tokens`` causal queries, each over
    ``cached_tokens`` and its own. attention_decode: one new token in each of ``decode_requests`` sequences that hold
    ``decode_context_tokens`` each (a sequence, not of all, here and in every kernel with this column), the new one
    included. attention_mixed: one prefill sequence and the decoding ones in one launch.
norm: residual sum and RMSNorm over ``width`` = hidden. rotary: positions in place, and K and V written to the cache.
activation: SiLU times up, ``width`` columns out. embedding: ``width`` = hidden. sampling: ``tokens`` rows over
    ``width`` = vocabulary.
all_reduce: ``bytes`` of the reduced array over ``devices``. copy: ``bytes`` read, and as many written.
prefill_layers, decode_layers: that many whole transformer layers of the model that the provenance names.
host_pass: time that the host adds to one pass over the model, the pass's launch included. host_launch: to one launch.
"""

SHAPE_COLUMNS = tuple(dict.fromkeys(name for names in SHAPES.values() for name in names))
COLUMNS = (
    "kernel",
    "dtype",
    *SHAPE_COLUMNS,
    "sms",
    "beside",
    *(f"beside_{name}" for name in ("sms", *SHAPE_COLUMNS)),
    "latency_s",
    "repeats",
    "spread",
)
"""dtype: of the operands, ``bf16``, ``fp8`` or ``fp32``. sms: SMs of the device (cores of a CPU) the kernel had.
beside: the kernel that kept the other ``beside_sms`` busy, empty for none, with its shape in ``beside_*``.
latency_s: median. repeats: how many times it was timed, 0 where the source does not say. spread: median absolute
deviation over median, empty where unknown."""

DTYPES = ("bf16", "fp8", "fp32")
LAYERS = ("prefill_layers", "decode_layers")
"""Kernels whose times hold for one model only."""

LARGEST = 1 << 53
"""Of a count: a float still tells it from its neighbours, and no product of sizes that exist comes near."""

NESTED = 50
"""Levels of a JSON document, far above what is written here and far below what overflows Python's stack."""

_TEXT = ("kernel", "dtype", "beside")
_REAL = ("latency_s", "spread")
FORMAT_VERSION = 1
"""Of the provenance file; a newer one is refused."""


class Provenance(BaseModel):
    """Where a profile's numbers come from.

    device: a name of ``bulletsim devices``, or the machine's own name where it is none of these.
    source: what was measured by whom: ``measured`` here, or ``imported`` from the tables named in ``origin``.
    settings: everything else worth knowing: driver, clocks, power, grid, versions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal[1] = 1
    device: Annotated[str, Field(min_length=1)]
    sms: Annotated[int, Field(ge=1)]
    source: Literal["measured", "imported"]
    origin: Annotated[str, Field(min_length=1)]
    date: str
    model: str | None = None
    tensor_parallel: Annotated[int, Field(ge=1)] = 1
    settings: dict[str, Any] = Field(default_factory=dict)
    rows: Annotated[int, Field(ge=1)] | None = None
    rows_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """Rows and their provenance. ``rows`` has exactly the columns :data:`COLUMNS`."""

    rows: pd.DataFrame
    provenance: Provenance

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]] | pd.DataFrame, provenance: Provenance) -> Self:
        """A checked profile. Raises ValueError naming the first row and column that cannot be."""
        frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows))
        return cls(_checked(_complete(frame), provenance), provenance)

    def select(self, kernel: str, *, alone: bool = True) -> pd.DataFrame:
        """The rows of one kernel with its own shape columns; ``alone``: without a co-runner."""
        rows = self.rows[self.rows["kernel"] == kernel]
        if alone:
            rows = rows[rows["beside"] == ""]
        return rows.reset_index(drop=True)

    def save(self, path: Path) -> Path:
        """Write ``path`` (.parquet) and the provenance beside it, each to a temporary name and then renamed."""
        path = path.with_suffix(".parquet")
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = rows_digest(self.rows)
        stamped = self.provenance.model_copy(update={"rows": len(self.rows), "rows_sha256": digest})
        temporary = path.with_suffix(".parquet.partial")
        self.rows.to_parquet(temporary, index=False)
        document = json.dumps(stamped.model_dump(mode="json"), indent=1, sort_keys=True)
        beside = path.with_suffix(".json.partial")
        beside.write_text(document + "\n", encoding="utf-8")
        temporary.replace(path)
        beside.replace(path.with_suffix(".json"))
        return path


def load_profile(path: Path) -> Profile:
    """The profile at ``path`` (its .parquet, its .json, or the name without either).

    Raises ValueError, in one line with the file's name: missing or unreadable rows, no provenance, a newer format,
    rows that are not those the provenance was written for, and whatever :meth:`Profile.of` refuses.
    """
    path = (
        path
        if path.suffix == ".parquet"
        else Path(f"{path.with_suffix('') if path.suffix == '.json' else path}.parquet")
    )
    beside = path.with_suffix(".json")
    if not path.is_file():
        raise ValueError(f"{path} does not exist; a profile is NAME.parquet with NAME.json beside it")
    if not beside.is_file():
        raise ValueError(f"{path} has no provenance: {beside} is missing; profile again, or restore that file")
    provenance = _provenance(beside)
    try:
        frame = pd.read_parquet(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} is no complete Parquet file ({reason}); measure or import it again") from None
    try:
        profile = Profile.of(frame, provenance)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if provenance.rows is not None and provenance.rows != len(frame):
        raise ValueError(
            f"{path} holds {len(frame)} rows, but {beside.name} says rows is {provenance.rows}; the two belong to "
            f"different profiles: restore the one that was changed, or profile again"
        )
    if provenance.rows_sha256 is not None and rows_digest(profile.rows) != provenance.rows_sha256:
        raise ValueError(
            f"{path} does not hold the rows that {beside.name} describes; the two belong to different profiles"
        )
    return profile


def rows_digest(rows: pd.DataFrame) -> str:
    """SHA-256 over the rows' values, in order: equal measurements, equal hash."""
    digest = hashlib.sha256()
    for name in COLUMNS:
        column = rows[name]
        if name in _TEXT:
            digest.update("\0".join(column).encode())
        elif name in _REAL:
            digest.update(np.ascontiguousarray(column.to_numpy(dtype=np.float64)).tobytes())
        else:
            digest.update(np.ascontiguousarray(column.fillna(-1).to_numpy(dtype=np.int64)).tobytes())
    return digest.hexdigest()


def merged(profiles: Sequence[Profile]) -> Profile:
    """Profiles of one device as one. Raises ValueError where devices differ, or the models of measured layers.

    Settings are those of the first profile with ``ceilings``, and in ``profiles`` those of each.
    """
    first = profiles[0].provenance
    for other in profiles[1:]:
        found = other.provenance
        if (found.device, found.sms) != (first.device, first.sms):
            raise ValueError(
                f"profiles of two devices: {first.device} with {first.sms} SMs and {found.device} with {found.sms}; "
                f"fit one model a device"
            )
    if len(profiles) == 1:
        return profiles[0]
    rows = pd.concat([profile.rows for profile in profiles], ignore_index=True)
    of = _of_the_layers(profiles)
    settings = [profile.provenance.settings for profile in profiles]
    changed = {
        "origin": "; ".join(dict.fromkeys(profile.provenance.origin for profile in profiles)),
        "model": of.model,
        "tensor_parallel": of.tensor_parallel,
        "settings": {**next((found for found in settings if "ceilings" in found), settings[0]), "profiles": settings},
        "rows": None,
        "rows_sha256": None,
    }
    return Profile(rows, first.model_copy(update=changed))


def _of_the_layers(profiles: Sequence[Profile]) -> Provenance:
    """Whose model the profiles' layers are of; without layers, the first that names a model."""
    layered = [
        profile.provenance
        for profile in profiles
        if (profile.rows["kernel"].isin(LAYERS) | profile.rows["beside"].isin(LAYERS)).any()
    ]
    for other in layered[1:]:
        if (other.model, other.tensor_parallel) != (layered[0].model, layered[0].tensor_parallel):
            raise ValueError(
                f"profiles with layers of two models: {_model_of(layered[0])} and {_model_of(other)}; "
                f"fit them one by one, or leave one out"
            )
    named = [profile.provenance for profile in profiles if profile.provenance.model]
    return (layered or named or [profiles[0].provenance])[0]


def _model_of(origin: Provenance) -> str:
    return f"{origin.model or 'one not named'} at tensor parallel {origin.tensor_parallel}"


def parsed_json(text: str | bytes) -> Any:
    """The document. Raises ValueError for what is no JSON (NaN included), and for one nested beyond all reason."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON number")

    try:
        document = json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError(f"nested more than {NESTED} levels deep") from None
    level, depth = [document], 0
    while level:
        depth += 1
        if depth > NESTED:
            raise ValueError(f"nested more than {NESTED} levels deep")
        inner = [value.values() if isinstance(value, dict) else value for value in level]
        level = [part for value in inner if not isinstance(value, str | int | float | None) for part in value]
    return document


def _provenance(path: Path) -> Provenance:
    try:
        data = parsed_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no provenance of a profile: {error}") from None
    written = data.get("format") if isinstance(data, dict) else None
    if isinstance(written, int) and written > FORMAT_VERSION:
        raise ValueError(f"{path} has format {written}; this version reads up to {FORMAT_VERSION}: update bulletsim")
    try:
        return Provenance.model_validate(data)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in fault["loc"]) or "the document"
        raise ValueError(f"{path} is no provenance of a profile: {field}: {fault['msg']}") from None


def _complete(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with all columns, in order and of their types."""
    for name in frame.columns:
        if name not in COLUMNS:
            raise ValueError(f"unknown column {name!r}; known: {', '.join(COLUMNS)}")
    for name in ("kernel", "dtype", "sms", "latency_s"):
        if name not in frame.columns:
            raise ValueError(f"column {name!r} is missing")
    columns: dict[str, Any] = {}
    for name in frame.columns.difference([*_TEXT, *_REAL]):
        # Before they become integers, which such numbers would overflow.
        sizes = pd.to_numeric(frame[name], errors="coerce").astype("float64").abs()
        _refuse(frame, sizes > LARGEST, name, f"a count is at most {LARGEST}")
    for name in COLUMNS:
        try:
            columns[name] = _column(frame, name)
        except (TypeError, ValueError, OverflowError):
            if name not in _TEXT:
                _refuse(frame, _no_numbers(frame[name], name), name, "it is no " + _kind(name))
            raise ValueError(
                f"column {name!r} holds a value that is no {_kind(name)}; write the column again, of one type"
            ) from None
    return pd.DataFrame(columns)


def _kind(name: str) -> str:
    return "text" if name in _TEXT else "number" if name in _REAL else "count"


def _no_numbers(values: pd.Series[Any], name: str) -> Any:
    numbers = pd.to_numeric(values, errors="coerce")
    return values.notna() & (numbers.isna() | (name not in _REAL) & (numbers % 1 != 0))


def _column(frame: pd.DataFrame, name: str) -> pd.Series[Any]:
    if name not in frame.columns:
        empty: Any = "" if name in _TEXT else 0 if name == "repeats" else None
        values = pd.Series([empty] * len(frame))
    else:
        values = frame[name].reset_index(drop=True)
    if name in _TEXT:
        return values.fillna("").astype("str")
    if name in _REAL:
        return values.astype("float64")
    return values.astype("Int64")


def _checked(frame: pd.DataFrame, provenance: Provenance) -> pd.DataFrame:
    """``frame`` as it is, once every row is seen to be a possible measurement."""
    if frame.empty:
        raise ValueError("no rows; a profile has at least one measurement")
    latency = frame["latency_s"].to_numpy()
    _refuse(frame, ~(np.isfinite(latency) & (latency > 0)), "latency_s", "it must be a time above 0")
    _refuse(frame, ~frame["dtype"].isin(DTYPES), "dtype", f"known: {', '.join(DTYPES)}")
    _refuse(frame, frame["repeats"].fillna(0) < 0, "repeats", "it must be 0 or more, 0 where it is not known")
    spread = frame["spread"].to_numpy()
    _refuse(frame, np.isinf(spread) | (spread < 0), "spread", "it must be 0 or more, empty where it is not known")
    sms = frame["sms"].fillna(0).to_numpy(dtype=np.int64)
    wrong = (sms < 1) | (sms > provenance.sms)
    of_device = f"it must be 1 to the {provenance.sms} of {provenance.device}"
    _refuse(frame, wrong, "sms", of_device)
    alone, others = (frame["beside"] == "").to_numpy(), frame["beside_sms"].fillna(0).to_numpy(dtype=np.int64)
    _refuse(frame, alone & (others != 0), "beside", "it must name what kept the SMs of beside_sms busy")
    _refuse(frame, ~alone & ((others < 1) | (others > provenance.sms)), "beside_sms", of_device)
    for prefix, column in (("", "kernel"), ("beside_", "beside")):
        for kernel in frame[column].unique():
            if prefix and not kernel:
                continue
            if kernel not in SHAPES:
                row = int(np.flatnonzero(frame[column] == kernel)[0])
                raise ValueError(f"row {row}: {column} is {kernel!r}; known: {', '.join(SHAPES)}")
            for name in SHAPES[kernel]:
                _check_shape(frame, frame[column] == kernel, prefix + name, kernel)
    return frame


def _check_shape(frame: pd.DataFrame, of_kernel: Any, name: str, kernel: str) -> None:
    least = 0 if name.endswith("cached_tokens") else 1
    values = frame[name].fillna(-1).to_numpy(dtype=np.int64)
    _refuse(frame, of_kernel.to_numpy() & (values < least), name, f"{kernel} needs it, {least} or more")


def _refuse(frame: pd.DataFrame, wrong: Any, name: str, why: str) -> None:
    rows = np.flatnonzero(wrong)
    if not rows.size:
        return
    row = int(rows[0])
    value = frame[name].iloc[row]
    shown = "empty" if pd.isna(value) else repr(value) if isinstance(value, str) else value
    more = f" (and {rows.size - 1} more rows)" if rows.size > 1 else ""
    raise ValueError(f"row {row} ({frame['kernel'].iloc[row]}): {name} is {shown}; {why}{more}")
