"""KV blocks of one instance: how many there are, how many are free."""

from __future__ import annotations

from policies.admission import blocks_for


class BlockLedger:
    """Counts blocks. Who holds them follows from the requests' token counts; ``Instance.check`` compares the two."""

    __slots__ = ("block_tokens", "free", "total")

    def __init__(self, total: int, block_tokens: int) -> None:
        if total < 1 or block_tokens < 1:
            raise ValueError(f"a KV cache of {total} blocks of {block_tokens} tokens cannot hold anything")
        self.total = total
        self.free = total
        self.block_tokens = block_tokens

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens of one request."""
        return blocks_for(tokens, self.block_tokens)

    def take(self, blocks: int) -> None:
        """Takes blocks; the caller has checked that they are free."""
        self.free -= blocks
        assert self.free >= 0, "KV blocks taken that were not free"

    def give(self, blocks: int) -> None:
        """Gives blocks back."""
        self.free += blocks
        assert self.free <= self.total, "KV blocks given back twice"
