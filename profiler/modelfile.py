"""What the JSON document of a latency model must hold: types, bounds, and what has to agree with what.

A model file may come from anywhere, and one wrong number in it makes times infinite or silently wrong. Bounds are wide:
they keep out what no device does, not what is unusual. Apart from the rest, since reading a file alone needs pydantic.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from profiler.devicecalibration import LARGEST_SLOWDOWN, LEAST_SLOWDOWN, Origin
from profiler.presets import DEVICES
from profiler.structure import AXES, features
from profiler.trees import LARGEST_LEAF

REMEDY = "fit it again"
LARGEST_LOG = 50.0
"""Of log alpha: measured times are within a few powers of ten of the formula's."""

LARGEST_SIZE = 1e12
MOST_SEQUENCES = 4096
"""Of one prefill launch, whose sequences are counted one by one."""

DEEPEST = 8
"""Levels of a provenance's settings, which are free but for that."""

Seconds = Annotated[float, Field(ge=0, le=60)]
Log = Annotated[float, Field(ge=-LARGEST_LOG, le=LARGEST_LOG)]
Loss = Annotated[float, Field(ge=0, le=1)]
# Not any share above 0: the reciprocal of the least float is infinite.
Share = Annotated[float, Field(ge=1e-6, le=1)]
Ratio = Annotated[float, Field(ge=1e-3, le=1e3)]
Scale = Annotated[float, Field(ge=0.01, le=100)]
Slowdown = Annotated[float, Field(ge=LEAST_SLOWDOWN, le=LARGEST_SLOWDOWN)]
Rate = Annotated[float, Field(ge=1, le=1e21)]
Size = Annotated[float, Field(ge=0, le=LARGEST_SIZE)]
Count = Annotated[int, Field(ge=0, le=10**12)]
Bytes = Annotated[int, Field(ge=1, le=10**18)]
Sms = Annotated[int, Field(ge=1, le=100_000)]
Rows = Annotated[int, Field(ge=1, le=LARGEST_SIZE)]
Error = Annotated[float, Field(ge=0, le=1e12)]
Leaf = Annotated[int, Field(ge=-LARGEST_LEAF, le=LARGEST_LEAF)]
Knots = Annotated[list[Annotated[float, Field(ge=1, le=LARGEST_SIZE)]], Field(min_length=1)]


class Part(BaseModel):
    """What all parts have in common: strict types, no unknown names, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class DevicePart(Part):
    """:class:`profiler.specs.DeviceSpec`, and where its numbers come from."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    sms: Sms
    bf16_flops: Rate
    fp8_flops: Rate | None
    dram_bytes_per_s: Rate
    memory_bytes: Bytes
    l2_bytes: Bytes
    link_bytes_per_s: Rate
    link_latency_s: Seconds
    bandwidth_knee_sms: Sms
    sm_granularity: Sms
    contention_ceiling: Loss
    tiled: bool = True
    in_step: bool = False
    sources: dict[str, str]


class ProvenancePart(Part):
    """What was measured, when, and with which versions it was fitted."""

    device: str = ""
    source: str = ""
    origin: str = ""
    date: str = ""
    model: str | None = None
    rows: Count = 0
    rows_sha256: str = ""
    settings: dict[str, Any] = {}
    versions: dict[str, str] = {}


class ErrorsPart(Part):
    """A row of ``profiler.holdout.Errors``, which is not imported here as it needs scikit-learn."""

    op: str
    split: str
    subset: str
    estimator: str
    fitted: Count
    rows: Count
    median: Error
    p90: Error
    spread: Error | None


class BandwidthPart(Part):
    """:class:`profiler.devicecalibration.Bandwidth`."""

    knee_sms: Annotated[float, Field(ge=0.01, le=10_000)]
    sharpness: Annotated[float, Field(ge=0.1, le=64)]
    origin: Origin


class CoRunPart(Part):
    """A measured co-run, as :mod:`profiler.commoncores` reads it."""

    decodes: Annotated[float, Field(ge=0, le=1)]
    sms: Sms
    beside_sms: Sms
    tokens: Size
    beside_tokens: Size
    slowdown: Slowdown


class ContentionPart(Part):
    """:class:`profiler.devicecalibration.Contention`."""

    decode: Loss
    prefill: Loss
    decode_any: Loss
    prefill_any: Loss
    origin: Origin
    table: list[CoRunPart]


class HostPart(Part):
    """:class:`profiler.devicecalibration.Host`."""

    pass_s: Seconds
    launch_s: Seconds
    origin: Origin


class UnmeasuredPart(Part):
    """:class:`profiler.devicecalibration.Unmeasured`."""

    gemm: Share
    attention: Share
    bandwidth: Share
    floor_s: Seconds


PAIR = Field(strict=False)
"""JSON has lists for tuples; what is in them is checked strictly all the same."""


