"""The CPU as a device: its cores stand for SMs."""

from __future__ import annotations

import os

from profiler.specs import DeviceSpec

CORE_FLOPS = 60e9
CORE_BYTES_PER_S = 6e9
ELEMENT_RATIO = 2
"""Launches are counted in 16-bit elements and run here in fp32, so every counted byte is two."""


def cpu_device(
    cores: int,
    *,
    flops: float | None = None,
    bytes_per_s: float | None = None,
    bandwidth_knee_cores: int | None = None,
) -> DeviceSpec:
    """``cores`` of a CPU that serve in fp32, with measured peaks where a profile holds them.

    flops, bytes_per_s: of all cores, in fp32 and of memory, as a profile's settings have them under ``ceilings``.
    Raises ValueError for fewer cores than one.
    """
    if cores < 1:
        raise ValueError(f"cores is {cores}; it must be 1 or more")
    bandwidth = bytes_per_s if bytes_per_s is not None else CORE_BYTES_PER_S * cores
    return DeviceSpec(
        name="cpu",
        sms=cores,
        bf16_flops=flops if flops is not None else CORE_FLOPS * cores,
        fp8_flops=None,
        dram_bytes_per_s=bandwidth / ELEMENT_RATIO,
        memory_bytes=_memory_bytes() // ELEMENT_RATIO,
        l2_bytes=32 << 20,
        link_bytes_per_s=bandwidth / ELEMENT_RATIO,
        link_latency_s=20e-6,
        bandwidth_knee_sms=bandwidth_knee_cores or cores,
        sm_granularity=1,
        contention_ceiling=0.13,
        tiled=False,
        in_step=True,
        sources=_sources(flops, bytes_per_s, bandwidth_knee_cores),
    )


def _sources(flops: float | None, bytes_per_s: float | None, knee: int | None) -> tuple[tuple[str, str], ...]:
    measured = "measured, from a profile's ceilings"
    halved = "; half of it, since launches are counted in 16-bit elements and run in fp32"
    return (
        ("sms", "the cores that the process may use"),
        ("bf16_flops", f"{measured if flops is not None else 'assumed'}; the rate in fp32"),
        ("dram_bytes_per_s", f"{measured if bytes_per_s is not None else 'assumed'}{halved}"),
        ("memory_bytes", f"the machine's{halved}"),
        ("l2_bytes", "assumed"),
        ("link_bytes_per_s, link_latency_s", "assumed: a copy in memory, and a message between processes"),
        ("bandwidth_knee_sms", "measured" if knee else "assumed: all cores"),
        ("sm_granularity", "a core"),
        ("contention_ceiling", "assumed: co-running processes on disjoint cores were slowed by up to 13 %"),
    )


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
