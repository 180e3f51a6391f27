"""Mixed chunks as SGLang schedules them (--enable-mixed-chunk).

Read in python/sglang/srt/managers of sgl-project/sglang (schedule_policy.py at commit 00550cd; scheduler.py and
schedule_batch.py of the 0.4 series), and restated. An iteration decodes for everybody and prefills what that leaves of
the chunk size. At most one prompt is part-way, and it goes on first; others then leave the queue, whole, until one has
to be cut. One may leave only if its prompt and all tokens that it may yet generate are fewer than the KV tokens that
are left once those of the running requests' answers are set aside: for each ``new_token_ratio`` of what it may yet
generate. That ratio falls with every iteration that only decodes, from ``init_ratio`` to MIN_FACTOR of it, is estimated
anew from what was generated when KV has run short, and is back at its start when the server has been idle.

Where KV is short for a decode step, those who have generated least are pre-empted, among equals the longest prompt,
until each that is left has room for RETRACT_STEPS tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar

from policies.admission import Relief, blocks_for, check_share, prompt_budget, relieve
from policies.api import Chunk, Decision, RequestProgress, Router, Step, View
from policies.onelane import LANE, OneLane
from policies.routing import LeastLoaded

MIN_FACTOR = 0.14
DECAY_STEPS = 600
RETRACT_STEPS = 20
CLIP_NEW_TOKENS = 4096
SORTED_QUEUE = 128
"""SGLang's constants: the least ratio over the first, decode steps from one to the other, tokens of room after a
pre-emption, the most that is set aside for one answer, and the longest queue that is sorted by cached prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangChunked(OneLane):
    """One lane on all SMs of each instance.

    budget_tokens: tokens of one iteration, decodes included (--chunked-prefill-size).
    prompt_share: part of what decodes leave of the budget that prompts get; engines fill less than all of it.
    max_resident: requests that may hold KV at once (--max-running-requests).
    max_new_tokens: what requests ask for at most; more than 4096 counts as that.
    init_ratio: part of the tokens that a running request may yet generate which is set aside for it at first.
    longest_prefix: whether the queue is in order of cached prefix (schedule policy lpm), up to 128 requests of it.
    """

    name: ClassVar[str] = "sglang-chunked"
    reads_slo: ClassVar[bool] = False

    budget_tokens: int = 1024
    prompt_share: float = 1.0
    max_resident: int = 1024
    max_new_tokens: int = CLIP_NEW_TOKENS
    init_ratio: float = 0.7
    longest_prefix: bool = False
    router: Router = field(default_factory=LeastLoaded)

    def __post_init__(self) -> None:
        check_share(self.name, self.prompt_share)
        for name in ("budget_tokens", "max_resident", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"sglang-chunked: {name} is {getattr(self, name)}; it must be 1 or more")
        if not 0 < self.init_ratio <= 1:
            raise ValueError(f"sglang-chunked: init_ratio is {self.init_ratio}; it must be above 0 and at most 1")

    def decide(self, view: View) -> Decision:
        idle = not view.decoding and not view.prefilling
        ratio = self.init_ratio if idle or not isinstance(view.memo, float) else view.memo
        relief = relieve(view, last=_least_generated, ahead_tokens=RETRACT_STEPS)
        chunks = self._chunks(view, relief, ratio) if view.waiting or view.prefilling else ()
        if not chunks and not relief.decodes:
            return Decision((), ratio)
        least = MIN_FACTOR * self.init_ratio
        again = not chunks and not view.waiting and ratio == least
        if relief.victims:
            ratio = self._estimated(view, relief)
        elif not chunks:
            ratio = max(least, ratio - (self.init_ratio - least) / DECAY_STEPS)
        step = Step(LANE, view.sms, chunks, None, relief.decodes > 0, relief.victims, None, again)
        return Decision((step,), ratio)

    def _chunks(self, view: View, relief: Relief, ratio: float) -> tuple[Chunk, ...]:
        size = view.block_tokens
        budget, free = prompt_budget(self.budget_tokens, relief.decodes, self.prompt_share), relief.free_blocks
        chunks: list[Chunk] = []
        for request in view.prefilling.values():
            if request in relief.victims:
                continue
            done = request.prefilled_tokens
            held = blocks_for(done, size)
            tokens = min(budget, request.prefill_tokens - done, (free + held) * size - done)
            if tokens > 0:
                chunks.append(Chunk(request, tokens))
                budget -= tokens
                free -= blocks_for(done + tokens, size) - held
        places = self.max_resident - len(view.decoding) - len(view.prefilling)
        if budget > 0 and places > 0 and view.waiting and not relief.victims:
            left = free * size - ratio * sum(map(self._yet_to_come, view.decoding.values()))
            queue = islice(self._queue(view), places)
            chunks += self._admitted(queue, size, budget, free, left, alone=not chunks and not view.decoding)
        return tuple(chunks)

    def _admitted(
        self, queue: Iterable[RequestProgress], size: int, budget: int, free: int, left: float, *, alone: bool
    ) -> list[Chunk]:
        """Requests that leave the queue: ``free`` blocks there are, ``left`` tokens not set aside."""
        chunks: list[Chunk] = []
        for request in queue:
            prompt, answer = request.prefill_tokens - request.cached_tokens, self._yet_to_come(request)
            tokens = min(prompt, budget)
            needed = blocks_for(request.cached_tokens + tokens, size) - request.shared_blocks
            # SGLang limits what one request may ask for to what a server holds: alone it always fits.
            fits = prompt + answer < left or (alone and not chunks)
            if tokens <= 0 or needed > free or not fits:
                break
            chunks.append(Chunk(request, tokens))
            budget, free = budget - tokens, free - needed
            left -= tokens + (answer if tokens == prompt else 0)
        return chunks

    def _queue(self, view: View) -> Iterable[RequestProgress]:
        if not self.longest_prefix or len(view.waiting) > SORTED_QUEUE:
            return view.waiting.values()
        return sorted(view.waiting.values(), key=lambda request: -request.cached_tokens)

    def _yet_to_come(self, request: RequestProgress) -> int:
        """Tokens that a request may yet generate, as far as the scheduler counts them."""
        return min(CLIP_NEW_TOKENS, max(0, self.max_new_tokens - request.generated_tokens))

    def _estimated(self, view: View, relief: Relief) -> float:
        """The ratio after a pre-emption, from what those that are left have generated."""
        gone = {request.index for request in relief.victims}
        kept = [request.generated_tokens for index, request in view.decoding.items() if index not in gone]
        return min(1.0, (sum(kept) + RETRACT_STEPS * len(kept)) / (self.max_new_tokens * len(kept) + 1))


def _least_generated(request: RequestProgress) -> tuple[int, ...]:
    """Greatest for the decoding request that has generated least, then for the longest prompt."""
    decodes = request.prefilled_tokens == request.prefill_tokens
    return decodes, -request.generated_tokens, request.prompt_tokens
