"""Seconds of kernels added up, with what bounds them and what they rest on."""

from __future__ import annotations

from typing import NamedTuple

from profiler.kerneltime import KernelTime
from profiler.latency import Source


class Times(NamedTuple):
    """Seconds, those of them that DRAM bounds, what most of them rest on, and those that a link bounds."""

    seconds: float
    dram_seconds: float
    source: Source
    link_seconds: float = 0.0


NO_TIME = Times(0.0, 0.0, "roofline")


def added(times: list[KernelTime]) -> Times:
    """Kernels one after another."""
    if len(times) == 1:
        _, seconds, bound, source = times[0]
        return Times(seconds, seconds if bound == "dram" else 0.0, source, seconds if bound == "link" else 0.0)
    dram = sum(time.seconds for time in times if time.bound == "dram")
    link = sum(time.seconds for time in times if time.bound == "link")
    by_source: dict[Source, float] = {}
    for time in times:
        by_source[time.source] = by_source.get(time.source, 0.0) + time.seconds
    source = max(by_source, key=by_source.__getitem__)
    return Times(sum(time.seconds for time in times), dram, source, link)


def between(one: Times, two: Times, share: float) -> Times:
    """On the line from one to the other, ``share`` of the way."""
    seconds = one.seconds + share * (two.seconds - one.seconds)
    dram = one.dram_seconds + share * (two.dram_seconds - one.dram_seconds)
    return Times(seconds, dram, one.source, one.link_seconds + share * (two.link_seconds - one.link_seconds))
