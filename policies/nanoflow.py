"""NanoFlow: hybrid batches cut into nano-batches whose kernels overlap (arXiv 2408.12757).

Batches are those of chunked prefill: one token of every decoding request and prompt tokens up to the budget. Each layer
then runs once for each nano-batch, so that decode attention of one (bound by DRAM) and all-reduces (by the link) run
beside products of another (by compute), in a pipeline fixed before serving. What that comes to is the latency model's
(profiler/overlap.py). The paper finds number and sizes of nano-batches by a search for the shortest iteration; here
they are equal, and an iteration is cut where that is forecast to shorten it: a small one would read all weights again
for nothing. Its asynchronous scheduling and its KV offloading are left out: a pass costs the host what it costs others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.api import Decision, Step, View
from policies.chunked import ChunkedPrefill
from profiler.work import Overlap, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class NanoFlow(ChunkedPrefill):
    """One lane on all SMs of each instance; the settings of chunked prefill, and:

    nano_batches: parts that an iteration is cut into.
    """

    name: ClassVar[str] = "nanoflow"
    reads_slo: ClassVar[bool] = False
    simulated_only: ClassVar[str] = "no device runner here overlaps the kernels of nano-batches"

    nano_batches: int = 2

    def __post_init__(self) -> None:
        ChunkedPrefill.__post_init__(self)
        if not 2 <= self.nano_batches <= max(2, self.budget_tokens):
            raise ValueError(
                f"nanoflow: nano_batches is {self.nano_batches}; it must be 2 or more, and no more than budget_tokens"
            )

    def decide(self, view: View) -> Decision:
        decision = ChunkedPrefill.decide(self, view)
        # Whether to cut depends on the context, which every step changes: none may be repeated unasked.
        steps = [step._replace(overlap=self._overlap(view, step), again=False) for step in decision.steps]
        return Decision(tuple(steps))

    def _overlap(self, view: View, step: Step) -> Overlap | None:
        gone = [request for request in step.preempt if request.index in view.decoding]
        decodes = (len(view.decoding) - len(gone)) * step.decode
        context = view.decode_context_tokens - sum(request.context_tokens for request in gone) + decodes
        shapes = tuple((tokens, request.prefilled_tokens + request.cached_tokens) for request, tokens in step.prefill)
        work = Work(shapes, decodes, context if decodes else 0)
        overlap = Overlap(nano_batches=self.nano_batches)
        estimate = view.latency.estimate
        cut = estimate(work._replace(overlap=overlap), step.sms)
        return overlap if cut.seconds < estimate(work, step.sms).seconds else None
