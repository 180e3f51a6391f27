"""KV blocks of one instance: how many there are, how many are free, and in which order those will be taken."""

from __future__ import annotations

from bisect import insort

from policies.admission import blocks_for


class BlockLedger:
    """Counts blocks. Who holds them follows from the requests' token counts; ``Instance.check`` compares the two.

    Free blocks are a queue, as in vLLM: those freed first are taken first, and until then hold what they held. Blocks
    are never named: one that is freed gets the next position, ``tail`` is that of the next to come and ``head`` that
    of the next to be taken. Blocks taken out of the middle leave gaps, (position, blocks) pairs, which the head skips
    as it comes to them.
    """

    __slots__ = ("_gaps", "block_tokens", "free", "head", "tail", "total")

    def __init__(self, total: int, block_tokens: int) -> None:
        if total < 1 or block_tokens < 1:
            raise ValueError(f"a KV cache of {total} blocks of {block_tokens} tokens cannot hold anything")
        self.total = total
        self.free = total
        self.block_tokens = block_tokens
        self.head = 0
        self.tail = total
        self._gaps: list[tuple[int, int]] = []

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens of one request."""
        return blocks_for(tokens, self.block_tokens)

    def take(self, blocks: int) -> None:
        """Takes blocks; the caller has checked that they are free."""
        self.free -= blocks
        assert self.free >= 0, "KV blocks taken that were not free"
        self.head += blocks
        gaps = self._gaps
        while gaps and gaps[0][0] < self.head:
            self.head += gaps.pop(0)[1]

    def give(self, blocks: int) -> None:
        """Gives blocks back."""
        self.free += blocks
        self.tail += blocks
        assert self.free <= self.total, "KV blocks given back twice"

    def take_out(self, position: int, blocks: int) -> None:
        """Takes free blocks from the middle of the queue."""
        if not blocks:
            return
        self.free -= blocks
        assert self.free >= 0, "KV blocks taken that were not free"
        insort(self._gaps, (position, blocks))
