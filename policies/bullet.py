"""Bullet: prefill and decode at once on one GPU, each on its own SMs, moved layer by layer to hold the SLOs.

Lin et al., ASPLOS 2026, sections 3.2 and 3.3, Algorithm 1. Prefill runs in groups of layers and decode in whole
steps, on two lanes. Whenever a lane falls idle the scheduler forecasts the TTFT of what is being prefilled (or, before
a new batch, of the whole queue) and the TPOT of what is decoding, and splits the SMs:

- TPOT holds: decode gets the fewest SMs with which it still will, prefill the rest (prefill first: the shorter the
  prefill, the larger the decode batches);
- TPOT does not hold but TTFT does: decode gets all that it can use, prefill no fewer than keep its TTFT;
- neither holds: the split with the least max(TTFT / SLO, TPOT / SLO), over what can still be changed.

The queue is taken shortest prefill first when that breaks no TTFT SLO that would hold. A batch takes requests until it
makes use of its SMs. In a burst, when a queue waits behind the batch or TTFTs are in danger, decode pauses for as long
as its own SLO allows. A decode step that will outlast the last prefill layers gets part of their SMs from the start, so
shares may overlap for a moment instead of leaving SMs idle. With one phase empty the other has all SMs. Predictions
are corrected by alpha, refreshed from finished steps (policies.recalibration).

Left open by the text, and settings here: layers a group (4), the percentile (P90) and its population (pending requests
and the last 100 finished), how much of a long queue is forecast, when a batch makes use of its SMs, what a burst is.
The ablations of the paper's figure 23 switch off ``partition`` (w/Scheduler), or what the scheduler does, ``move_sms``,
``reorder`` and ``pause_decode`` (w/Partition), or ``partition`` and the last two (Naive).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from policies.api import Decision, Router, View
from policies.bulletdecision import decide
from policies.routing import LeastLoaded
from policies.twolanes import TwoLanes


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullet(TwoLanes):
    """Two lanes on every instance.

    layers_per_step: transformer layers in one prefill launch.
    percentile: the share of requests whose TTFT and TPOT must be within SLO for it to count as held.
    queue_horizon: how many waiting requests are forecast and reordered; those behind them wait longer anyway.
    batch_fill: a prefill batch takes requests until it runs at this part of the FLOP/s that a long prompt attains.
    sm_step: SMs by which shares change, at most half of them; None takes the device's granularity.
    max_resident: requests that may hold KV at once.
    partition: whether the phases have shares; without, both are launched on all SMs.
    move_sms: whether shares follow the state; without, each phase has half of the SMs while both have work.
    reorder, pause_decode, recalibrate: switch these parts off to see what they are worth.
    pause_on_queue: whether a queue behind the batch is reason enough to pause; else TTFTs must be in danger.
    on_time, hurry_for_kv, cap_at_drain: not the paper's; see policies.bullet_eager.
    """

    name: ClassVar[str] = "bullet"

    layers_per_step: int = 4
    percentile: float = 0.9
    queue_horizon: int = 64
    batch_fill: float = 0.9
    sm_step: int | None = None
    max_resident: int = 1024
    partition: bool = True
    move_sms: bool = True
    reorder: bool = True
    pause_decode: bool = True
    pause_on_queue: bool = True
    recalibrate: bool = True
    on_time: bool = False
    hurry_for_kv: bool = False
    cap_at_drain: bool = False
    router: Router = field(default_factory=LeastLoaded)

    def __post_init__(self) -> None:
        for name in ("layers_per_step", "queue_horizon", "max_resident"):
            if getattr(self, name) < 1:
                raise ValueError(f"{self.name}: {name} is {getattr(self, name)}; it must be 1 or more")
        for name in ("percentile", "batch_fill"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{self.name}: {name} is {getattr(self, name)}; it must be above 0 and at most 1")
        if self.sm_step is not None and self.sm_step < 1:
            raise ValueError(f"{self.name}: sm_step is {self.sm_step}; it must be 1 or more, or None for the device's")

    def decide(self, view: View) -> Decision:
        return decide(self, view)
