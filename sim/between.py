"""What lies between two steps of a lane, beyond launching: a change of share, requests to take over, waking up."""

from __future__ import annotations

from typing import NamedTuple

from policies.api import Step
from sim.state import DecodeCohort, Lane

RESTED_S = 0.02
"""A lane that has computed nothing for so long has to wake. Between the steps of a pass lie microseconds to few ms."""


class BetweenSteps(NamedTuple):
    """Seconds by which a launch is late. Nothing unless a run's settings say so; docs/simulator.md has measured ones.

    repartition_s: where the launch has another share of SMs than the one before it on its lane.
    handover_s: where requests that another lane of the instance has prefilled decode for the first time.
    wake_s: where a launch prefills and its lane has been at rest for RESTED_S: clocks and caches have to come back.
    """

    repartition_s: float = 0.0
    handover_s: float = 0.0
    wake_s: float = 0.0

    def before(self, now_s: float, step: Step, lane: Lane, peer: Lane | None, cohort: DecodeCohort) -> float:
        """Seconds before a step that begins now; ``lane`` still has share and end of the one before it, 0 and never.

        ``peer`` is the other lane of the instance that computes, where there is one.
        """
        changed = lane.sms not in (0, step.sms)
        joined = step.decode and peer is not None and cohort.joining > 0
        rested = bool(step.prefill) and now_s - lane.ended_s >= RESTED_S
        return (
            (self.repartition_s if changed else 0.0)
            + (self.handover_s if joined else 0.0)
            + (self.wake_s if rested else 0.0)
        )


NOTHING_BETWEEN = BetweenSteps()
