"""KV that outlives its request: the cached prefixes of one instance, found again by the hashes of their blocks.

As in vLLM's automatic prefix caching and SGLang's radix cache: whole blocks that a request has computed can be found
by others as long as nobody has taken their room. While requests use them they are held, once for all who share them;
after that they are free like any others, and since free blocks are taken in the order in which they were freed, those
least recently used go first. A request frees its last block first, so what is left of a prefix is always its start.

A request's tokens are described by a :class:`Chain`. A hashed block of a trace is as many KV blocks as it has tokens
for, and the cache keeps one :class:`_Node` for each hash: a prefix of that hashed block, in whole KV blocks. What a
pre-empted request had beyond its hashes is kept in the same way, under a name of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sim.ledger import BlockLedger

ENDLESS = 1 << 62
"""KV blocks of a node that has no upper end: that of what a request computes beyond its hashes."""

Key = int | str
Segment = tuple[Key, int, int]
"""A key with the first KV block that it stands for and the one after its last."""


class HashedBlocks(NamedTuple):
    """How a trace hashes: tokens of a hashed block, and whether the hashes go on over the answer."""

    tokens: int
    answers: bool = False


class Chain(NamedTuple):
    """What a request's tokens are, for finding them in a cache.

    keys: hashes of its blocks of ``span`` KV blocks each, every one of them standing for all before it too.
    blocks: whole KV blocks that they cover; the last hash may stand for fewer than ``span``.
    own: the key of all that comes after them, which nobody else has.
    """

    keys: tuple[int, ...]
    span: int
    blocks: int
    own: str

    def segments(self, first: int = 0) -> Iterator[Segment]:
        """From the ``first`` on, in order."""
        span, covered = self.span, self.blocks
        for index in range(first, -(-covered // span)):
            yield self.keys[index], index * span, min((index + 1) * span, covered)
        yield self.own, covered, ENDLESS


class _Node:
    """The first ``blocks`` KV blocks of a hashed block. ``refs`` requests use them; with none they are free.

    end: where they lie in the queue of free blocks then, last block first: the position after the first's.
    """

    __slots__ = ("blocks", "end", "refs")

    def __init__(self) -> None:
        self.blocks = 0
        self.end = 0
        self.refs = 0


class Found(NamedTuple):
    """KV blocks found, how many of them requests hold, and the head of the free queue up to which this is so."""

    blocks: int
    held: int
    until: int


class PrefixCache:
    """The prefixes of one instance. ``held`` counts the KV blocks of nodes in use.

    version: changes with every change but blocks being taken. asked_tokens, hit_tokens: tokens that requests had to
    prefill as they began, and those of them that were cached.
    """

    def __init__(self, ledger: BlockLedger) -> None:
        self.ledger = ledger
        self.held = 0
        self.version = 0
        self.asked_tokens = 0
        self.hit_tokens = 0
        self._nodes: dict[Key, _Node] = {}
        self._evicted = 0

    def find(self, chain: Chain, most: int) -> Found:
        """The longest cached prefix of a chain, of ``most`` KV blocks at most."""
        found, held, until = 0, 0, ENDLESS
        for key, start, end in chain.segments():
            node = self._nodes.get(key)
            if node is None or start >= most:
                break
            blocks = min(self._alive(node), end - start, most - start)
            found += blocks
            if node.refs:
                held += blocks
            elif blocks:
                until = min(until, node.end - blocks)
            if blocks < end - start:
                break
        return Found(found, held, until)

    def join(self, key: Key, blocks: int = ENDLESS) -> _Node:
        """One more request uses the first ``blocks`` that are left of a node, or all; what others do not use of it is
        forgotten."""
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = _Node()
        if not node.refs:
            alive = self._alive(node)
            self._evicted += node.blocks - alive
            node.blocks = min(alive, blocks)
            self.ledger.take_out(node.end - node.blocks, node.blocks)
            self.held += node.blocks
        node.refs += 1
        self.version += 1
        return node

    def grow(self, node: _Node, blocks: int) -> None:
        """Blocks of a request that uses the node become the node's, up to ``blocks`` in all."""
        self.held += blocks - node.blocks
        node.blocks = blocks
        self.version += 1

    def leave(self, node: _Node) -> None:
        """One request fewer uses a node; after the last its blocks are free, and found again for a while."""
        node.refs -= 1
        self.version += 1
        if not node.refs:
            self.ledger.give(node.blocks)
            node.end = self.ledger.tail
            self.held -= node.blocks

    @property
    def evicted_blocks(self) -> int:
        """Cached KV blocks that nobody used and whose room was needed, so far."""
        return self._evicted + sum(node.blocks - self._alive(node) for node in self._nodes.values())

    @property
    def kept_blocks(self) -> int:
        """KV blocks that can be found and that nobody uses: some of the free ones."""
        return sum(self._alive(node) for node in self._nodes.values() if not node.refs)

    def _alive(self, node: _Node) -> int:
        if node.refs:
            return node.blocks
        return max(0, min(node.blocks, node.end - self.ledger.head))


