"""Kernels on every number of SMs at once: what :class:`KernelClock` says of each, in a handful of array operations.

A policy that looks for a split of the SMs asks for one launch on many shares; all of them cost little more than one.
Operation for operation the formulas are those of :class:`KernelClock`, so the numbers are its numbers to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiler.kernels import Kernel
from profiler.kerneltime import KernelClock
from profiler.times import CODES, SOURCES, Sums

Floats = NDArray[np.float64]


class EveryShare(NamedTuple):
    """Kernels x SMs (column n is for n SMs; column 0 means nothing).

    seconds: of all runs. dram: whether DRAM is what bounds them. sources: codes of what they rest on.
    """

    seconds: Floats
    dram: NDArray[np.bool_]
    sources: NDArray[np.int8]


def sums(clock: KernelClock, parts: Sequence[Sequence[Kernel]]) -> list[Sums]:
    """The kernels of each part added up; all parts have kernels of the same kinds in the same order."""
    kinds = [kernel.kind for kernel in parts[0]]
    # Sums go along the first axis, which numpy takes row by row: in the order of the kernels.
    flat = on_every_share(clock, [part[place] for place in range(len(kinds)) for part in parts])
    seconds, dram, sources = (each.reshape(len(kinds), len(parts), -1) for each in flat)
    found = [code for code in range(len(SOURCES)) if (sources == code).any()]
    by_source = np.array([(seconds * (sources == code)).sum(axis=0) for code in found])
    names = [[SOURCES[found[place]] for place in row] for row in by_source.argmax(axis=0).tolist()]
    in_link = [place for place, kind in enumerate(kinds) if kind == "link"]
    link = seconds[in_link].sum(axis=0).tolist() if in_link else [None] * len(parts)
    return list(map(Sums, seconds.sum(axis=0).tolist(), (seconds * dram).sum(axis=0).tolist(), names, link))


def on_every_share(clock: KernelClock, kernels: Sequence[Kernel]) -> EveryShare:
    """``clock.time`` of each kernel on each number of SMs.

    None may be prefill attention of several sequences, whose blocks fill each other's waves.
    """
    formula, dram = _formulas(clock, kernels)
    seconds = formula * _column([kernel.alphas[-1] for kernel in kernels])
    sources = np.empty(formula.shape, dtype=np.int8)
    for row, kernel in enumerate(kernels):
        if len(kernel.alphas) < 2 or kernel.kind == "link":
            assumed = kernel.kind == "link" or kernel.source == "roofline"
            sources[row] = CODES[kernel.source if assumed else "extrapolated"]
            sources[row, (clock.shares.get(kernel.op) or (clock.device.sms,))[-1]] = CODES[kernel.source]
            continue
        for sms in range(1, formula.shape[1]):
            _, seconds[row, sms], _, source = clock.time(kernel._replace(runs=1.0), sms)
            sources[row, sms] = CODES[source]
    return EveryShare(seconds * _column([kernel.runs for kernel in kernels]), dram, sources)


def _formulas(clock: KernelClock, kernels: Sequence[Kernel]) -> tuple[Floats, NDArray[np.bool_]]:
    """Seconds of one run before alpha, and whether DRAM bounds them, kernels x SMs."""
    device = clock.device
    # Nothing runs on no SMs, and that column is never read.
    sms = np.maximum(np.arange(device.sms + 1), 1)
    bandwidth = np.array((1.0, *clock.bandwidth[1:]))
    floors = _column([clock.floors.get(kernel.op, 0.0) for kernel in kernels])
    moving = _column([kernel.dram_bytes for kernel in kernels]) / bandwidth
    rates = [clock.flops.get((kernel.kind, kernel.dtype), math.inf) / device.sms for kernel in kernels]
    computing = _column([kernel.flops for kernel in kernels]) / (_column(rates) * sms)
    in_waves = [row for row, kernel in enumerate(kernels) if kernel.blocks is not None and device.tiled]
    if in_waves:
        blocks = np.array([kernels[row].blocks for row in in_waves])[:, None]
        issued = -(-blocks // sms) * _column([kernels[row].block_flops for row in in_waves])
        computing[in_waves] = issued / _column([rates[row] for row in in_waves])
    seconds, dram = floors + np.maximum(moving, computing), computing <= moving
    for row, kernel in enumerate(kernels):
        if kernel.kind == "link":
            seconds[row] = device.link_latency_s + kernel.link_bytes / device.link_bytes_per_s
            dram[row] = False
    return seconds, dram


def _column(values: list[float]) -> Floats:
    return np.array(values)[:, None]
