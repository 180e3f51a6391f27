"""Values that many have in common, each once with its count."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int32] | NDArray[np.int64]


def counted(parts: list[tuple[Floats, Counts]]) -> tuple[Floats, Counts]:
    """Distinct values in order and their counts added up, without those that add up to nothing; shape (k,) each.

    ``parts``, values and counts of shape (n,), are taken out of the list: long runs have millions, and nothing is held
    that is not needed any more.
    """
    values = np.concatenate([part[0] for part in parts])
    counts = np.concatenate([part[1] for part in parts])
    parts.clear()
    # In half of its bytes, before the sorted columns are made beside the others.
    order = np.argsort(values).astype(np.uint32)
    values = values[order]
    counts = counts[order]
    del order
    differs = np.ones(len(values), np.bool_)
    differs[1:] = values[1:] != values[:-1]
    values = values[differs]
    firsts = np.flatnonzero(differs)
    totals = np.add.reduceat(counts, firsts, dtype=np.int64) if len(firsts) else np.zeros(0, np.int64)
    del counts, firsts, differs
    kept = totals > 0
    return values[kept], totals[kept]
