"""Chunked prefill: prompts cut to fit a token budget and run in lock-step with every decode.

Sarathi-Serve (OSDI 2024); vllm_chunked.py and sglang_chunked.py are what two engines make of it. Each iteration takes
one token of every decoding request and fills the rest of ``budget_tokens`` with prompt tokens, first come, first
served. A prompt of sl tokens beside ds decodes takes ceil(sl / (budget - ds)) iterations, each of which reads the KV of
those before it again (Bullet paper, section 2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from policies.admission import check_share, fill, prompt_budget, relieve
from policies.api import Chunk, Decision, Router, Step, View
from policies.onelane import LANE, OneLane
from policies.routing import LeastLoaded

NOTHING = Decision()

new = tuple.__new__


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
        relief = relieve(view)
        chunks: tuple[Chunk, ...] = ()
        if view.waiting or view.prefilling:
            chunks = fill(
                view,
                budget_tokens=prompt_budget(self.budget_tokens, relief.decodes, self.prompt_share),
                free_blocks=relief.free_blocks,
                max_resident=self.max_resident,
                without=relief.victims,
            )
        if not chunks and not relief.decodes:
            return NOTHING
        again = not chunks and not view.waiting
        step = (LANE, view.sms, chunks, None, relief.decodes > 0, relief.victims, None, again, None, False, False)
        # A step and a decision for each of a run's steps: their own constructors take three times as long.
        return new(Decision, ((new(Step, step),), None))
