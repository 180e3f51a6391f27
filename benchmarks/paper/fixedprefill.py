"""The paper's figure 22: Bullet with a share for prefill that never changes, and decode on all SMs.

Batches, their order and pauses of decode are Bullet's; only the provisioning of SMs is gone. Loaded by its path, as a
user's own policy is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.api import Decision, View
from policies.bullet import Bullet
from policies.phases import PREFILL


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPrefill(Bullet):
    """Settings are those of Bullet without ``partition``, and:

    prefill_sms: SMs of every launch that prefills.
    """

    name: ClassVar[str] = "fixed-prefill"

    prefill_sms: int = 108
    partition: bool = False

    def decide(self, view: View) -> Decision:
        decision = Bullet.decide(self, view)
        steps = [
            step._replace(sms=min(self.prefill_sms, view.sms) if step.lane == PREFILL else view.sms)
            for step in decision.steps
        ]
        return Decision(tuple(steps), decision.memo)
