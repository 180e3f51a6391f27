"""Chunked prefill: prompts cut to fit a token budget and run in lock-step with every decode.

Sarathi-Serve (OSDI 2024); vllm_chunked.py and sglang_chunked.py are what two engines make of it. Each iteration takes
one token of every decoding request and fills the rest of ``budget_tokens`` with prompt tokens, first come, first
served. A prompt of sl tokens beside ds decodes takes ceil(sl / (budget - ds)) iterations, each of which reads the KV of
those before it again (Bullet paper, section 2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from policies.admission import check_share
from policies.api import Decision, Router, View
from policies.chunkeddecision import decide
from policies.onelane import OneLane
from policies.routing import LeastLoaded


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedPrefill(OneLane):
    """One lane on all SMs of each instance.

    budget_tokens: tokens of one iteration, decodes included.
    prompt_share: part of what decodes leave of the budget that prompts get; engines fill less than all of it.
    max_resident: requests that may hold KV at once (vLLM's max_num_seqs).
    """

    name: ClassVar[str] = "chunked"
    reads_slo: ClassVar[bool] = False

    budget_tokens: int = 1024
    prompt_share: float = 1.0
    max_resident: int = 1024
    router: Router = field(default_factory=LeastLoaded)

    def __post_init__(self) -> None:
        check_share(self.name, self.prompt_share)
        if self.budget_tokens < 1 or self.max_resident < 1:
            raise ValueError(
                f"{self.name}: budget_tokens is {self.budget_tokens} and max_resident {self.max_resident}; "
                "both must be 1 or more"
            )

    def decide(self, view: View) -> Decision:
        return decide(self, view)
