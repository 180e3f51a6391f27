"""What the host adds to a launch outside the device: the loop, the policy, the way to a lane and back.

It is measured by serving a trace's first requests, whose times count for nothing else, and goes into the latency model
of the runs that follow. Launches that prefill have a time of their own: their tokens go out, and policies plan for the
queue then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple, Self

import numpy as np

from real.launches import HOST_PARTS
from real.serving import Replayed


class OutsideTime(NamedTuple):
    """Seconds of a launch that only decodes, and of one that prefills."""

    decode_s: float = 0.0
    prefill_s: float = 0.0

    @classmethod
    def of(cls, served: Replayed) -> Self:
        """Medians over the launches of a run; of the other kind where it has none of one.

        A launch for which a lane's buffers grow, or that another program held up, says nothing of the rest.
        """
        parts = served.launches.host_s(served.result.records.arrival_s)
        seconds = np.sum([parts[name] for name in HOST_PARTS], axis=0)
        steps = served.result.steps
        prefills, decodes = steps.prefill_tokens > 0, steps.decode_requests > 0
        kinds = [seconds[decodes & ~prefills], seconds[prefills]]
        decode_s, prefill_s = (float(np.median(found)) if len(found) else None for found in kinds)
        known = [middle for middle in (decode_s, prefill_s) if middle is not None] or [0.0]
        return cls(known[0] if decode_s is None else decode_s, known[-1] if prefill_s is None else prefill_s)

    @classmethod
    def median(cls, documents: Sequence[Mapping[str, float]]) -> Self:
        """Of several, as :meth:`document` gave them."""
        return cls(*(median(found[name] for found in documents) for name in ("decode", "prefill")))

    def document(self) -> dict[str, float]:
        """JSON types, for a run's facts."""
        return {"decode": self.decode_s, "prefill": self.prefill_s}

    def by_kind(self) -> dict[str, float]:
        """By kind of launch (real.stepwise.KINDS); a transfer has none in a latency model."""
        return {"decode": self.decode_s, "prefill": self.prefill_s, "mixed": self.prefill_s}
