"""How serving engines schedule by default, as policies: what measured serving points were served by.

``ENGINES`` names a policy and settings for each. They are the engines' documented defaults on GPUs of 80 GB and more;
nothing here was chosen by how well it fits:

- vLLM V1: chunked prefill in one budget with the decodes, max_num_batched_tokens 8192 for its API server on GPUs of
  70 GiB and more that are not an A100 (2048 elsewhere), max_num_seqs 1024 (vllm/engine/arg_utils.py, batch defaults).
- SGLang: prefill batches run alone, before any decode goes on; chunked_prefill_size 8192 on H100 and H200,
  enable_mixed_chunk False (python/sglang/srt/server_args.py).
- TensorRT-LLM: prompts and decodes in one batch of max_num_tokens 8192, max_batch_size 2048; enable_chunked_prefill
  False, so a prompt is never cut (tensorrt_llm/llmapi/llm_args.py; performance guide, "Tuning Max Batch Size").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from policies.admission import fill, relieve
from policies.api import Decision, Role, Router, Step, View
from policies.routing import LeastLoaded

LANE = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSchedule:
    """One lane on all SMs of each instance.

    budget_tokens: tokens of one iteration. max_resident: requests that may hold KV at once.
    prefill_alone: whether a batch of prompts runs without the decodes, and before them; else both share an iteration.
    whole_prompts: whether a prompt waits until all of it fits the budget; else it is cut to fit.
    """

    name: ClassVar[str] = "engine"
    needs_truth: ClassVar[bool] = False
    fewest_instances: ClassVar[int] = 1

    budget_tokens: int = 8192
    max_resident: int = 1024
    prefill_alone: bool = False
    whole_prompts: bool = False
    router: Router = field(default_factory=LeastLoaded)

    def roles(self, instances: int) -> tuple[Role, ...]:
        mixed: tuple[Role, ...] = ("mixed",)
        return mixed * instances

    def lanes(self, role: Role) -> tuple[str, ...]:
        return (LANE,)

    def decide(self, view: View) -> Decision:
        relief = relieve(view)
        # Beside a prefill that runs alone the decodes take no tokens now, but their next blocks are kept free.
        shared = 0 if self.prefill_alone else relief.decodes
        chunks = fill(
            view,
            budget_tokens=self.budget_tokens - shared,
            free_blocks=relief.free_blocks,
            max_resident=self.max_resident,
            whole_prompts=self.whole_prompts,
            without=relief.victims,
        )
        decode = relief.decodes > 0 and not (chunks and self.prefill_alone)
        if not chunks and not decode:
            return Decision()
        again = not chunks and not view.waiting
        return Decision((Step(LANE, view.sms, chunks, None, decode, relief.victims, None, again),))


SCHEDULE = f"{__file__}:{EngineSchedule.__name__}"
"""The name by which a run's settings find :class:`EngineSchedule`."""

ENGINES: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"name": "chunked", "settings": {"budget_tokens": 8192, "max_resident": 1024}},
    "sglang": {"name": SCHEDULE, "settings": {"budget_tokens": 8192, "prefill_alone": True}},
    "trtllm": {
        "name": SCHEDULE,
        "settings": {"budget_tokens": 8192, "max_resident": 2048, "whole_prompts": True},
    },
}
