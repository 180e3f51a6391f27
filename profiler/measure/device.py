"""What a device is to whoever measures it: shares, and the times of a group of points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple, Protocol

from profiler.measure.grid import Group, Reach, Shares, Target, Variant

GAP = 0.03
"""A share of wall time that threads waited for a core; above it other programs disturbed a sample."""


class Sample(NamedTuple):
    """Seconds of one call in each repeat. ``gap``: the worst share of wall time not run, where that is known.

    failed: why it could not be timed, in one line; then there are no seconds.
    """

    target: Target
    variant: Variant
    seconds: tuple[float, ...]
    gap: float | None = None
    failed: str = ""

    def row(self, dtype: str) -> dict[str, Any]:
        """As a row of a profile: the median, and the median absolute deviation over it."""
        middle = median(self.seconds)
        beside = self.variant.beside
        return {
            "kernel": self.target.kernel,
            "dtype": dtype,
            **self.target.columns(),
            "sms": self.variant.sms,
            "beside": beside.kernel if beside else "",
            **({"beside_sms": self.variant.beside_sms, **beside.columns("beside_")} if beside else {}),
            "latency_s": middle,
            "repeats": len(self.seconds),
            "spread": median(abs(value - middle) for value in self.seconds) / middle,
        }


class Device(Protocol):
    """A device with a model's weights on it.

    name: of ``bulletsim devices`` where it is one of these. dtype: of the operands, as profiles name it.
    settings: what provenance should say of machine and versions.
    rounds: how often the grid is gone through, where times drift while it is.
    """

    name: str
    dtype: str
    shares: Shares
    reach: Reach
    settings: dict[str, Any]
    rounds: int

    def measure(self, group: Group, repeats: int) -> Iterator[Sample]:
        """A sample of each variant, repeats of all variants in turns."""
        ...

    def close(self) -> None: ...


LEAST_SECONDS = 1e-6
"""Host time below this is nothing that can be measured."""


def host_seconds(wall: Sequence[float], parts: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Host time of each repeat: wall time of the whole less the sum of its kernels'. Noise may not make it negative."""
    return tuple(
        max(LEAST_SECONDS, whole - sum(times)) for whole, times in zip(wall, zip(*parts, strict=True), strict=True)
    )