Factors = Annotated[list[Annotated[tuple[Rows, Scale], PAIR]], Field(min_length=1)]


class CompositionPart(Part):
    """:class:`profiler.devicecalibration.Composition`, by SMs."""

    seconds: list[Annotated[tuple[Sms, Seconds], PAIR]]
    prefill: list[Annotated[tuple[Sms, Scale], PAIR]]
    decode: list[Annotated[tuple[Sms, Scale], PAIR]]
    products: list[Annotated[tuple[Sms, Factors], PAIR]] = []
    origin: Origin


class MixedPart(Part):
    """:class:`profiler.mixed.MixedAttention`."""

    new_tokens: Knots
    requests: Knots
    contexts: Knots
    ratios: list[Ratio]


class TreesPart(Part):
    """:class:`profiler.trees.Trees`, packed."""

    baseline: Log
    thresholds: list[list[float]]
    trees: Annotated[int, Field(ge=1, le=10_000)]
    nodes: list[Leaf]


class PointsPart(Part):
    """:class:`profiler.calibration.MeasuredPoints`."""

    shapes: Annotated[list[list[Size]], Field(min_length=1)]
    residuals: list[list[Log | None]]


class OpPart(Part):
    """:class:`profiler.calibration.OpCalibration`."""

    floor_s: Seconds
    constant: Log
    trees: TreesPart | None
    ranges: dict[str, Annotated[list[Size], Field(min_length=2, max_length=2)]]
    share_sms: Annotated[list[Sms], Field(min_length=1)]
    share_log: list[Log]
    rows: Count
    prefixed: bool
    points: PointsPart | None


class Document(Part):
    """The whole file; the first three are checked before."""

    format: int
    kind: str
    features: int
    device: DevicePart
    provenance: ProvenancePart
    holdout: list[ErrorsPart]
    learning_curve: list[ErrorsPart]
    bandwidth: BandwidthPart
    contention: ContentionPart
    host: HostPart
    unmeasured: UnmeasuredPart
    composition: CompositionPart
    mixed: MixedPart | None
    ops: dict[str, OpPart]


def check(document: Any) -> None:
    """Raises ValueError, in one line with the field, its value and the remedy, where a model cannot be made of it."""
    ops = document.get("ops") if isinstance(document, Mapping) else None
    if isinstance(ops, Mapping):
        # Before the schema, which would complain of what an unknown op lacks.
        for op in ops:
            if op not in AXES:
                _refuse("ops", f"op {_shown(op)} is not known; known: {', '.join(AXES)}")
    try:
        found = Document.model_validate(document)
    except ValidationError as error:
        raise ValueError(_line(error.errors(include_url=False, include_context=False)[0])) from None
    _check_device(found.device)
    _check_plain("provenance.settings", found.provenance.settings, DEEPEST)
    for name, rows in (("holdout", found.holdout), ("learning_curve", found.learning_curve)):
        for place, row in enumerate(rows):
            if row.op not in AXES:
                _refuse(f"{name}.{place}.op", f"is {_shown(row.op)}: it must be one of {', '.join(AXES)}")
    if found.mixed is not None:
        _check_mixed(found.mixed)
    for place, co_run in enumerate(found.contention.table):
        for name in ("sms", "beside_sms"):
            _check_shares(f"contention.table.{place}.{name}", [getattr(co_run, name)], found.device.sms)
    for name in ("seconds", "prefill", "decode", "products"):
        _check_shares(f"composition.{name}", [sms for sms, _ in getattr(found.composition, name)], found.device.sms)
    for place, (_, factors) in enumerate(found.composition.products):
        _check_ascending(f"composition.products.{place}.1", [rows for rows, _ in factors])
    if "gemm" not in found.ops:
        _refuse("ops.gemm", "is missing: matrix products are most of every launch")
    for op, part in found.ops.items():
        _check_op(op, part, found.device.sms)


def _check_device(device: DevicePart) -> None:
    for name in ("bandwidth_knee_sms", "sm_granularity"):
        if getattr(device, name) > device.sms:
            _refuse(f"device.{name}", f"is {getattr(device, name)}: it must be at most the device's {device.sms} SMs")


def _check_plain(field: str, value: Any, levels: int) -> None:
    """Settings are printed and written again, so they must be finite and not nested without end."""
    if isinstance(value, float) and not math.isfinite(value):
        _refuse(field, f"is {value}: it must be a finite number")
    if not isinstance(value, dict | list):
        return
    if not levels:
        _refuse(field, f"is nested deeper than {DEEPEST} levels")
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        _check_plain(f"{field}.{_named(name)}", inner, levels - 1)


def _check_mixed(mixed: MixedPart) -> None:
    axes = {name: getattr(mixed, name) for name in ("new_tokens", "requests", "contexts")}
    for name, knots in axes.items():
        _check_ascending(f"mixed.{name}", knots)
    expected = math.prod(map(len, axes.values()))
    if len(mixed.ratios) != expected:
        _refuse("mixed.ratios", f"has {len(mixed.ratios)} values: its axes need {expected}")


