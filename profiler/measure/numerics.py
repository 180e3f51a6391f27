"""What a checkpoint fixes of the arithmetic besides its shapes: the norms' epsilon and the rotary frequencies."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

NORM_EPS = 1e-5
ROPE_THETA = 500_000.0
"""Both of Llama-3; they change values and no durations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions ``factor`` times as close to each other."""

    factor: float

    def __post_init__(self) -> None:
        _require_positive(self)

    def scaled(self, frequencies: Tensor) -> Tensor:
        return frequencies / self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Slow frequencies divided by ``factor``, fast ones kept, and a blend between the two.

    Slow ones turn less than ``low_freq_factor`` times, fast ones more than ``high_freq_factor`` times, in the
    ``original_context`` tokens that the model was first trained on.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    def __post_init__(self) -> None:
        _require_positive(self)
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor is {self.high_freq_factor}; it must be above low_freq_factor {self.low_freq_factor}"
            )

    def scaled(self, frequencies: Tensor) -> Tensor:
        turns = self.original_context / (2 * math.pi / frequencies)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept.clamp_(0, 1)
        return (1 - kept) * frequencies / self.factor + kept * frequencies


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """The norms' epsilon, the base of the rotary frequencies, and how these are scaled for a longer context.

    Raises ValueError, naming the field, for a value that is not above 0.
    """

    norm_eps: float = NORM_EPS
    rope_theta: float = ROPE_THETA
    rope_scaling: LinearScaling | Llama3Scaling | None = None

    def __post_init__(self) -> None:
        _require_positive(self)

    def frequencies(self, head_dim: int) -> Tensor:
        """Radians a position of every pair of dimensions, [head_dim / 2] in fp32, on the CPU."""
        # In this order of operations in fp32, as checkpoints were trained: far along a context, rounding shows.
        powers = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        frequencies = 1.0 / self.rope_theta**powers
        return frequencies if self.rope_scaling is None else self.rope_scaling.scaled(frequencies)


def _require_positive(values: LinearScaling | Llama3Scaling | Numerics) -> None:
    for field in fields(values):
        value = getattr(values, field.name)
        if isinstance(value, int | float) and not 0 < value < math.inf:
            raise ValueError(f"{field.name} is {value}; it must be a number above 0")


LLAMA3 = Numerics()
