"""What a policy learns of its estimator as it goes: alpha of each phase, refreshed from the steps that have finished.

Bullet paper, section 3.2: predictions are multiplied by alpha = measured / predicted, which the server refreshes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from policies.api import Observation

WEIGHT: Final = 1 / 32
"""Of one step in the running mean: a layer group or decode step says little, and a device changes within seconds."""


class Alphas(NamedTuple):
    """Running means of measured over predicted seconds, of launches that prefill and of those that only decode.

    A prediction beside another step holds for the co-runner that it starts with; what comes and goes during a step
    moves its measured time both ways. ``latest`` is the newest step that has been counted.
    """

    prefill: float = 1.0
    decode: float = 1.0
    latest: Observation | None = None

    def after(self, observed: Sequence[Observation]) -> Alphas:
        """With the steps that have finished since; the same where there is none."""
        prefill, decode, latest = self
        last_s = None if latest is None else latest.measured_s
        fresh: list[Observation] = []
        for seen in reversed(observed):
            # A number first: most differ there already.
            if seen[6] == last_s and seen == latest:
                break
            fresh.append(seen)
        if not fresh:
            return self
        # By place: a coast brings dozens, and names take twice as long.
        for _, work, _, _, _, predicted_s, measured_s in reversed(fresh):
            error = measured_s / predicted_s
            if work[0]:
                prefill += WEIGHT * (error - prefill)
            else:
                decode += WEIGHT * (error - decode)
        return tuple.__new__(Alphas, (prefill, decode, fresh[0]))


UNCORRECTED = Alphas()
