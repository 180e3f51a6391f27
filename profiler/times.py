"""Seconds of kernels added up, with what bounds them and what they rest on."""

from __future__ import annotations

from operator import mul
from typing import Final, NamedTuple

from profiler.kerneltime import KernelTime
from profiler.latency import Source

SOURCES: tuple[Source, ...] = ("measured", "interpolated", "extrapolated", "roofline")
"""By their codes below: of two that something rests on, the greater counts."""

CODES = {source: code for code, source in enumerate(SOURCES)}

new: Final = tuple.__new__
"""Of what is made for every estimate: their own constructors take three times as long."""


class Times(NamedTuple):
    """Seconds, those of them that DRAM bounds, what most of them rest on, and those that a link bounds."""

    seconds: float
    dram_seconds: float
    source: Source
    link_seconds: float = 0.0


PassTimes = tuple[float, float, Source, float, float, float, float]
"""A pass on some SMs: of a layer seconds, those of them that DRAM bounds and what they rest on; seconds and DRAM
seconds of the embedding, and of the head."""


def scaled(times: Times, factor: float) -> Times:
    """So many times as long."""
    seconds, dram, source, link = times
    return Times(factor * seconds, factor * dram, source, factor * link)


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


class Sums(NamedTuple):
    """Kernels one after another, on any number of SMs: entry n of each list is for n SMs, ``link`` None for zeros."""

    seconds: list[float]
    dram: list[float]
    sources: list[Source]
    link: list[float] | None

    def on(self, sms: int) -> Times:
        """The sum on ``sms`` SMs, resting on what most of its seconds rest on."""
        link = 0.0 if self.link is None else self.link[sms]
        return new(Times, (self.seconds[sms], self.dram[sms], self.sources[sms], link))


def scaled_sums(sums: Sums, factors: list[float]) -> Sums:
    """:func:`scaled` on any number of SMs, by the factor there."""
    seconds, dram, sources, link = sums
    link = None if link is None else list(map(mul, factors, link))
    return Sums(list(map(mul, factors, seconds)), list(map(mul, factors, dram)), sources, link)


def between_sums(one: Sums, two: Sums, share: float, sms: int) -> Times:
    """:func:`between` of the two on ``sms`` SMs."""
    seconds, dram, sources, link = one
    one_s, dram_s, link_s = seconds[sms], dram[sms], 0.0
    seconds, dram, _, other_link = two
    if link is not None and other_link is not None:
        link_s = link[sms] + share * (other_link[sms] - link[sms])
    found = (one_s + share * (seconds[sms] - one_s), dram_s + share * (dram[sms] - dram_s), sources[sms], link_s)
    return new(Times, found)
