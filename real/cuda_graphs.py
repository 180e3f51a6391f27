"""Decode steps as CUDA graphs: which sizes are captured, and which of them a batch takes.

A graph runs on the SMs of the stream that it was captured on, so each share has its own. Capturing one takes about as
long as two passes launched kernel by kernel, and a share has a few dozen.
"""

from __future__ import annotations

from typing import NamedTuple

from profiler.measure.cuda_runtime import Captured
from real.lanes import Batch

ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
"""Sequences of a graph; a batch takes the next larger one, and one larger than all is launched kernel by kernel."""

KEYS = 512
"""Tokens that a sequence may have in the shortest graph; longer ones have twice as many each, up to a slot's."""


class Bucket(NamedTuple):
    """A graph's size: sequences, and the most tokens that one of them may have after the step."""

    rows: int
    keys: int


def buckets(sequences: int, slot_tokens: int, kv_heads: int, sms: int) -> tuple[Bucket, ...]:
    """Sizes for batches of up to ``sequences``, smallest first; ``sms`` are those of the whole device.

    How the attention kernel splits keys depends on the longest that its launch is for, so that a short batch in a graph
    for long ones would run on a few SMs. It splits none once the batch has 80 % of two blocks an SM, counted over the
    whole device; then one graph does for all lengths.
    """
    most = min(sequences, ROWS[-1])
    found = []
    for rows in (*(size for size in ROWS if size < most), most):
        keys = slot_tokens if rows * kv_heads >= 1.6 * sms else KEYS
        while keys < slot_tokens:
            found.append(Bucket(rows, keys))
            keys *= 2
        found.append(Bucket(rows, slot_tokens))
    return tuple(found)


class Graph(NamedTuple):
    """A captured decode step."""

    bucket: Bucket
    captured: Captured


def chosen(graphs: tuple[Graph, ...], batch: Batch, layers: int, temperature: float) -> Graph | None:
    """The smallest of ``graphs`` that runs the batch; None unless that is one new token each, through all layers."""
    if not graphs or (batch.first, batch.last) != (0, layers) or batch.temperature != temperature:
        return None
    _, new, cached = zip(*batch.sequences, strict=True)
    if max(new) > 1:
        return None
    rows, keys = len(new), 1 + max(cached)
    return next((graph for graph in graphs if graph.bucket.rows >= rows and graph.bucket.keys >= keys), None)
