"""Attention of prefilling and decoding sequences in one launch, against the two one after the other.

A kernel for ragged batches gives every sequence blocks of many query rows and does not split its keys, so a sequence
that decodes a single token takes longer in it than in a kernel for decoding alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from profiler.grid import Axis, Grid


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
