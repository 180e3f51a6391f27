"""What policies with one lane on all SMs of every instance have in common."""

from __future__ import annotations

from typing import ClassVar

from policies.api import Role

LANE = "main"


class OneLane:
    """The parts of the contract that follow from having one lane."""

    __slots__ = ()

    needs_truth: ClassVar[bool] = False
    fewest_instances: ClassVar[int] = 1

    def roles(self, instances: int) -> tuple[Role, ...]:
        mixed: tuple[Role, ...] = ("mixed",)
        return mixed * instances

    def lanes(self, role: Role) -> tuple[str, ...]:
        return (LANE,)
