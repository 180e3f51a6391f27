"""Whole layers and passes of a model, built from the kernels: what a lane of the device runner launches.

Weights and the KV cache are shared by lanes; scratch buffers belong to one lane, because two launches may be in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor

from profiler.measure import kernels
from profiler.measure.attention import Segments, attention
from profiler.measure.models import projections
from profiler.measure.numerics import LLAMA3, Numerics
from profiler.specs import ModelSpec


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's matrices, [columns, depth]; ``query_norm`` and ``key_norm`` where the model has them."""

    attention_norm: Tensor
    qkv: Tensor
    o: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's parameters on a device."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    lm_head: Tensor

    @classmethod
    def random(
        cls, model: ModelSpec, device: torch.device, dtype: torch.dtype, *, layers: int | None = None, seed: int = 0
    ) -> Self:
        """Random ones that keep activations near 1: timings do not depend on values, save that zeros run faster."""
        generator = torch.Generator(device).manual_seed(seed)
        matrix = partial(_matrix, device=device, dtype=dtype, generator=generator)
        ones = partial(torch.ones, device=device, dtype=dtype)
        shapes = projections(model)

        def layer() -> LayerWeights:
            norms = (ones(model.head_dim), ones(model.head_dim)) if model.qk_norm else (None, None)
            return LayerWeights(
                ones(model.hidden),
                matrix(*shapes["qkv"]),
                matrix(*shapes["o"]),
                ones(model.hidden),
                matrix(*shapes["gate_up"]),
                matrix(*shapes["down"]),
                *norms,
            )

        table = matrix(*shapes["lm_head"])
        count = model.layers if layers is None else layers
        return cls(
            table,
            tuple(layer() for _ in range(count)),
            ones(model.hidden),
            table if model.tied_embeddings else matrix(*shapes["lm_head"]),
        )


