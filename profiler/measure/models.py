"""What of a model can be run here, and its matrix products."""

from __future__ import annotations

from dataclasses import replace

from profiler.specs import ModelSpec

LEAST_LAYERS = 4
LAUNCHED = 4
"""Layers of a launch that host time is measured for: as many as a policy launches at a time by default."""


def projections(model: ModelSpec) -> dict[str, tuple[int, int]]:
    """(columns n, depth k) of every matrix product of the model."""
    query, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    return {
        "qkv": (query + 2 * kv, model.hidden),
        "o": (model.hidden, query),
        "gate_up": (2 * model.intermediate, model.hidden),
        "down": (model.hidden, model.intermediate),
        "lm_head": (model.vocab, model.hidden),
    }


def check_model(model: ModelSpec) -> None:
    """Raises ValueError for a model that these kernels do not cover."""
    lacking = {
        "a mixture of experts": model.experts > 0,
        "an MLP without a gate": not model.gated_mlp,
        "learned positions": model.learned_positions > 0,
        "an odd head size": model.head_dim % 2 == 1,
        f"{model.dtype} weights": model.dtype != "bf16",
        f"a {model.kv_dtype} KV cache": model.kv_dtype != "bf16",
    }
    for what, lacks in lacking.items():
        if lacks:
            raise ValueError(
                f"model {model.name} has {what}, which cannot be run here; take a dense bf16 model with rotary "
                f"positions and a gated MLP, such as Llama-3.1-8B"
            )


def sets_of(model: ModelSpec, item_bytes: int, cache_bytes: int) -> int:
    """Layers whose weights are kept: more than the cache holds of the smallest matrix, or all."""
    smallest = min(n * k for n, k in projections(model).values()) * item_bytes
    return min(model.layers, max(LEAST_LAYERS, copies(smallest, cache_bytes)))


def copies(size: int, cache_bytes: int) -> int:
    """How many inputs of so many bytes are more than twice the cache."""
    return -(-2 * cache_bytes // size) + 1


def ghost(model: ModelSpec) -> ModelSpec:
    """A model of as many kernels and hardly any work in them: what a pass takes beyond its kernels shows best here."""
    return replace(
        model, name=f"{model.name}, narrow", hidden=64, intermediate=64, heads=2, kv_heads=1, head_dim=32, vocab=256
    )
