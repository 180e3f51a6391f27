"""The ledger of KV blocks against a queue that names every block: who keeps what after a pre-emption."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.ledger import BlockLedger, FreedPrefix

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
    held: dict[int, list[int]] = {}
    away: dict[int, FreedPrefix] = {}
    for move, owner in moves:
        if move == "admit" and owner not in held:
            kept = named.found(owner) if owner in away else []
            blocks = data.draw(st.integers(max(1, len(kept)), 8))
            if blocks > ledger.free:
                continue
            if owner in away:
                away.pop(owner).take_back(len(kept))
            named.take_back(kept)
            ledger.take(blocks - len(kept))
            held[owner] = kept + named.take(blocks - len(kept))
        elif move == "grow" and owner in held and ledger.free:
            ledger.take(1)
            held[owner] += named.take(1)
        elif move == "push out" and owner in held:
            blocks_held = held.pop(owner)
            tokens = data.draw(st.integers(SIZE * (len(blocks_held) - 1) + 1, SIZE * len(blocks_held)))
            named.give(owner, blocks_held, tokens // SIZE)
            away[owner] = ledger.give_prefix(len(blocks_held), tokens)
        elif move == "finish" and owner in held:
            blocks_held = held.pop(owner)
            named.give(owner, blocks_held, 0)
            ledger.give(len(blocks_held))
        assert ledger.free == len(named.free)
        for who, freed in away.items():
            assert freed.tokens == SIZE * len(named.found(who))
