"""What bounds a run."""

from __future__ import annotations

from dataclasses import dataclass

from policies.admission import blocks_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds a run: KV blocks of each instance, the model's context, the queue of each instance, the time.

    reuse_preempted: whether a pre-empted request that comes back takes over those of its KV blocks that nobody has
        taken since: what prefix caching does for it.
    """

    total_blocks: int
    context_tokens: int
    block_tokens: int = 16
    queue_limit: int | None = None
    until_s: float | None = None
    reuse_preempted: bool = False

    def misfit(self, prompt_tokens: int, output_tokens: int) -> str:
        """Why a request can never be served, in one word; empty when it can.

        The last token's KV is never stored, so a request needs blocks for one token less than its length.
        """
        if prompt_tokens + output_tokens > self.context_tokens:
            return "context"
        needed = blocks_for(prompt_tokens + output_tokens - 1, self.block_tokens)
        return "kv_capacity" if needed > self.total_blocks else ""
