"""Uncapped streams: prefill and decode side by side, each launched on all SMs. The negative control.

Two streams without a share for either: whoever's blocks come first hold the SMs. Prefill runs whole prompts in order of
arrival and decode whole steps, each in a loop of its own, as in a static split. What comes of two launches that ask
for more SMs than there are is the latency model's rule (docs/latency.md): they take turns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from policies.api import Decision, Router, Step, View
from policies.phases import DECODE, PREFILL
from policies.routing import LeastLoaded
from policies.static_split import due
from policies.twolanes import TwoLanes


@dataclass(frozen=True, slots=True, kw_only=True)
class UncappedStreams(TwoLanes):
    """Two lanes on every instance, both on all of its SMs.

    batch_tokens: prompts are batched up to this many tokens; a longer one runs alone.
    max_resident: requests that may hold KV at once.
    """

    name: ClassVar[str] = "uncapped-streams"
    reads_slo: ClassVar[bool] = False

    batch_tokens: int = 1024
    max_resident: int = 1024
    router: Router = field(default_factory=LeastLoaded)

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "max_resident"):
            if getattr(self, name) < 1:
                raise ValueError(f"uncapped-streams: {name} is {getattr(self, name)}; it must be 1 or more")

    def decide(self, view: View) -> Decision:
        relief, chunks = due(view, batch_tokens=self.batch_tokens, max_resident=self.max_resident)
        steps: tuple[Step, ...] = ()
        if relief.decodes and not view.lanes[DECODE].busy:
            again = not view.lanes[PREFILL].busy and not chunks and not view.waiting
            steps = (Step(DECODE, view.sms, (), None, True, relief.victims, None, again),)
        if chunks:
            steps = (*steps, Step(PREFILL, view.sms, chunks))
        return Decision(steps)
