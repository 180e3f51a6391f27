"""What policies have in common that do both phases on every instance."""

from __future__ import annotations

from typing import ClassVar

from policies.api import Role


class Mixed:
    """The parts of the contract that follow from it."""

    __slots__ = ()

    needs_truth: ClassVar[bool] = False
    fewest_instances: ClassVar[int] = 1

    def roles(self, instances: int) -> tuple[Role, ...]:
        mixed: tuple[Role, ...] = ("mixed",)
        return mixed * instances
