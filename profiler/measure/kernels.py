"""The kernels of a dense decoder-only transformer, in torch, each into a buffer that the caller keeps.

Shapes: tokens come first, then width or heads. Weights are [columns, depth], as checkpoints hold them. Nothing here
allocates what outlives the call, so every function can be captured in a CUDA graph and replayed.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional

from profiler.measure.numerics import LLAMA3, NORM_EPS, Numerics


@cache
def fused_kernels() -> ModuleType | None:
    """The kernels of one launch each, where triton is installed."""
    try:
        from profiler.measure import fused
    except ImportError:
        return None
    return fused


def gemm(inputs: Tensor, weight: Tensor, out: Tensor) -> None:
    """``out`` [m, n] = ``inputs`` [m, k] times the transpose of ``weight`` [n, k]."""
    torch.mm(inputs, weight.t(), out=out)


def residual_norm(update: Tensor, residual: Tensor, weight: Tensor, out: Tensor, eps: float = NORM_EPS) -> None:
    """``residual`` += ``update``; ``out`` is the RMSNorm of the sum, scaled by ``weight``."""
    if residual.is_cuda and (fused := fused_kernels()):
        fused.residual_norm(update, residual, weight, eps, out)
        return
    residual.add_(update)
    rms_norm(residual, weight, out, eps)


def rms_norm(inputs: Tensor, weight: Tensor, out: Tensor, eps: float = NORM_EPS) -> None:
    """RMSNorm over the last dimension. ``out`` may be ``inputs``."""
    if inputs.is_cuda:
        out.copy_(functional.rms_norm(inputs, (inputs.shape[-1],), weight, eps))
        return
    # Three passes without a temporary of the inputs' size; the fused operator is a composite on the CPU.
    norm = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True, dtype=torch.float32)
    scale = torch.rsqrt(norm.square_().div_(inputs.shape[-1]).add_(eps))
    torch.mul(inputs, scale, out=out)
    out.mul_(weight)


def rope_tables(
    positions: int, head_dim: int, device: torch.device, numerics: Numerics = LLAMA3
) -> tuple[Tensor, Tensor]:
    """(cos, sin) of every position, [positions, head_dim / 2] in fp32."""
    frequencies = numerics.frequencies(head_dim).to(device)
    angles = torch.outer(torch.arange(positions, device=device, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def rotary_and_write(
    qkv: Tensor, rope: tuple[Tensor, Tensor], positions: Tensor, rows: Tensor, keys: Tensor, values: Tensor
) -> None:
    """Turns the queries and keys in ``qkv`` [tokens, heads + 2 kv_heads, head_dim] in place, and stores K and V.

    ``positions`` of the tokens in their sequences; ``rows`` of the cache [rows, kv_heads, head_dim] they are kept in.
    """
    if qkv.is_cuda and (fused := fused_kernels()):
        fused.rotary_and_write(qkv, rope, positions, rows, keys, values)
        return
    kv_heads = keys.shape[1]
    turned = qkv[:, : qkv.shape[1] - kv_heads]
    half = qkv.shape[-1] // 2
    left, right = turned[..., :half], turned[..., half:]
    cos, sin = (table.index_select(0, positions).unsqueeze(1) for table in rope)
    turned_left = left * cos - right * sin
    torch.add(right * cos, left * sin, out=right)
    left.copy_(turned_left)
    keys.index_copy_(0, rows, turned[:, -kv_heads:])
    values.index_copy_(0, rows, qkv[:, -kv_heads:])


def activation(gate_up: Tensor, out: Tensor) -> None:
    """SwiGLU: SiLU of the first half of ``gate_up``'s columns times the second."""
    if gate_up.is_cuda and (fused := fused_kernels()):
        fused.activation(gate_up, out)
        return
    gate, up = gate_up.chunk(2, dim=-1)
    torch.mul(functional.silu(gate), up, out=out)


def embed(table: Tensor, tokens: Tensor, out: Tensor) -> None:
    """Rows of the embedding table."""
    torch.index_select(table, 0, tokens, out=out)


def greedy(logits: Tensor, out: Tensor) -> None:
    """The likeliest token of each row of logits."""
    torch.argmax(logits, dim=-1, out=out)


def sample(logits: Tensor, temperature: Tensor, out: Tensor, generator: torch.Generator | None = None) -> None:
    """A token of each row, drawn at its ``temperature`` [rows, 1] in fp32; the likeliest where that is 0.

    An exponential race: the argmax of p / Exp(1) is a draw from p. It reads nothing back to the host.
    """
    scores = torch.softmax(logits.float() / temperature.clamp(min=1e-6), dim=-1)
    race = torch.empty_like(scores).exponential_(generator=generator).clamp_(min=1e-30)
    drawn = torch.argmax(scores / race, dim=-1)
    torch.where(temperature.squeeze(-1) > 0, drawn, torch.argmax(logits, dim=-1), out=out)


def copy(source: Tensor, target: Tensor) -> None:
    """Device memory to device memory."""
    target.copy_(source)
