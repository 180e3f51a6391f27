"""Whether a model, its KV cache and its lanes' buffers fit a GPU, asked before any of it is made."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from profiler.measure.transformer import Scratch
from profiler.specs import ModelSpec
from real.lanes import DeviceError

RESERVE_BYTES = 3 << 30
"""For a few hundred graphs, which may take 10 MiB each, for sampling and the driver."""

STREAM_BYTES = 64 << 20
"""For the work space of matrix products, which every stream has its own of."""

SMALLER = "lower slot_tokens or the most tokens of a launch, take a smaller model, or see what else is on the GPU"
GIB = 1 << 30
META = torch.device("meta")
"""Tensors there have sizes and no memory."""


def check_memory(
    runtime: Any,
    model: ModelSpec,
    dtype: torch.dtype,
    *,
    slots: int,
    slot_tokens: int,
    lanes: int,
    streams: int,
    launch_tokens: int,
    weights: bool,
) -> None:
    """Raises DeviceError, with what to lower, for what the GPU has not the memory for.

    slots: of the KV cache, to which one is added that is nobody's. streams: of all lanes together. launch_tokens: the
    most of one launch. weights: whether the model is still to be loaded there.
    """
    model_bytes = model.parameters * dtype.itemsize * weights
    buffers, a_row = (_scratch_bytes(model, dtype, launch_tokens, rows) * lanes for rows in (0, 1))
    a_row -= buffers
    slot = slot_tokens * 2 * model.layers * model.kv_heads * model.head_dim * dtype.itemsize
    # What attention and norms return stays with the stream that it was made on, as long as the longest launch's.
    held = 2 * launch_tokens * model.heads * model.head_dim * dtype.itemsize
    work = RESERVE_BYTES + streams * (STREAM_BYTES + held)
    free = runtime.free_bytes()
    fit = (free - model_bytes - buffers - work - slot) // (slot + a_row)
    if slots <= fit:
        return
    remedy = f"lower slots ({fit} fit) or slot_tokens" if fit > 0 else SMALLER
    sizes = free, model_bytes, (slots + 1) * slot, buffers + slots * a_row, work
    gib = [size / GIB for size in sizes]
    raise DeviceError(
        f"{runtime.properties.name} has {gib[0]:.1f} GiB free, and {model.name} takes {gib[1]:.1f}, KV of {slots} "
        f"slots of {slot_tokens} tokens {gib[2]:.1f}, buffers of the lanes {gib[3]:.1f} and work space {gib[4]:.1f} "
        f"GiB; {remedy}"
    )


def _scratch_bytes(model: ModelSpec, dtype: torch.dtype, tokens: int, rows: int) -> int:
    buffers: dict[str, Tensor] = vars(Scratch(model, tokens, rows, META, dtype))
    return sum(tensor.nbytes for tensor in buffers.values())
