"""What the time of a kernel may depend on: shapes as numbers that a regression can split on.

One row a measurement or a question. Shapes are the columns of :data:`profiler.profile.SHAPES`, as arrays. Used when a
model is fitted and when it is asked, so there is one list of features for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiler import kernels
from profiler.kernels import Kernel
from profiler.kerneltime import KernelClock
from profiler.specs import DTYPE_BYTES, DeviceSpec, DType

Floats = NDArray[np.float64]
Shapes = Mapping[str, Floats]
"""Columns of one op by name; ``dtype_bytes`` is the size of an element of its operands."""

FEATURES_VERSION = 1
"""Raised whenever :func:`features` changes: trees that split on other features are refused, not misread."""

GEMM_TILES = ((256, 128), (128, 256), (128, 128), (64, 256), (128, 64), (64, 128), (64, 64))
"""(rows, columns) of output tiles that libraries choose from; each gives a shape its own waves."""

WAVES_SEEN = 50.0
"""Waves beyond which one more makes no difference."""

AXES: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k", "dtype_bytes"),
    "attention_prefill": (
        "sequences",
        "new_tokens",
        "cached_tokens",
        "heads",
        "kv_heads",
        "head_dim",
        "dtype_bytes",
    ),
    "attention_decode": (
        "decode_requests",
        "decode_context_tokens",
        "heads",
        "kv_heads",
        "head_dim",
        "dtype_bytes",
    ),
    "norm": ("tokens", "width"),
    "rotary": ("tokens", "heads", "kv_heads", "head_dim"),
    "activation": ("tokens", "width"),
    "embedding": ("tokens", "width"),
    "sampling": ("tokens", "width"),
    "all_reduce": ("bytes", "devices"),
}
"""The columns that tell one shape of an op from another."""


def kernel_at(op: str, shape: Mapping[str, float], device_sms: int) -> Kernel:
    """The kernel that was measured, or is asked for, as one row of shapes says."""
    return _KERNELS[op](shape, device_sms)


def base_seconds(op: str, shapes: Shapes, clock: KernelClock, sms: NDArray[np.int64] | int) -> Floats:
    """The formula's time of each row, before any calibration."""
    names = AXES[op]
    columns = [shapes[name].tolist() for name in names]
    on = np.broadcast_to(np.asarray(sms), len(columns[0])).tolist()
    total = clock.device.sms
    return np.array(
        [
            clock.time(kernel_at(op, dict(zip(names, row, strict=True)), total), share).seconds
            for *row, share in zip(*columns, on, strict=True)
        ]
    )


def features(op: str, shapes: Shapes, base: Floats, device: DeviceSpec) -> Floats:
    """Rows x features: logarithms of sizes and of roofline times, and how tiles of different sizes fill the SMs."""
    return np.column_stack(_FEATURES.get(op, _plain_features)(op, shapes, base, device))


def dtype_of(dtype_bytes: float) -> DType:
    """The type of operands of so many bytes."""
    return next(name for name, size in DTYPE_BYTES.items() if size == round(dtype_bytes))


def _gemm_kernel(shape: Mapping[str, float], device_sms: int) -> Kernel:
    dtype = dtype_of(shape["dtype_bytes"])
    return kernels.gemm("gemm", shape["m"], int(shape["n"]), int(shape["k"]), device_sms, dtype)


def _prefill_kernel(shape: Mapping[str, float], _: int) -> Kernel:
    chunks = ((int(shape["new_tokens"]), int(shape["cached_tokens"])),) * int(shape["sequences"])
    heads, kv_heads, head_dim = (int(shape[name]) for name in ("heads", "kv_heads", "head_dim"))
    return kernels.prefill_attention(chunks, heads, kv_heads, head_dim, dtype_of(shape["dtype_bytes"]))


def _decode_kernel(shape: Mapping[str, float], _: int) -> Kernel:
    requests = int(shape["decode_requests"])
    heads, kv_heads, head_dim = (int(shape[name]) for name in ("heads", "kv_heads", "head_dim"))
    context = requests * shape["decode_context_tokens"]
    return kernels.decode_attention(requests, context, heads, kv_heads, head_dim, dtype_of(shape["dtype_bytes"]))


def _rotary_kernel(shape: Mapping[str, float], _: int) -> Kernel:
    tokens, heads, kv_heads, head_dim = (int(shape[name]) for name in AXES["rotary"])
    return kernels.rotary(tokens, heads, kv_heads, head_dim)


