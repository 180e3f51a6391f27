"""Random generators by purpose: draws for arrivals never disturb draws for lengths."""

from __future__ import annotations

from zlib import crc32

import numpy as np

from traces.errors import TraceError


def generator(seed: int, purpose: str) -> np.random.Generator:
    """The generator of ``seed`` for one purpose; TraceError for a negative seed."""
    if seed < 0:
        raise TraceError(f"seed is {seed}; a seed is a whole number of 0 or more")
    return np.random.default_rng((seed, crc32(purpose.encode())))
