"""Attention of prefilling and decoding sequences in one launch, against the two one after the other.

A kernel for ragged batches gives every sequence blocks of many query rows and does not split its keys, so a sequence
that decodes a single token takes longer in it than in a kernel for decoding alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import pandas as pd

from profiler.grid import Axis, Grid

RATIO_DIGITS = 3


@dataclass(frozen=True, slots=True)
class MixedAttention:
    """Time of one mixed launch over the sum of its parts, by new tokens, decoding requests and context of each.

    ratios: nested as the axes are.
    """

    new_tokens: tuple[float, ...]
    requests: tuple[float, ...]
    contexts: tuple[float, ...]
    ratios: tuple[float, ...]

    def __post_init__(self) -> None:
        expected = len(self.new_tokens) * len(self.requests) * len(self.contexts)
        if len(self.ratios) != expected or not all(ratio > 0 for ratio in self.ratios):
            raise ValueError(f"mixed attention needs {expected} ratios above 0, and has {len(self.ratios)}")

    def grid(self) -> Grid:
        axes = [Axis(knots) for knots in (self.new_tokens, self.requests, self.contexts)]
        return Grid(axes, [(math.log(ratio),) for ratio in self.ratios], ["interpolated"] * len(self.ratios))

    def document(self) -> dict[str, Any]:
        return {name: list(values) for name, values in asdict(self).items()}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        return cls(**{name: tuple(map(float, values)) for name, values in document.items()})


def mixed_of(mixed: pd.DataFrame, prefill: pd.DataFrame, decode: pd.DataFrame) -> MixedAttention | None:
    """The ratios that measured rows give where mixed launches without a prefix, and both of their parts, were measured.

    Combinations that were not all measured have the ratio of their nearest neighbours in context, then in requests.
    None where there are fewer than eight.
    """
    alone = prefill[(prefill["cached_tokens"] == 0) & (prefill["sequences"] == 1)]
    keys = ["decode_requests", "decode_context_tokens"]
    rows = mixed[mixed["cached_tokens"] == 0].merge(
        alone[["new_tokens", "latency_s"]], on="new_tokens", suffixes=("", "_p")
    )
    rows = rows.merge(decode[[*keys, "latency_s"]], on=keys, suffixes=("", "_d"))
    if len(rows) < 8:
        return None
    rows["ratio"] = rows["latency_s"] / (rows["latency_s_p"] + rows["latency_s_d"])
    table = rows.pivot_table(index=["new_tokens", "decode_requests"], columns="decode_context_tokens", values="ratio")
    measured: Any = table.index
    whole: Any = pd.MultiIndex.from_product(measured.levels)
    filled = table.reindex(whole).ffill(axis=1).bfill(axis=1).ffill().bfill()
    return MixedAttention(
        tuple(map(float, measured.levels[0])),
        tuple(map(float, measured.levels[1])),
        tuple(map(float, filled.columns)),
        tuple(round(float(ratio), RATIO_DIGITS) for ratio in filled.to_numpy().ravel()),
    )
