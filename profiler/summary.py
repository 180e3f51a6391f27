"""What a profile holds, by kernel and dtype: how many rows, which shapes and shares of SMs, how long, how steady."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from profiler.profile import SHAPES, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSummary:
    """Rows of one kernel and dtype. ``shapes``: least and most of each shape column. ``beside``: rows with a
    co-runner. ``spread``: the median one, None where no row has any."""

    kernel: str
    dtype: str
    rows: int
    shapes: dict[str, tuple[int, int]]
    sms: tuple[int, int]
    beside: int
    latency_s: tuple[float, float]
    spread: float | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(profile: Profile) -> list[KernelSummary]:
    """One summary a kernel and dtype, in the order of :data:`SHAPES`."""
    by_kernel = {str(kernel): rows for kernel, rows in profile.rows.groupby("kernel")}
    return [
        _summary(kernel, str(dtype), rows)
        for kernel in SHAPES
        if kernel in by_kernel
        for dtype, rows in by_kernel[kernel].groupby("dtype")
    ]


def _summary(kernel: str, dtype: str, rows: pd.DataFrame) -> KernelSummary:
    def extent(name: str) -> tuple[int, int]:
        return int(rows[name].min()), int(rows[name].max())

    spreads = rows["spread"].dropna()
    return KernelSummary(
        kernel=kernel,
        dtype=dtype,
        rows=len(rows),
        shapes={name: extent(name) for name in SHAPES[kernel]},
        sms=extent("sms"),
        beside=int((rows["beside"] != "").sum()),
        latency_s=(float(rows["latency_s"].min()), float(rows["latency_s"].max())),
        spread=float(spreads.median()) if len(spreads) else None,
    )
