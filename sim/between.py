"""What the host does between two steps of a lane, beyond launching: changing its share, taking requests over."""

from __future__ import annotations

from typing import NamedTuple

from policies.api import Step
from sim.state import DecodeCohort, Lane


class BetweenSteps(NamedTuple):
    """Seconds by which a launch is late. Nothing unless a run's settings say so; docs/simulator.md has measured ones.

    repartition_s: where the launch has another share of SMs than the one before it on its lane.
    handover_s: where requests that another lane of the instance has prefilled decode for the first time.
    """

    repartition_s: float = 0.0
    handover_s: float = 0.0

    def before(self, step: Step, lane: Lane, peer: Lane | None, cohort: DecodeCohort) -> float:
        """Seconds before a step that has just begun; ``lane`` still has the share of the one before it, 0 at first.

        ``peer`` is the other lane of the instance that computes, where there is one.
        """
        changed = lane.sms not in (0, step.sms)
        joined = step.decode and peer is not None and cohort.joining > 0
        return (self.repartition_s if changed else 0.0) + (self.handover_s if joined else 0.0)


NOTHING_BETWEEN = BetweenSteps()
