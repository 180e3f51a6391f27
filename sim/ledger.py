"""KV blocks of one instance: how many there are, how many are free, and whose KV the free ones still hold."""

from __future__ import annotations

from bisect import insort

from policies.admission import blocks_for


class FreedPrefix:
    """Blocks that a pre-empted request gave back: the first of them still hold the start of its KV for a while.

    Free blocks are taken in the order in which they were freed, and a request's are freed last block first (as in
    vLLM's free list), so what is left of it is always a prefix.
    """

    __slots__ = ("_end", "_ledger", "_whole")

    def __init__(self, ledger: BlockLedger, whole: int, end: int) -> None:
        self._ledger = ledger
        self._whole = whole
        self._end = end

    @property
    def tokens(self) -> int:
        """Tokens, of whole blocks, whose KV nobody has overwritten."""
        return self._blocks * self._ledger.block_tokens

    @property
    def _blocks(self) -> int:
        return max(0, min(self._whole, self._end - self._ledger.head))

    def take_back(self, blocks: int) -> None:
        """Takes the first ``blocks`` of them out of the queue of free ones."""
        assert blocks <= self._blocks, "KV blocks taken back that others have taken"
        self._ledger.take_out(self._end - blocks, blocks)


class BlockLedger:
    """Counts blocks. Who holds them follows from the requests' token counts; ``Instance.check`` compares the two.

    Free blocks are a queue. Blocks are never named: one that is freed gets the next position, and ``head`` is the
    position of the next to be taken. Blocks taken out of the middle leave gaps, (position, blocks) pairs, which the
    head skips as it comes to them.
    """

    __slots__ = ("_gaps", "_tail", "block_tokens", "free", "head", "total")

    def __init__(self, total: int, block_tokens: int) -> None:
        if total < 1 or block_tokens < 1:
            raise ValueError(f"a KV cache of {total} blocks of {block_tokens} tokens cannot hold anything")
        self.total = total
        self.free = total
        self.block_tokens = block_tokens
        self.head = 0
        self._tail = total
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
        self._tail += blocks
        assert self.free <= self.total, "KV blocks given back twice"

    def give_prefix(self, blocks: int, tokens: int) -> FreedPrefix:
        """Gives back the blocks of a request with KV for ``tokens`` tokens, and keeps track of what becomes of them."""
        self.give(blocks)
        return FreedPrefix(self, tokens // self.block_tokens, self._tail)

    def take_out(self, position: int, blocks: int) -> None:
        """Takes free blocks from the middle of the queue."""
        self.free -= blocks
        assert self.free >= 0, "KV blocks taken that were not free"
        insort(self._gaps, (position, blocks))
