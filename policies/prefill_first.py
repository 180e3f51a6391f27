"""Prefill first: prompts run whenever KV has room for one, and decodes wait meanwhile.

vLLM's first scheduler (v0, without chunked prefill) and SGLang without mixed chunks. An iteration is a batch of prompts
or one decode step for everybody, never both. Prompts are taken whole, up to a token budget; with ``chunked``, as under
SGLang's --chunked-prefill-size, they are cut to fit it, which bounds an iteration and not how long decodes wait: the
next chunk comes first again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from policies.admission import fill, relieve
from policies.api import Chunk, Decision, Router, Step, View
from policies.onelane import LANE, OneLane
from policies.routing import LeastLoaded


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillFirst(OneLane):
    """One lane on all SMs of each instance.

    batch_tokens: prompt tokens of one iteration; without ``chunked`` a longer prompt runs alone.
    chunked: whether prompts are cut to fit ``batch_tokens``.
    watermark: share of all KV blocks that stays free when a prompt leaves the queue while others decode, so that it
        does not push them out at once.
    max_resident: requests that may hold KV at once.
    """

    name: ClassVar[str] = "prefill-first"
    reads_slo: ClassVar[bool] = False

    batch_tokens: int = 16384
    chunked: bool = False
    watermark: float = 0.01
    max_resident: int = 256
    router: Router = field(default_factory=LeastLoaded)

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "max_resident"):
            if getattr(self, name) < 1:
                raise ValueError(f"prefill-first: {name} is {getattr(self, name)}; it must be 1 or more")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"prefill-first: watermark is {self.watermark}; it must be at least 0 and below 1")

    def decide(self, view: View) -> Decision:
        chunks = self._prompts(view) if view.waiting or view.prefilling else ()
        if chunks:
            return Decision((Step(LANE, view.sms, chunks),))
        relief = relieve(view)
        if not relief.decodes:
            return Decision()
        # What has no room now has none until a request ends or gives way, and then the policy is asked.
        return Decision((Step(LANE, view.sms, (), None, True, relief.victims, None, True),))

    def _prompts(self, view: View) -> tuple[Chunk, ...]:
        spare = math.ceil(self.watermark * view.total_blocks) if view.decoding else 0
        return fill(
            view,
            budget_tokens=self.batch_tokens,
            free_blocks=max(0, view.free_blocks - spare),
            max_resident=self.max_resident,
            whole_prompts=not self.chunked,
        )
