"""A target as a call that can be timed: its inputs made, its buffers ready, its weights and KV rotated.

Weights and KV come from memory when a model is served, because a pass touches more of them than a cache holds; the
activations of a kernel were written just before it. So the first are rotated among more copies than the cache holds,
as far as the model has layers, and the second are not. Values are random: zeros run faster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from profiler.measure import kernels
from profiler.measure.attention import Segments, Sequenced, attention
from profiler.measure.grid import HOST_CONTEXT, Target
from profiler.measure.models import LAUNCHED, copies, ghost, projections, sets_of
from profiler.measure.transformer import KVCache, Scratch, Transformer, Weights
from profiler.specs import ModelSpec

Call = Callable[[int], object]
"""Runs the target once, with the rotation's inputs of that number."""


class Bench:
    """Makes calls for one model on one device, with weights that all of them share."""

    def __init__(self, model: ModelSpec, device: torch.device, dtype: torch.dtype, cache_bytes: int) -> None:
        self.model, self.device, self.dtype, self.cache_bytes = model, device, dtype, cache_bytes
        self.sets = sets_of(model, dtype.itemsize, cache_bytes)
        self.shapes = projections(model)

    @cached_property
    def weights(self) -> Weights:
        return Weights.random(self.model, self.device, self.dtype, layers=self.sets)

    @cached_property
    def heads(self) -> list[Tensor]:
        """The LM head, and as many copies of it as a pass has other weights: these come between two runs of it."""
        head = self.weights.lm_head
        size = head.nbytes
        others = sum(n * k for name, (n, k) in self.shapes.items() if name != "lm_head") * self.sets * head.itemsize
        more = 0 if size > 2 * self.cache_bytes else min(copies(size, self.cache_bytes) - 1, -(-others // size))
        return [head, *(head.clone() for _ in range(more))]

    @cached_property
    def narrow(self) -> Bench:
        """For host time: all layers, each almost free."""
        return Bench(ghost(self.model), self.device, self.dtype, 1 << 60)

    def call(self, target: Target) -> Call:
        """Raises ValueError for a kernel that cannot be measured on one device."""
        make = getattr(self, f"_{target.kernel}", None)
        if make is None:
            raise ValueError(f"kernel {target.kernel!r} cannot be measured on one device")
        call: Call = make(*target.shape)
        return call

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device, dtype=self.dtype)

    def _matrices(self, columns: int, depth: int) -> list[Tensor]:
        for name, shape in self.shapes.items():
            if shape == (columns, depth):
                if name == "lm_head":
                    return self.heads
                return [getattr(layer, name) for layer in self.weights.layers]
        return [self._random(columns, depth)]

    def _gemm(self, m: int, n: int, k: int) -> Call:
        inputs, out, weights = self._random(m, k), self._random(m, n), self._matrices(n, k)
        return lambda turn: kernels.gemm(inputs, weights[turn % len(weights)], out)

    def _attention(self, sequences: int, new: int, cached: int, heads: tuple[int, int, int]) -> Call:
        query_heads, kv_heads, head_dim = heads
        slot = cached + new
        segments = Segments.of([Sequenced(i, new, cached) for i in range(sequences)], slot, self.device)
        size = 2 * sequences * slot * kv_heads * head_dim * self.dtype.itemsize
        first = self._random(sequences * slot, kv_heads, head_dim), self._random(sequences * slot, kv_heads, head_dim)
        more = min(self.sets, copies(size, self.cache_bytes)) - 1
        # Other memory is what matters, and a copy is quicker made than new values.
        caches = [first, *((first[0].clone(), first[1].clone()) for _ in range(more))]
        # Queries are read out of the QKV product's output, so they are strided here too.
        query = self._random(sequences * new, query_heads + 2 * kv_heads, head_dim)[:, :query_heads]
        out = self._random(sequences * new, query_heads, head_dim)
        return lambda turn: attention(query, *caches[turn % len(caches)], segments, out)

    def _attention_prefill(self, sequences: int, new: int, cached: int, *heads: int) -> Call:
        return self._attention(sequences, new, cached, _three(heads))

    def _attention_decode(self, requests: int, context: int, *heads: int) -> Call:
        return self._attention(requests, 1, context - 1, _three(heads))

    def _norm(self, tokens: int, width: int) -> Call:
        update, residual, out = (self._random(tokens, width) for _ in range(3))
        # Timed over and over, the sum must not grow.
        update.mul_(1e-3)
        weight = torch.ones(width, device=self.device, dtype=self.dtype)
        return lambda turn: kernels.residual_norm(update, residual, weight, out)

    def _rotary(self, tokens: int, heads: int, kv_heads: int, head_dim: int) -> Call:
        qkv = self._random(tokens, heads + 2 * kv_heads, head_dim)
        rows = torch.arange(tokens, device=self.device)
        keys, values = self._random(tokens, kv_heads, head_dim), self._random(tokens, kv_heads, head_dim)
        rope = kernels.rope_tables(min(tokens, self.model.max_context), head_dim, self.device)
        positions = rows % len(rope[0])
        return lambda turn: kernels.rotary_and_write(qkv, rope, positions, rows, keys, values)

    def _activation(self, tokens: int, width: int) -> Call:
        gate_up, out = self._random(tokens, 2 * width), self._random(tokens, width)
        return lambda turn: kernels.activation(gate_up, out)

    def _embedding(self, tokens: int, width: int) -> Call:
        table = self.weights.embedding if width == self.model.hidden else self._random(256, width)
        ids = torch.randint(len(table), (tokens,), device=self.device)
        out = self._random(tokens, width)
        return lambda turn: kernels.embed(table, ids, out)

    def _sampling(self, tokens: int, width: int) -> Call:
        logits, out = self._random(tokens, width), torch.zeros(tokens, device=self.device, dtype=torch.int64)
        return lambda turn: kernels.greedy(logits, out)

    def _copy(self, size: int) -> Call:
        piece = torch.randint(256, (min(size, 1 << 20),), device=self.device, dtype=torch.uint8)
        source = piece.repeat(-(-size // len(piece)))[:size]
        target = torch.zeros_like(source)
        return lambda turn: kernels.copy(source, target)

    def _prefill_layers(self, sequences: int, new: int, cached: int, layers: int) -> Call:
        return self._layers([Sequenced(i, new, cached) for i in range(sequences)], layers)

    def _decode_layers(self, requests: int, context: int, layers: int) -> Call:
        return self._layers([Sequenced(i, 1, context - 1) for i in range(requests)], layers)

    def _host_launch(self, tokens: int) -> Call:
        sequences = [Sequenced(i, 1, HOST_CONTEXT - 1) for i in range(tokens)]
        return self.narrow._layers(sequences, min(LAUNCHED, self.model.layers))

    def _host_pass(self, tokens: int) -> Call:
        narrow = self.narrow
        sequences = [Sequenced(i, 1, HOST_CONTEXT - 1) for i in range(tokens)]
        model, segments = narrow._transformer(sequences, narrow.model.layers)
        ids = narrow._ids(tokens)
        return lambda turn: model.step(ids, segments)

    def _layers(self, sequences: list[Sequenced], layers: int) -> Call:
        groups = max(1, self.sets // layers)
        model, segments = self._transformer(sequences, layers * groups)
        model.begin(self._ids(sum(sequence.new for sequence in sequences)))

        def call(turn: int) -> None:
            first = turn % groups * layers
            model.layers(segments, first, first + layers)

        return call

    def _transformer(self, sequences: list[Sequenced], layers: int) -> tuple[Transformer, Segments]:
        slot = sequences[0].cached + sequences[0].new
        tokens = sum(sequence.new for sequence in sequences)
        cache = KVCache.of(self.model, len(sequences), slot, self.device, self.dtype, layers)
        scratch = Scratch(self.model, tokens, len(sequences), self.device, self.dtype)
        return Transformer(self.model, self.weights, cache, scratch), Segments.of(sequences, slot, self.device)

    def _ids(self, count: int) -> Tensor:
        return torch.randint(self.model.vocab, (count,), device=self.device)


def _three(heads: tuple[int, ...]) -> tuple[int, int, int]:
    query, kv, head_dim = heads
    return query, kv, head_dim
