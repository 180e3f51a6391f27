"""The shape of one launch: what a latency model needs to know of a step, and nothing about requests.

Work is built several times for every simulated step, so it is a named tuple: a frozen dataclass of as many
fields costs three times as much to make.
"""

from __future__ import annotations

from typing import NamedTuple


class Work(NamedTuple):
    """Token counts of one launch on one instance.

    prefill: (new_tokens, cached_tokens) of each sequence being prefilled; cached tokens are already in the KV.
    decode_requests: sequences that decode one token each.
    decode_context_tokens: KV tokens those sequences attend to, summed, the new tokens included.
    layers: transformer layers launched; None means the whole model, embedding to sampling.
    head: with ``layers`` given, whether the launch ends with the LM head and sampling.
    kv_transfer_tokens: tokens whose KV crosses the link; such work has nothing else in it.
    """

    prefill: tuple[tuple[int, int], ...] = ()
    decode_requests: int = 0
    decode_context_tokens: int = 0
    layers: int | None = None
    head: bool = True
    kv_transfer_tokens: int = 0

    @property
    def new_tokens(self) -> int:
        """Tokens that pass through the GEMMs: every prefill token and one per decoding sequence."""
        return sum(new for new, _ in self.prefill) + self.decode_requests