def _check_op(op: str, part: OpPart, device_sms: int) -> None:
    field = f"ops.{op}"
    if set(part.ranges) != set(AXES[op]):
        _refuse(f"{field}.ranges", f"has {_shown(sorted(part.ranges))}: it must have {', '.join(AXES[op])}")
    for name, (least, greatest) in part.ranges.items():
        _check_size(f"{field}.ranges.{name}", name, least)
        _check_size(f"{field}.ranges.{name}", name, greatest)
        if least > greatest:
            _refuse(f"{field}.ranges.{name}", f"is [{least}, {greatest}]: the least must come first")
    _check_shares(f"{field}.share_sms", part.share_sms, device_sms)
    if len(part.share_log) != len(part.share_sms):
        _refuse(f"{field}.share_log", f"has {len(part.share_log)} values: share_sms has {len(part.share_sms)}")
    if part.trees is not None:
        _check_trees(op, part.trees)
    if part.points is not None:
        _check_points(op, part.points, len(part.share_sms))


def _check_trees(op: str, trees: TreesPart) -> None:
    """But for its nodes, which are checked as they are linked."""
    field = f"ops.{op}.trees.thresholds"
    if len(trees.thresholds) != _columns(op):
        _refuse(field, f"has {len(trees.thresholds)} tables: the op has {_columns(op)} features")
    for place, table in enumerate(trees.thresholds):
        if table != sorted(table):
            _refuse(f"{field}.{place}", f"is {_shown(table)}: it must be ascending")


def _check_points(op: str, points: PointsPart, shares: int) -> None:
    field = f"ops.{op}.points"
    if len(points.residuals) != len(points.shapes):
        _refuse(f"{field}.residuals", f"has {len(points.residuals)} rows: shapes has {len(points.shapes)}")
    for name, rows, width in (("shapes", points.shapes, len(AXES[op])), ("residuals", points.residuals, shares)):
        for place, row in enumerate(rows):
            if len(row) != width:  # type: ignore[arg-type]
                _refuse(f"{field}.{name}.{place}", f"is {_shown(row)}: it must have {width} values")
    for name, column in zip(AXES[op], zip(*points.shapes, strict=True), strict=True):
        for place, value in enumerate(column):
            _check_size(f"{field}.shapes.{place}", name, value)
            # Sizes are counted. Two that nearly are one would have no interpolation between them.
            if value != int(value):
                _refuse(f"{field}.shapes.{place}", f"has {name} {value}: it must be a whole number")
    if len(set(map(tuple, points.shapes))) != len(points.shapes):
        _refuse(f"{field}.shapes", "has a row twice: each measured shape must be there once")


def _check_size(field: str, name: str, value: float) -> None:
    """A size has a logarithm; only a prefix may be empty."""
    if name == "dtype_bytes" and not 1 <= value <= 2:
        _refuse(field, f"has {name} {value}: it must be 1 to 2")
    if name == "sequences" and value > MOST_SEQUENCES:
        _refuse(field, f"has {name} {value}: it must be at most {MOST_SEQUENCES}")
    if value < 1 and name != "cached_tokens":
        _refuse(field, f"has {name} {value}: it must be 1 or more")


def _check_ascending(field: str, values: Sequence[float]) -> None:
    if any(after <= before for before, after in pairwise(values)):
        _refuse(field, f"is {_shown(values)}: it must be ascending, no value twice")


def _check_shares(field: str, shares: Sequence[int], device_sms: int) -> None:
    _check_ascending(field, shares)
    if shares and shares[-1] > device_sms:
        _refuse(field, f"has {shares[-1]}: the device has {device_sms} SMs")


@cache
def _columns(op: str) -> int:
    """How many features an op has, counted on one shape: neither shape nor device changes that."""
    shapes = {name: np.array([2.0]) for name in AXES[op]}
    return int(features(op, shapes, np.array([1e-6]), DEVICES[0]).shape[1])


def _refuse(field: str, why: str) -> None:
    raise ValueError(f"is no complete latency model: {field} {why}; {REMEDY}")


def _line(error: ErrorDetails) -> str:
    field = ".".join(map(_named, error["loc"])) or "it"
    if error["type"] == "missing":
        why = "is missing"
    elif error["type"] == "extra_forbidden":
        why = "is not known"
    else:
        why = f"is {_shown(error['input'])}: {error['msg'].replace('Input should', 'it must', 1)}"
    return f"is no complete latency model: {field} {why}; {REMEDY}"


def _named(part: object) -> str:
    """Names come from the file too: a strange one is quoted, so that the message stays one line."""
    text = str(part)
    return text if isinstance(part, int) or (text.isidentifier() and len(text) < 60) else _shown(part)


def _shown(value: object) -> str:
    return reprlib.repr(value)
