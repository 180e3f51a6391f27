"""What policies with one lane on all SMs of every instance have in common."""

from __future__ import annotations

from policies.api import Role
from policies.mixed import Mixed

LANE = "main"


class OneLane(Mixed):
    """The parts of the contract that follow from having one lane."""

    __slots__ = ()

    def lanes(self, role: Role) -> tuple[str, ...]:
        return (LANE,)
