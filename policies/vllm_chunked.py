"""Chunked prefill as vLLM's v1 engine schedules it.

Read in vllm/v1/core/sched/scheduler.py of vllm-project/vllm (commit 00024d3), and restated. One list of running
requests, in the order in which they were admitted, is served before anybody is admitted: one token to each that
decodes, and what is left of the budget to each that is part-way, at most ``long_prefill_tokens`` of a prompt an
iteration. So a long prompt takes the whole budget until it is through, unless that limit leaves room for others beside
it. KV is taken for the tokens of the iteration alone, not for the whole prompt: where a running request finds none, the
one that came last is pre-empted, which can be itself, and then nobody is admitted in that iteration.

Here "last" is by arrival, and decodes are served before prompts part-way. Both differ from admission order only after
a pre-emption, or where ``long_prefill_tokens`` lets a short prompt finish beside a long one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from policies.admission import blocks_for, blocks_to_begin, check_share, prompt_budget, relieve
from policies.api import Chunk, Decision, RequestProgress, Router, Step, View
from policies.onelane import LANE, OneLane
from policies.routing import LeastLoaded


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmChunked(OneLane):
    """One lane on all SMs of each instance.

    budget_tokens: tokens of one iteration, decodes included (max_num_batched_tokens).
    prompt_share: part of what decodes leave of the budget that prompts get; engines fill less than all of it.
    max_resident: running requests (max_num_seqs).
    long_prefill_tokens: tokens of one prompt in an iteration (long_prefill_token_threshold); None for no limit.
    whole_prompt_fits: whether KV for all of a prompt has to be free when it leaves the queue, though the blocks of its
        first tokens alone are taken (scheduler_reserve_full_isl; releases without it, such as 0.8, are False).
    """

    name: ClassVar[str] = "vllm-chunked"
    reads_slo: ClassVar[bool] = False

    budget_tokens: int = 2048
    prompt_share: float = 1.0
    max_resident: int = 256
    long_prefill_tokens: int | None = None
    whole_prompt_fits: bool = True
    router: Router = field(default_factory=LeastLoaded)

    def __post_init__(self) -> None:
        check_share(self.name, self.prompt_share)
        for name in ("max_resident", "long_prefill_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"vllm-chunked: {name} is {value}; it must be 1 or more")
        if self.budget_tokens < self.max_resident:
            raise ValueError(
                f"vllm-chunked: budget_tokens is {self.budget_tokens} and max_resident {self.max_resident}; "
                "a budget is at least one token for every request"
            )

    def decide(self, view: View) -> Decision:
        relief = relieve(view)
        victims = list(relief.victims)
        budget, free = prompt_budget(self.budget_tokens, relief.decodes, self.prompt_share), relief.free_blocks
        partial = [request for request in view.prefilling.values() if request not in victims]
        chunks: list[Chunk] = []
        while len(chunks) < len(partial) and budget > 0:
            request = partial[len(chunks)]
            tokens = self._tokens(request, request.prefilled_tokens, budget)
            needed = self._blocks(view, request.prefilled_tokens, tokens)
            while needed > free and len(chunks) < len(partial):
                victims.append(partial.pop())
                free += blocks_for(victims[-1].prefilled_tokens, view.block_tokens) - victims[-1].shared_blocks
            if len(chunks) < len(partial):
                chunks.append(Chunk(request, tokens))
                budget, free = budget - tokens, free - needed
        if not victims:
            chunks += self._admitted(view, budget, free, self.max_resident - relief.decodes - len(partial))
        if not chunks and not relief.decodes:
            return Decision()
        again = not chunks and not view.waiting
        return Decision((Step(LANE, view.sms, tuple(chunks), None, relief.decodes > 0, tuple(victims), None, again),))

    def _admitted(self, view: View, budget: int, free: int, places: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        for request in view.waiting.values():
            if budget <= 0 or len(chunks) >= places:
                break
            tokens = self._tokens(request, request.cached_tokens, budget)
            needed = blocks_for(request.cached_tokens + tokens, view.block_tokens) - request.shared_blocks
            if (blocks_to_begin(request, view.block_tokens) if self.whole_prompt_fits else needed) > free:
                break
            chunks.append(Chunk(request, tokens))
            budget, free = budget - tokens, free - needed
        return chunks

    def _tokens(self, request: RequestProgress, done: int, budget: int) -> int:
        tokens = min(budget, request.prefill_tokens - done)
        return tokens if self.long_prefill_tokens is None else min(tokens, self.long_prefill_tokens)

    @staticmethod
    def _blocks(view: View, done: int, tokens: int) -> int:
        """Blocks that a request part-way takes for its next tokens."""
        size = view.block_tokens
        return blocks_for(done + tokens, size) - blocks_for(done, size)
