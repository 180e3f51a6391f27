"""Attention over a KV cache of slots: one seam, a body for CUDA and one for the CPU.

A cache is [slots * slot_tokens, kv_heads, head_dim]: a sequence owns a slot and its tokens lie there in order, so that
a batch is read in place, whatever the order of its slots. A launch holds any mix of sequences, each with new tokens
over those already cached: prefill chunks, decode steps (one new token) or both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Sequenced(NamedTuple):
    """One sequence in a launch: its ``slot``, its ``new`` tokens, and those ``cached`` before them."""

    slot: int
    new: int
    cached: int


@dataclass(frozen=True, slots=True)
class Segments:
    """The sequences of a launch, on the device as its kernels read them and on the host as they were given.

    positions, rows: of every new token, in its sequence and in the cache, [tokens] int64.
    query_starts, key_starts: first query and first cache row of each sequence, int32, one more than sequences.
    used: tokens of each sequence after the launch, int32.
    last: row of each sequence's last new token among the launch's tokens, [sequences] int64.
    """

    sequences: tuple[Sequenced, ...]
    slot_tokens: int
    positions: Tensor
    rows: Tensor
    query_starts: Tensor
    key_starts: Tensor
    used: Tensor
    last: Tensor
    longest_query: int
    longest_key: int

    @classmethod
    def of(cls, sequences: Sequence[Sequenced], slot_tokens: int, device: torch.device) -> Segments:
        """Raises ValueError for a sequence that does not fit its slot."""
        check_fit(sequences, slot_tokens)
        new = torch.tensor([sequence.new for sequence in sequences])
        cached = torch.tensor([sequence.cached for sequence in sequences])
        slots = torch.tensor([sequence.slot for sequence in sequences])
        ends = new.cumsum(0)
        within = torch.arange(int(ends[-1])) - (ends - new).repeat_interleave(new)
        positions = within + cached.repeat_interleave(new)
        starts = torch.cat([ends.new_zeros(1), ends])
        keys = slots * slot_tokens
        return cls(
            tuple(sequences),
            slot_tokens,
            positions.to(device),
            (positions + keys.repeat_interleave(new)).to(device),
            starts.to(device, torch.int32),
            torch.cat([keys, keys[-1:] + slot_tokens]).to(device, torch.int32),
            (cached + new).to(device, torch.int32),
            (ends - 1).to(device),
            int(new.max()),
            int((cached + new).max()),
        )

    def refill(self, other: Segments) -> None:
        """Takes over the device side of ``other``, which has as many sequences and tokens.

        A captured graph reads these tensors, so the next step of a batch is written into them. The host side is the
        captured one still: its longest query and key bound what a replay may be given.
        """
        if other.longest_key > self.longest_key or other.longest_query > self.longest_query:
            raise ValueError(
                f"a graph captured for keys up to {self.longest_key} cannot run {other.longest_key}; capture longer"
            )
        for name in ("positions", "rows", "query_starts", "key_starts", "used", "last"):
            getattr(self, name).copy_(getattr(other, name))


def check_fit(sequences: Sequence[Sequenced], slot_tokens: int) -> None:
    """Raises ValueError for a sequence that does not fit its slot."""
    for sequence in sequences:
        if sequence.new < 1 or sequence.cached + sequence.new > slot_tokens:
            raise ValueError(
                f"a sequence of {sequence.cached} cached and {sequence.new} new tokens does not fit a slot of "
                f"{slot_tokens}; new must be 1 or more and both together no more than the slot"
            )


def attention(query: Tensor, keys: Tensor, values: Tensor, segments: Segments, out: Tensor) -> Tensor:
    """[tokens, heads, head_dim]: causal attention of every new token over its own sequence.

    ``query`` [tokens, heads, head_dim] may be a strided view with contiguous heads; ``keys`` and ``values`` are the
    cache, new tokens written already. The result lies in ``out`` where the device's kernel can write there.
    """
    if query.is_cuda:
        return _flash(query, keys, values, segments)
    _by_sequence(query, keys, values, segments, out)
    return out


def _flash(query: Tensor, keys: Tensor, values: Tensor, segments: Segments) -> Tensor:
    """One variable-length kernel. With ``seqused_k`` key starts need not be sorted nor adjacent: slots in any order.

    A step of one new token each is not causal (its only row sees all keys), which lets the kernel fold the query
    heads of a KV head into rows and split the keys.
    """
    causal = segments.longest_query > 1
    result: tuple[Tensor, ...] = torch.ops.aten._flash_attention_forward(
        query,
        keys,
        values,
        segments.query_starts,
        segments.key_starts,
        segments.longest_query,
        segments.longest_key,
        0.0,
        causal,
        False,
        scale=None,
        seqused_k=segments.used,
    )
    return result[0]


def _by_sequence(query: Tensor, keys: Tensor, values: Tensor, segments: Segments, out: Tensor) -> None:
    """A call a sequence. The query heads of a KV head are rows of one product, so K and V are never repeated."""
    kv_heads, head_dim = keys.shape[1:]
    group = query.shape[1] // kv_heads
    first = 0
    for slot, new, cached in segments.sequences:
        start, used = slot * segments.slot_tokens, cached + new
        key, value = (part[start : start + used].transpose(0, 1) for part in (keys, values))
        rows = query[first : first + new]
        target = out[first : first + new]
        if new == 1:
            result = functional.scaled_dot_product_attention(
                rows.reshape(1, kv_heads, group, head_dim), key[None], value[None]
            )
            target.copy_(result.reshape(1, kv_heads * group, head_dim))
        else:
            result = functional.scaled_dot_product_attention(
                rows.view(new, kv_heads, group, head_dim).permute(1, 2, 0, 3),
                key.unsqueeze(1).expand(-1, group, -1, -1),
                value.unsqueeze(1).expand(-1, group, -1, -1),
                attn_mask=_lower_right(new, used) if cached else None,
                is_causal=not cached,
            )
            target.view(new, kv_heads, group, head_dim).copy_(result.permute(2, 0, 1, 3))
        first += new


@lru_cache(maxsize=8)
def _lower_right(new: int, used: int) -> Tensor:
    """The causal mask of ``new`` queries at the end of ``used`` keys; the same in every layer of a launch."""
    return torch.ones(new, used, dtype=torch.bool).tril(used - new)