_KERNELS: dict[str, Callable[[Mapping[str, float], int], Kernel]] = {
    "gemm": _gemm_kernel,
    "attention_prefill": _prefill_kernel,
    "attention_decode": _decode_kernel,
    "rotary": _rotary_kernel,
    "norm": lambda shape, _: kernels.norm("norm", shape["tokens"], int(shape["width"])),
    "activation": lambda shape, _: kernels.activation("activation", shape["tokens"], int(shape["width"])),
    "embedding": lambda shape, _: kernels.embedding(int(shape["tokens"]), int(shape["width"])),
    "sampling": lambda shape, _: kernels.sampling(int(shape["tokens"]), int(shape["width"])),
    "all_reduce": lambda shape, _: kernels.all_reduce("all_reduce", shape["bytes"], int(shape["devices"])),
}


def _plain_features(op: str, shapes: Shapes, base: Floats, device: DeviceSpec) -> list[Floats]:
    return [np.log(base), *(np.log(shapes[name]) for name in AXES[op])]


def _gemm_features(op: str, shapes: Shapes, base: Floats, device: DeviceSpec) -> list[Floats]:
    """Neither the time nor the rows as such: efficiency of the largest products stays nearly the same as they grow, and
    what the largest measured ones have in common (waves, shares, remainders) holds beyond them too."""
    m, n, k, size = (shapes[name] for name in AXES[op])
    computed = 2.0 * m * n * k / np.where(size < 2, device.fp8_flops or device.bf16_flops, device.bf16_flops)
    moved = (n * k * size + 2.0 * m * (n + k)) / device.dram_bytes_per_s
    columns = [np.log(part) for part in (base / np.maximum(computed, moved), computed / moved, n, k, n * k, moved)]
    columns += [size, -m % 16, -m % 64, -m % 128]
    for tile_rows, tile_columns in GEMM_TILES:
        blocks = np.ceil(m / tile_rows) * np.ceil(n / tile_columns)
        issued = np.ceil(blocks / device.sms) * device.sms * tile_rows * tile_columns
        columns += [np.log(issued / (m * n)), np.minimum(blocks / device.sms, WAVES_SEEN)]
    return columns


def _prefill_features(op: str, shapes: Shapes, base: Floats, device: DeviceSpec) -> list[Floats]:
    """Not the time as such, for the same reason as with products."""
    sequences, new, cached, heads, kv_heads, head_dim, size = (shapes[name] for name in AXES[op])
    computed = 4.0 * sequences * heads * head_dim * new * (cached + (new + 1) / 2) / device.bf16_flops
    moved = sequences * head_dim * (4.0 * heads * new + 2.0 * kv_heads * size * (new + cached))
    moved = moved / device.dram_bytes_per_s
    waves = sequences * heads * np.ceil(new / kernels.ATTENTION_ROWS) / device.sms
    parts = (base / np.maximum(computed, moved), computed / moved, moved, new, 1 + cached / new)
    columns = [np.log(part) for part in (*parts, heads, kv_heads, heads / kv_heads, head_dim, np.ceil(waves) / waves)]
    return [*columns, np.minimum(waves, WAVES_SEEN), size]


def _decode_features(op: str, shapes: Shapes, base: Floats, device: DeviceSpec) -> list[Floats]:
    requests, context, heads, kv_heads, head_dim, size = (shapes[name] for name in AXES[op])
    flops = 4.0 * requests * heads * head_dim * context
    moved = requests * head_dim * (4.0 * heads + 2.0 * kv_heads * size * context)
    parts = (requests, context, heads, kv_heads, heads / kv_heads, head_dim, requests * kv_heads, requests * heads)
    columns = [np.log(part) for part in (base, *parts)]
    columns += [np.log(flops / device.bf16_flops), np.log(moved / device.dram_bytes_per_s), size]
    count = np.ceil(requests * kv_heads / device.sms)
    return [*columns, np.log(count), np.log(count * device.sms / (requests * kv_heads))]


_FEATURES: dict[str, Callable[[str, Shapes, Floats, DeviceSpec], list[Any]]] = {
    "gemm": _gemm_features,
    "attention_prefill": _prefill_features,
    "attention_decode": _decode_features,
}
