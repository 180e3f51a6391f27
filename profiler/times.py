"""Seconds of kernels added up, with what bounds them and what they rest on."""

from __future__ import annotations

from typing import NamedTuple

from profiler.kerneltime import KernelTime
from profiler.latency import Source

SOURCES: tuple[Source, ...] = ("measured", "interpolated", "extrapolated", "roofline")
"""By their codes below: of two that something rests on, the greater counts."""

CODES = {source: code for code, source in enumerate(SOURCES)}


class Times(NamedTuple):
    """Seconds, those of them that DRAM bounds, what most of them rest on, and those that a link bounds."""

    seconds: float
    dram_seconds: float
    source: Source
    link_seconds: float = 0.0


NO_TIME = Times(0.0, 0.0, "roofline")


def added(times: list[KernelTime]) -> Times:
    """Kernels one after another."""
    # Each sum is rounded as it goes, as those of everyshare are; sum() is not from Python 3.12 on.
    total = dram = link = 0.0
    by_source: dict[Source, float] = {}
    for _, seconds, bound, source in times:
        total += seconds
        if bound == "dram":
            dram += seconds
        elif bound == "link":
            link += seconds
        by_source[source] = by_source.get(source, 0.0) + seconds
    return Times(total, dram, max(by_source, key=by_source.__getitem__), link)


def between(one: Times, two: Times, share: float) -> Times:
    """On the line from one to the other, ``share`` of the way."""
    seconds = one.seconds + share * (two.seconds - one.seconds)
    dram = one.dram_seconds + share * (two.dram_seconds - one.dram_seconds)
    return Times(seconds, dram, one.source, one.link_seconds + share * (two.link_seconds - one.link_seconds))
