"""What continuous batching has in common: who gives way when KV runs out, and how prompts fill a token budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from policies.api import Chunk, RequestProgress, View

new: Final = tuple.__new__


def blocks_for(tokens: int, block_tokens: int) -> int:
    """KV blocks that hold this many tokens of one request."""
    return -(-tokens // block_tokens)


def blocks_to_begin(request: RequestProgress, block_tokens: int) -> int:
    """Free KV blocks that a waiting request needs for its whole prompt: what others hold of it counts once."""
    return blocks_for(request.prefill_tokens, block_tokens) - request.shared_blocks


class Relief:
    """Room made for a decode step.

    victims: whom to pre-empt for it.
    decodes: requests left to decode.
    free_blocks: blocks free once the victims have gone and those decodes have what they need.
    """

    __slots__ = ("decodes", "free_blocks", "victims")

    def __init__(self, victims: tuple[RequestProgress, ...], decodes: int, free_blocks: int) -> None:
        self.victims = victims
        self.decodes = decodes
        self.free_blocks = free_blocks


def arrival(request: RequestProgress) -> tuple[int, ...]:
    """Greater for one that came later."""
    return (request.index,)


def relieve(
    view: View, *, last: Callable[[RequestProgress], tuple[int, ...]] = arrival, ahead_tokens: int = 0
) -> Relief:
    """Whom to pre-empt so that every decoding request left can take a step: those for whom ``last`` is greatest.

    By default the latest arrivals, as in vLLM. Partly prefilled requests give way too, unless a lane is working on
    them. In the worst case nobody is left to decode, which frees the blocks for a prefill in progress. Where somebody
    has to give way, others follow until each that is left has room for ``ahead_tokens``; but not the last one.
    """
    demand, free, decodes = view.decode_block_demand, view.free_blocks, len(view.decoding)
    if demand <= free:
        return Relief((), decodes, free - demand)
    size = view.block_tokens
    busy = {chunk.request.index for lane in view.lanes.values() for chunk in (*lane.batch, *lane.suspended)}
    residents = [*view.decoding.values(), *(r for i, r in view.prefilling.items() if i not in busy)]
    victims: list[RequestProgress] = []
    for request in sorted(residents, key=last, reverse=True):
        if not decodes or (demand <= free and (decodes == 1 or free * size >= ahead_tokens * decodes)):
            break
        victims.append(request)
        free += blocks_for(request.context_tokens, size) - request.shared_blocks
        if request.index in view.decoding:
            decodes -= 1
            demand -= request.context_tokens % size == 0
    return Relief(tuple(victims), decodes, free - demand)


def prompt_budget(budget_tokens: int, decodes: int, share: float) -> int:
    """Prompt tokens of an iteration: so much of what its decodes leave of the budget."""
    return int(share * max(0, budget_tokens - decodes))


def check_share(policy: str, share: float) -> None:
    """Raises ValueError for a share of the budget that is none."""
    if not 0 < share <= 1:
        raise ValueError(f"{policy}: prompt_share is {share}; it must be above 0 and at most 1")


def fill(
    view: View,
    *,
    budget_tokens: int,
    free_blocks: int,
    max_resident: int,
    whole_prompts: bool = False,
    without: tuple[RequestProgress, ...] = (),
    queue: Iterable[RequestProgress] | None = None,
) -> tuple[Chunk, ...]:
    """Prompt chunks for one step: requests part-way first, then the queue in order, up to a token budget.

    A request leaves the queue only when the KV blocks of its whole prompt, but for those that others hold already, are
    free beyond what the chunks before it will take, and while fewer than ``max_resident`` requests are resident.
    ``whole_prompts`` takes no part of a prompt; one longer than the budget then runs alone. What is cached is not
    computed again. With ``without``, the requests just pre-empted, nobody leaves the queue: the room was not made for
    them. ``queue`` is the waiting requests in another order.
    """
    chunks, budget_tokens, free_blocks = _part_way(view, budget_tokens, free_blocks, without)
    if without or budget_tokens <= 0:
        return tuple(chunks)
    size, resident = view.block_tokens, len(view.prefilling) + len(view.decoding)
    for request in view.waiting.values() if queue is None else queue:
        needed = blocks_to_begin(request, size)
        if budget_tokens <= 0 or needed > free_blocks or resident >= max_resident:
            break
        left = request.prefill_tokens - request.cached_tokens
        tokens = left if whole_prompts or left < budget_tokens else budget_tokens
        if tokens > budget_tokens and chunks:
            break
        chunks.append(new(Chunk, (request, tokens)))
        budget_tokens -= tokens
        free_blocks -= needed
        resident += 1
    return tuple(chunks)


def _part_way(
    view: View, budget_tokens: int, free_blocks: int, without: tuple[RequestProgress, ...]
) -> tuple[list[Chunk], int, int]:
    """Chunks of requests whose prefill has begun, and what these leave of the budget and of the free blocks."""
    chunks: list[Chunk] = []
    size = view.block_tokens
    for request in view.prefilling.values():
        done, prompt = request.prefilled_tokens, request.prefill_tokens
        held = -(-done // size)
        tokens = min(budget_tokens, prompt - done, (free_blocks + held) * size - done)
        if tokens > 0 and request not in without:
            chunks.append(new(Chunk, (request, tokens)))
            budget_tokens -= tokens
            free_blocks -= -(-prompt // size) - held
    return chunks, budget_tokens, free_blocks
