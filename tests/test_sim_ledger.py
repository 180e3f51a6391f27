"""The ledger of KV blocks against a queue that names every block: who keeps what after a pre-emption."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.ledger import BlockLedger
from sim.prefixcache import CachedPrefix, Chain, PrefixCache

TOTAL, SIZE = 24, 4


class NamedBlocks:
    """Free blocks by name, in the order in which they will be taken, and what each was last written with."""

    def __init__(self) -> None:
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(TOTAL))
        self.holds: dict[int, tuple[int, int]] = {}

    def take(self, count: int) -> list[int]:
        taken = [self.free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self.holds.pop(block, None)
        return taken

    def give(self, owner: int, blocks: list[int], whole: int) -> None:
        """Last block first. The first ``whole`` blocks are full and can be found again."""
        for place, block in reversed(list(enumerate(blocks))):
            self.free[block] = None
            if place < whole:
                self.holds[block] = (owner, place)

    def found(self, owner: int) -> list[int]:
        """The blocks of ``owner`` that still hold its KV, from the start."""
        by_place = {place: block for block, (who, place) in self.holds.items() if who == owner}
        prefix: list[int] = []
        while len(prefix) in by_place:
            prefix.append(by_place[len(prefix)])
        return prefix

    def take_back(self, blocks: list[int]) -> None:
        for block in blocks:
            del self.free[block], self.holds[block]


moves = st.lists(st.tuples(st.sampled_from(["admit", "push out", "finish", "grow"]), st.integers(0, 5)), max_size=60)


@settings(max_examples=300, deadline=None)
@given(moves, st.data())
def test_what_is_left_of_a_request_is_what_a_queue_of_named_blocks_says(moves, data):
    """Six requests come, grow, are pushed out and come back in any order; the counts agree throughout."""
    ledger, named = BlockLedger(TOTAL, SIZE), NamedBlocks()
    cache = PrefixCache(ledger)
    held: dict[int, list[int]] = {}
    away = {owner: waiting(cache, owner) for owner in range(6)}
    here: dict[int, CachedPrefix] = {}
    for move, owner in moves:
        if move == "admit" and owner not in held:
            kept = named.found(owner)
            blocks = data.draw(st.integers(max(1, len(kept)), max(8, len(kept))))
            if blocks > ledger.free:
                continue
            here[owner] = away.pop(owner)
            here[owner].begin(len(kept), blocks * SIZE)
            named.take_back(kept)
            ledger.take(blocks - len(kept))
            held[owner] = kept + named.take(blocks - len(kept))
        elif move == "grow" and owner in held and ledger.free:
            ledger.take(1)
            held[owner] += named.take(1)
        elif move in ("push out", "finish") and owner in held:
            blocks_held, prefix = held.pop(owner), here.pop(owner)
            fewest = max(SIZE * (len(blocks_held) - 1) + 1, SIZE * prefix.blocks)  # what was found is not lost again
            tokens = data.draw(st.integers(fewest, SIZE * len(blocks_held)))
            kept_whole = tokens // SIZE if move == "push out" else prefix.blocks
            named.give(owner, blocks_held, kept_whole)
            prefix.extend(tokens // SIZE, own=move == "push out")
            ledger.give(len(blocks_held) - prefix.blocks)
            prefix.leave()
            away[owner] = waiting(cache, owner)
        assert ledger.free == len(named.free)
        for who, freed in away.items():
            assert freed.tokens == SIZE * len(named.found(who))


def waiting(cache: PrefixCache, owner: int) -> CachedPrefix:
    """A request about to begin that has nothing in common with others."""
    return CachedPrefix(cache, Chain((), 1, 0, str(owner)), TOTAL * SIZE)
