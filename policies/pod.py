"""POD: chunked prefill with attention of both phases in one kernel (POD-Attention, arXiv 2410.18038).

Batches are those of chunked prefill. Where one holds prompt tokens and decodes, its attention is a single kernel whose
blocks of either phase share each SM, so that decode's reads of KV hide behind prefill's arithmetic or the other way
about; the rest of the layer is as ever. What that comes to is the latency model's (profiler/overlap.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.api import Decision, View
from policies.chunked import ChunkedPrefill
from profiler.work import Overlap

FUSED = Overlap(fused_attention=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod(ChunkedPrefill):
    """One lane on all SMs of each instance; the settings of chunked prefill."""

    name: ClassVar[str] = "pod"
    reads_slo: ClassVar[bool] = False
    simulated_only: ClassVar[str] = "no device runner here has its fused attention kernel"

    def decide(self, view: View) -> Decision:
        steps, memo = ChunkedPrefill.decide(self, view)
        mixed = [step._replace(overlap=FUSED) if step.prefill and step.decode else step for step in steps]
        return Decision(tuple(mixed), memo)
