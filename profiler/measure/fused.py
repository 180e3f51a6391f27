"""Three kernels of a layer as one launch each, for CUDA. Imports triton, which torch's CUDA builds bring along.

Written out in torch each is a handful of launches and as many trips through memory, which a decode step, whose kernels
take microseconds, would feel most. The arithmetic is in fp32 and rounded where kernels.py rounds.
"""

from __future__ import annotations

from typing import Any

import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

COLUMNS = 1024
"""Columns of a block of the activation."""


def residual_norm(update: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """See kernels.residual_norm. All rows are contiguous."""
    rows, width = residual.shape
    block = triton.next_power_of_2(width)
    warps = min(16, max(1, block // 512))
    _residual_norm[(rows,)](update, residual, weight, out, width, eps, BLOCK=block, num_warps=warps)


def rotary_and_write(
    qkv: Tensor, rope: tuple[Tensor, Tensor], positions: Tensor, rows: Tensor, keys: Tensor, values: Tensor
) -> None:
    """See kernels.rotary_and_write. All tensors are contiguous."""
    tokens, total, head_dim = qkv.shape
    kv_heads, half = keys.shape[1], head_dim // 2
    _rotary[(tokens,)](
        qkv,
        *rope,
        positions,
        rows,
        keys,
        values,
        total - 2 * kv_heads,
        kv_heads,
        half,
        HEADS=triton.next_power_of_2(total),
        HALF=triton.next_power_of_2(half),
    )


def activation(gate_up: Tensor, out: Tensor) -> None:
    """See kernels.activation. All rows are contiguous."""
    rows, width = out.shape
    _activation[(rows, triton.cdiv(width, COLUMNS))](gate_up, out, width, BLOCK=COLUMNS)


def _jit(function: Any) -> Any:
    return triton.jit(function)


@_jit
def _residual_norm(update, residual, weight, out, width, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    columns = tl.arange(0, BLOCK)
    kept = columns < width
    at = tl.program_id(0).to(tl.int64) * width + columns
    total = tl.load(residual + at, mask=kept, other=0.0).to(tl.float32)
    total += tl.load(update + at, mask=kept, other=0.0).to(tl.float32)
    rounded = total.to(residual.dtype.element_ty)
    tl.store(residual + at, rounded, mask=kept)
    total = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(total * total, axis=0) / width + eps)
    factor = tl.load(weight + columns, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + at, (total * scale * factor).to(out.dtype.element_ty), mask=kept)


@_jit
def _rotary(  # type: ignore[no-untyped-def]
    qkv, cos, sin, positions, rows, keys, values, heads, kv_heads, half, HEADS: tl.constexpr, HALF: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    head, lane = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    total, turned = heads + 2 * kv_heads, head < heads + kv_heads
    kept = (head < total) & (lane < half)
    at = qkv + (token * total + head) * 2 * half + lane
    left = tl.load(at, mask=kept, other=0.0).to(tl.float32)
    right = tl.load(at + half, mask=kept, other=0.0).to(tl.float32)
    angle = tl.load(positions + token) * half + lane
    real = tl.where(turned, tl.load(cos + angle, mask=lane < half, other=1.0), 1.0)
    imaginary = tl.where(turned, tl.load(sin + angle, mask=lane < half, other=0.0), 0.0)
    new_left = (left * real - right * imaginary).to(qkv.dtype.element_ty)
    new_right = (right * real + left * imaginary).to(qkv.dtype.element_ty)
    tl.store(at, new_left, mask=kept & turned)
    tl.store(at + half, new_right, mask=kept & turned)
    row = tl.load(rows + token) * kv_heads
    key = keys + (row + head - heads) * 2 * half + lane
    tl.store(key, new_left, mask=kept & turned & (head >= heads))
    tl.store(key + half, new_right, mask=kept & turned & (head >= heads))
    value = values + (row + head - heads - kv_heads) * 2 * half + lane
    tl.store(value, new_left, mask=kept & (head >= heads + kv_heads))
    tl.store(value + half, new_right, mask=kept & (head >= heads + kv_heads))


@_jit
def _activation(gate_up, out, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kept = columns < width
    gate = tl.load(gate_up + row * 2 * width + columns, mask=kept, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + columns, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + row * width + columns, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=kept)