class CachedPrefix:
    """What of a request's KV its instance has in its cache: found while it waits, used from its first step on.

    most: KV blocks that it may use of others, so that at least one token is computed.
    blocks: KV blocks of it, from the start, that are the cache's.
    """

    __slots__ = ("_begun", "_cache", "_chain", "_found", "_most", "_nodes", "_version", "blocks")

    def __init__(self, cache: PrefixCache, chain: Chain, prefill_tokens: int) -> None:
        self._cache = cache
        self._chain = chain
        self._most = (prefill_tokens - 1) // cache.ledger.block_tokens
        self._nodes: list[_Node] = []
        self._begun = False
        self._version = -1
        self._found = Found(0, 0, 0)
        self.blocks = 0

    @property
    def tokens(self) -> int:
        """Tokens, of whole blocks, that it need not compute; 0 once it has begun."""
        return 0 if self._begun else self._look().blocks * self._cache.ledger.block_tokens

    @property
    def shared_blocks(self) -> int:
        """KV blocks of it that others use too: those it will find, or, once it has begun, those that it has."""
        if not self._begun:
            return self._look().held
        shared = 0
        for node, (_, start, end) in zip(self._nodes, self._chain.segments(), strict=False):
            if node.refs > 1:
                shared += min(end, self.blocks) - start
        return shared

    def begin(self, blocks: int, prefill_tokens: int) -> None:
        """Takes over the first ``blocks`` cached KV blocks. No more than were found."""
        assert blocks <= self._look().blocks, "KV blocks taken over that others have taken"
        cache = self._cache
        cache.asked_tokens += prefill_tokens
        cache.hit_tokens += blocks * cache.ledger.block_tokens
        for key, start, end in self._chain.segments():
            if start >= blocks:
                break
            self._nodes.append(cache.join(key, min(end, blocks) - start))
        self.blocks = blocks
        self._begun = True

    def extend(self, blocks: int, *, leaving: bool = False, own: bool = False) -> None:
        """Others can find its first ``blocks`` KV blocks from now on, all of which it has computed or taken over.

        Where others have computed the same meanwhile, one copy stays and that of this request is freed. With ``own``
        what comes after its hashes is kept too. A request that is ``leaving`` adds nothing to what others use: that
        would be held for as long as they stay, though all it does not share is to be free.
        """
        cache, first = self._cache, max(0, len(self._nodes) - 1)
        blocks = blocks if own else min(blocks, self._chain.blocks)
        for index, (key, start, end) in enumerate(self._chain.segments(first), first):
            want, have = min(blocks, end) - start, max(0, self.blocks - start)
            if want <= 0:
                break
            if index == len(self._nodes):
                self._nodes.append(cache.join(key))
            node = self._nodes[index]
            shorter = leaving and node.refs > 1 and node.blocks < want
            want = node.blocks if shorter else want
            double = min(want, node.blocks) - have
            if double > 0:
                cache.ledger.give(double)
            if want > node.blocks:
                cache.grow(node, want)
            self.blocks = max(self.blocks, start + want)
            if shorter:
                break

    def leave(self) -> None:
        """Uses none of them any more."""
        for node in reversed(self._nodes):
            self._cache.leave(node)
        self._nodes.clear()
        self.blocks = 0

    def _look(self) -> Found:
        cache = self._cache
        if self._version != cache.version or cache.ledger.head > self._found.until:
            self._found, self._version = cache.find(self._chain, self._most), cache.version
        return self._found