def _matrix(
    columns: int, depth: int, *, device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    values = torch.empty(columns, depth, device=device, dtype=dtype)
    return values.normal_(0, depth**-0.5, generator=generator)


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of ``slots`` sequences of up to ``slot_tokens`` tokens, a tensor a layer."""

    slots: int
    slot_tokens: int
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @classmethod
    def of(
        cls,
        model: ModelSpec,
        slots: int,
        slot_tokens: int,
        device: torch.device,
        dtype: torch.dtype,
        layers: int | None = None,
    ) -> Self:
        """Filled with random values, since attention over zeros would be timed too fast."""
        count = model.layers if layers is None else layers
        shape = (slots * slot_tokens, model.kv_heads, model.head_dim)
        made = partial(torch.randn, shape, device=device, dtype=dtype)
        return cls(slots, slot_tokens, tuple(made() for _ in range(count)), tuple(made() for _ in range(count)))


class Scratch:
    """One lane's buffers for launches of up to ``tokens`` tokens and ``rows`` sequences."""

    def __init__(self, model: ModelSpec, tokens: int, rows: int, device: torch.device, dtype: torch.dtype) -> None:
        made = partial(torch.zeros, device=device, dtype=dtype)
        self.residual = made(tokens, model.hidden)
        self.hidden = made(tokens, model.hidden)
        self.normed = made(tokens, model.hidden)
        self.qkv = made(tokens, model.heads + 2 * model.kv_heads, model.head_dim)
        self.attended = made(tokens, model.heads, model.head_dim)
        self.gate_up = made(tokens, 2 * model.intermediate)
        self.activated = made(tokens, model.intermediate)
        self.last = made(rows, model.hidden)
        self.logits = made(rows, model.vocab)
        self.tokens = torch.zeros(rows, device=device, dtype=torch.int64)


class Transformer:
    """A model in one lane: ``begin``, layers in groups of any size, ``finish``. Launches run on the current stream.

    Between calls the state of the launch (residual and the last layer's output) stays in ``scratch``, so a prefill
    may stop after any layer and go on later, as long as its lane runs nothing else in between.
    """

    def __init__(
        self, model: ModelSpec, weights: Weights, cache: KVCache, scratch: Scratch, *, numerics: Numerics = LLAMA3
    ) -> None:
        self.model, self.weights, self.cache, self.scratch = model, weights, cache, scratch
        self.rope = kernels.rope_tables(cache.slot_tokens, model.head_dim, weights.embedding.device, numerics)
        self._eps = numerics.norm_eps

    def begin(self, tokens: Tensor) -> None:
        """Embedding of the launch's ``tokens`` [tokens] int64."""
        scratch, count = self.scratch, len(tokens)
        kernels.embed(self.weights.embedding, tokens, scratch.residual[:count])
        scratch.hidden[:count].zero_()

    def layers(self, segments: Segments, first: int = 0, last: int | None = None) -> None:
        """Layers ``first`` to before ``last``, all by default."""
        count = len(segments.positions)
        for index in range(first, len(self.weights.layers) if last is None else last):
            self._attend(index, segments, count)
            self._mlp(index, count)

    def finish(self, segments: Segments) -> Tensor:
        """Logits [sequences, vocab] of each sequence's last token."""
        scratch, rows, count = self.scratch, len(segments.sequences), len(segments.positions)
        last, logits = scratch.last[:rows], scratch.logits[:rows]
        residual = scratch.residual[:count].add_(scratch.hidden[:count])
        torch.index_select(residual, 0, segments.last, out=last)
        kernels.rms_norm(last, self.weights.final_norm, last, self._eps)
        kernels.gemm(last, self.weights.lm_head, logits)
        return logits

    def next_tokens(
        self, segments: Segments, temperature: Tensor | float = 0.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """``finish``, then the next token of each sequence [sequences] int64, in the scratch's own buffer.

        ``temperature`` of all, or of each [sequences, 1] in fp32 on the device; the likeliest token where it is 0.
        """
        logits = self.finish(segments)
        out = self.scratch.tokens[: len(segments.sequences)]
        if isinstance(temperature, Tensor):
            kernels.sample(logits, temperature, out, generator)
        elif temperature > 0:
            same = torch.full((len(out), 1), temperature, device=logits.device, dtype=torch.float32)
            kernels.sample(logits, same, out, generator)
        else:
            kernels.greedy(logits, out)
        return out

    def step(
        self,
        tokens: Tensor,
        segments: Segments,
        temperature: Tensor | float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """A whole pass: ``begin``, all layers, ``next_tokens``."""
        self.begin(tokens)
        self.layers(segments)
        return self.next_tokens(segments, temperature, generator)

    def _attend(self, index: int, segments: Segments, count: int) -> None:
        scratch, weights, model = self.scratch, self.weights.layers[index], self.model
        normed, qkv = scratch.normed[:count], scratch.qkv[:count]
        residual, update = scratch.residual[:count], scratch.hidden[:count]
        kernels.residual_norm(update, residual, weights.attention_norm, normed, self._eps)
        kernels.gemm(normed, weights.qkv, qkv.view(count, -1))
        query, key = qkv[:, : model.heads], qkv[:, model.heads : -model.kv_heads]
        if weights.query_norm is not None and weights.key_norm is not None:
            kernels.rms_norm(query, weights.query_norm, query, self._eps)
            kernels.rms_norm(key, weights.key_norm, key, self._eps)
        keys, values = self.cache.keys[index], self.cache.values[index]
        kernels.rotary_and_write(qkv, self.rope, segments.positions, segments.rows, keys, values)
        attended = attention(query, keys, values, segments, scratch.attended[:count])
        kernels.gemm(attended.reshape(count, -1), weights.o, scratch.hidden[:count])

    def _mlp(self, index: int, count: int) -> None:
        scratch, weights = self.scratch, self.weights.layers[index]
        normed, gate_up, activated = scratch.normed[:count], scratch.gate_up[:count], scratch.activated[:count]
        residual, update = scratch.residual[:count], scratch.hidden[:count]
        kernels.residual_norm(update, residual, weights.mlp_norm, normed, self._eps)
        kernels.gemm(normed, weights.gate_up, gate_up)
        kernels.activation(gate_up, activated)
        kernels.gemm(activated, weights.down, scratch.hidden[:count])
