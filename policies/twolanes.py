"""What policies with a prefill and a decode lane on every instance have in common."""

from __future__ import annotations

from policies.api import Role
from policies.mixed import Mixed
from policies.phases import DECODE, PREFILL


class TwoLanes(Mixed):
    """The parts of the contract that follow from having these two lanes on every instance."""

    __slots__ = ()

    def lanes(self, role: Role) -> tuple[str, ...]:
        return (PREFILL, DECODE)
