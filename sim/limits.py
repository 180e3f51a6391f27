"""What bounds a run."""

from __future__ import annotations

from dataclasses import dataclass

from policies.admission import blocks_for
from sim.prefixcache import Chain, HashedBlocks
from traces.request import Request


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What bounds a run: KV blocks of each instance, the model's context, the queue of each instance, the time.

    reuse_preempted: whether a pre-empted request that comes back takes over those of its KV blocks that nobody has
        taken since: what prefix caching does for it.
    prefixes: how the trace hashes, where instances cache prefixes for all requests; None where they do not.
    """

    total_blocks: int
    context_tokens: int
    block_tokens: int = 16
    queue_limit: int | None = None
    until_s: float | None = None
    reuse_preempted: bool = False
    prefixes: HashedBlocks | None = None

    def __post_init__(self) -> None:
        if self.prefixes is not None and self.prefixes.tokens % self.block_tokens:
            raise ValueError(
                f"the trace hashes blocks of {self.prefixes.tokens} tokens, which KV blocks of {self.block_tokens} do "
                f"not divide; give block_tokens that do, such as 16, or leave prefix_cache out"
            )

    @property
    def caches(self) -> bool:
        """Whether KV outlives its request."""
        return self.reuse_preempted or self.prefixes is not None

    def chain(self, request: Request) -> Chain | None:
        """What a cache finds the request's tokens by; None where nothing is cached."""
        if not self.caches:
            return None
        hashed = self.prefixes
        if hashed is None:
            return Chain((), 1, 0, request.request_id)
        covered = request.prompt_tokens + (request.output_tokens if hashed.answers else 0)
        span = hashed.tokens // self.block_tokens
        blocks = min(covered // self.block_tokens, len(request.block_hashes) * span)
        return Chain(request.block_hashes, span, blocks, request.request_id)

    def misfit(self, prompt_tokens: int, output_tokens: int) -> str:
        """Why a request can never be served, in one word; empty when it can.

        The last token's KV is never stored, so a request needs blocks for one token less than its length.
        """
        if prompt_tokens + output_tokens > self.context_tokens:
            return "context"
        needed = blocks_for(prompt_tokens + output_tokens - 1, self.block_tokens)
        return "kv_capacity" if needed > self.total_blocks else ""
