"""A device whose times can be worked out by hand: for queueing theory, hand-computed timelines and teaching."""

from __future__ import annotations

from dataclasses import dataclass

from profiler.latency import Estimate
from profiler.specs import DeviceSpec, ModelSpec
from profiler.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantRateModel:
    """A latency model with fixed costs, whatever the SM share.

    prefill_token_s: seconds a prompt token takes through the whole model; a layer group takes its part.
    decode_step_s: seconds a decode step takes, whatever its batch.
    pass_s: seconds any launch takes besides.
    A launch with an overlap takes the longer of its two phases.
    transfer_token_s: seconds to move the KV of a token over the link.
    shared_slowdown: the factor by which two that run side by side slow each other; 2 is processor sharing.
    kv_tokens: KV capacity of an instance.
    """

    model: ModelSpec
    device: DeviceSpec
    prefill_token_s: float
    decode_step_s: float
    pass_s: float = 0.0
    transfer_token_s: float = 0.0
    shared_slowdown: float = 1.0
    kv_tokens: int = 1 << 20
    tensor_parallel: int = 1

    def estimate(self, work: Work, sms: int, beside: Work | None = None, beside_sms: int = 0) -> Estimate:
        """Seconds of ``work``; ``sms`` and ``beside_sms`` do not matter."""
        part = 1.0 if work.layers is None else work.layers / self.model.layers
        if work.kv_transfer_tokens:
            return Estimate(part * work.kv_transfer_tokens * self.transfer_token_s, "measured")
        seconds = part * self.prefill_token_s * sum(new for new, _ in work.prefill) + self.pass_s
        if work.overlap is not None:
            seconds = max(seconds, self.pass_s + self.decode_step_s * (work.decode_requests > 0))
        elif work.decode_requests:
            seconds += self.decode_step_s
        return Estimate(seconds * (1.0 if beside is None else self.shared_slowdown), "measured")

    def cost(self, work: Work) -> tuple[float, float]:
        """One FLOP and one byte a token."""
        return float(work.new_tokens), float(work.new_tokens)

    def ceilings(self, sms: int) -> tuple[float, float]:
        """Equal for any share, so that every batch is at its ridge."""
        return 1.0, 1.0

    def kv_capacity_tokens(self, memory_fraction: float) -> int:
        """``kv_tokens``, whatever the fraction."""
        return self.kv_tokens
