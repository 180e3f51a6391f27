"""Two launches on a CPU that have cores in common: how many times as long as alone each takes.

A launch is a team of threads, one on each of its cores, and after each kernel all of them wait for the slowest. A
thread that waits sleeps; when it is due again, the thread of the other launch on its core is not stopped at once, and
the rest of the team waits meanwhile. So the launch on more cores stands nearly still while one on fewer of them, which
waits less, goes on as if alone. How far is up to the system's scheduler, and is measured; it is the same whatever the
launches are, but for whether they decode.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import NamedTuple

HALVED = 2.0
"""Where nobody measured it: each has half of the time of the cores in common, and the team waits for those."""


class Shared(NamedTuple):
    """Launches of a kind on a share of the cores beside others on another share: how many times as long they take.

    share, beside_share: of all cores, above 0 to 1; more than 1 together.
    """

    decodes: bool
    share: float
    beside_share: float
    slowdown: float


class CommonCores:
    """Of a device, or a part of one, with so many cores: what was measured, as shares of the cores of the whole."""

    __slots__ = ("_cores", "_known", "_measured")

    def __init__(self, cores: int, measured: Iterable[Shared] = ()) -> None:
        self._cores = cores
        self._measured = tuple(measured)
        self._known: dict[tuple[bool, int, int], float] = {}

    def slowdown(self, decodes: bool, sms: int, beside_sms: int) -> float:
        """Of a launch on so many cores beside another: that of the nearest shares measured, of its kind first.

        Nearest by the ratios of the shares; of several as near, the first.
        """
        key = decodes, sms, beside_sms
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._nearest(*key)
        return found

    def _nearest(self, decodes: bool, sms: int, beside_sms: int) -> float:
        def distance(one: Shared) -> tuple[bool, float]:
            own, other = one.share * self._cores / sms, one.beside_share * self._cores / beside_sms
            return one.decodes != decodes, abs(math.log(own)) + abs(math.log(other))

        return min(self._measured, key=distance).slowdown if self._measured else HALVED


def shared(table: Iterable[Mapping[str, float]], cores: int) -> tuple[Shared, ...]:
    """From the measured co-runs of :class:`profiler.devicecalibration.Contention` on a device of ``cores`` cores.

    Of one kind on the same shares the median counts. Nobody gains by company: none is below 1.
    """
    found: dict[tuple[bool, float, float], list[float]] = {}
    for row in table:
        if row["sms"] + row["beside_sms"] > cores:
            key = bool(row["decodes"]), row["sms"] / cores, row["beside_sms"] / cores
            found.setdefault(key, []).append(row["slowdown"])
    return tuple(Shared(*key, max(1.0, median(values))) for key, values in sorted(found.items()))
