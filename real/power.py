"""What a GPU draws while it serves: a thread that reads power, clocks and temperature by NVML."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any, NamedTuple, Self

from profiler.measure.nvml import Gpu, open_gpu

EVERY_S = 0.1

REASONS = {
    "power_cap": 0x4,
    "hardware": 0x8,
    "software_thermal": 0x20,
    "hardware_thermal": 0x40,
    "power_brake": 0x80,
}
"""Bits of NVML's clock event reasons that slow a busy GPU; idling, fixed clocks and displays are others."""

QUESTIONS = ("power_w", "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "clock_reasons")


class Reading(NamedTuple):
    """One look, at ``at_s`` of ``perf_counter``; None for what the driver does not tell."""

    at_s: float
    power_w: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    temperature_c: float | None
    clock_reasons: int | None


class PowerSampler:
    """Reads one GPU from :meth:`start` to :meth:`stop`, and first and last of all its energy counter.

    identifier: the GPU's UUID. open_gpu: what finds it; None where NVML or the GPU is missing, and then there is no
    summary either.
    """

    def __init__(
        self,
        identifier: str,
        *,
        every_s: float = EVERY_S,
        open_gpu: Callable[[str], Gpu | None] = open_gpu,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._identifier, self._every_s = identifier, every_s
        self._open, self._clock = open_gpu, clock
        self._gpu: Gpu | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._readings: list[Reading] = []
        self._energy_j: tuple[float | None, float | None] = None, None

    def start(self) -> Self:
        """Begins anew; what was read before is forgotten. Does nothing while it runs."""
        if self._thread is not None:
            return self
        self._readings, self._energy_j = [], (None, None)
        self._gpu = self._open(self._identifier)
        if self._gpu is not None:
            self._energy_j = self._gpu.ask("energy_j"), None
            self._readings.append(self._read(self._gpu))
            self._ended.clear()
            self._thread = threading.Thread(target=self._run, args=(self._gpu,), name="power", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Ends it; may be called twice, and without a start."""
        if self._thread is None or self._gpu is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        self._readings.append(self._read(self._gpu))
        self._energy_j = self._energy_j[0], self._gpu.ask("energy_j")
        self._gpu.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def summary(self) -> dict[str, Any] | None:
        """What was read, in numbers that JSON has; None if nothing was.

        energy_j: by the GPU's counter, else power integrated over time, as ``energy_source`` says.
        throttled: the share of readings in which something slowed the clocks, and of each reason in ``reasons``.
        """
        readings = self._readings
        if not readings:
            return None
        energy_j, source = self._energy()
        power, clock = _known(readings, "power_w"), _known(readings, "sm_clock_mhz")
        memory, heat = _known(readings, "memory_clock_mhz"), _known(readings, "temperature_c")
        reasons = [int(bits) for bits in _known(readings, "clock_reasons")]
        return {
            "readings": len(readings),
            "seconds": readings[-1].at_s - readings[0].at_s,
            "power_mean_w": fmean(power) if power else None,
            "power_max_w": max(power, default=None),
            "energy_j": energy_j,
            "energy_source": source,
            "sm_clock_min_mhz": min(clock, default=None),
            "sm_clock_median_mhz": median(clock) if clock else None,
            "memory_clock_median_mhz": median(memory) if memory else None,
            "temperature_max_c": max(heat, default=None),
            "throttled": fmean(bool(bits & sum(REASONS.values())) for bits in reasons) if reasons else None,
            "reasons": {name: fmean(bool(bits & bit) for bits in reasons) for name, bit in REASONS.items() if reasons},
        }

    def _run(self, gpu: Gpu) -> None:
        while not self._ended.wait(self._every_s):
            self._readings.append(self._read(gpu))

    def _read(self, gpu: Gpu) -> Reading:
        return Reading(self._clock(), *(gpu.ask(name) for name in QUESTIONS))

    def _energy(self) -> tuple[float | None, str | None]:
        first, last = self._energy_j
        if first is not None and last is not None:
            return last - first, "counter"
        known = [(reading.at_s, reading.power_w) for reading in self._readings if reading.power_w is not None]
        if len(known) < 2:
            return None, None
        return sum((b - a) * (p + q) / 2 for (a, p), (b, q) in pairwise(known)), "integrated"


def _known(readings: Sequence[Reading], name: str) -> list[float]:
    return [value for reading in readings if (value := getattr(reading, name)) is not None]
