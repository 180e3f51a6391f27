"""The CPU as a device: shares are cores, each share a process that was born on them."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from profiler.measure.device import GAP, Sample, host_seconds
from profiler.measure.grid import CPU, Group, Shares, Target, Variant, host_parts
from profiler.measure.models import LAUNCHED, ghost
from profiler.measure.processes import Failed, Handle
from profiler.measure.worker import serve
from profiler.specs import ModelSpec

SAMPLE_S = 0.01
"""A sample is as many calls as take about this long: short enough to be rarely interrupted, long for the clock."""

MOST_CALLS = 500
TRIES = 4
"""How often a sample is taken, while other programs disturb it."""

CACHE_BYTES = 32 << 20
"""Where the machine does not tell."""

REMEDY = "if memory is short, take a smaller --model or --kernels, then go on by the same command"


def cpu_shares(cores: int) -> Shares:
    """Halves and quarters of the cores, as far as there are so many. All of them may be asked for beside any part."""
    parts = sorted({part for part in (cores // 4, cores // 2, 1) if 0 < part < cores})
    splits = tuple((part, cores - part) for part in parts)
    others = sorted({cores, *(part for split in splits for part in split)})
    common = dict.fromkeys(pair for other in others for pair in ((cores, other), (other, cores)))
    return Shares(cores, splits, tuple(common))


def machine() -> dict[str, Any]:
    """What provenance should say of this machine and of how its shares are made."""
    return {
        "machine": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": version("torch"),
        "python": platform.python_version(),
        "shares": "processes on disjoint cores",
    }


class CpuDevice:
    """The cores that this process may use. Workers start when their share is first needed."""

    dtype = "fp32"
    reach = CPU
    rounds = 3

    def __init__(self, model: ModelSpec) -> None:
        self.name = "cpu"
        self.model = model
        self.cores = sorted(os.sched_getaffinity(0))
        self.shares = cpu_shares(len(self.cores))
        self.cache_bytes = _cache_bytes()
        self.workers: dict[tuple[str, tuple[int, ...]], Handle] = {}
        self.settings = {**machine(), "last_level_cache_bytes": self.cache_bytes}

    def measure(self, group: Group, repeats: int) -> Iterator[Sample]:
        if group.target.kernel.startswith("host_"):
            yield from (self._host(group.target, variant, repeats) for variant in group.variants)
        else:
            yield from self._in_turns(group, repeats)
        # Not where Ctrl-C ends it: a process that has still to answer would be taken at its word for another question.
        for worker in self.workers.values():
            if worker.process.is_alive():
                worker.ask("drop")

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self.workers.clear()

    def _in_turns(self, group: Group, repeats: int) -> list[Sample]:
        target = group.target
        failed: dict[Variant, str] = {}
        counts: dict[Variant, int] = {}
        for variant in group.variants:
            try:
                counts[variant] = self._prepared(target, variant)
            except Failed as error:
                failed[variant] = str(error)
        times: dict[Variant, list[tuple[float, float]]] = {variant: [] for variant in counts}
        for _ in range(repeats):
            for variant, count in counts.items():
                times[variant].append(self._timed(target, variant, count))
        samples = [Sample(target, variant, *_seconds_and_gap(found)) for variant, found in times.items()]
        return samples + [Sample(target, variant, (), failed=why) for variant, why in failed.items()]

    def _prepared(self, target: Target, variant: Variant) -> int:
        """Calls of a sample, once both sides are ready."""
        if variant.beside is not None:
            self._beside(variant).ask("prepare", variant.beside)
        return _calls(self._own(variant).ask("prepare", target))

    def _timed(self, target: Target, variant: Variant, count: int) -> tuple[float, float]:
        """Seconds of a call and what other programs took of them, of the try that they disturbed least.

        On cores in common nobody can tell another program from the co-runner: the first try counts.
        """
        if variant.sms + variant.beside_sms > self.shares.whole:
            return self._once(target, variant, count)[0], math.nan
        tries = []
        for _ in range(TRIES):
            tries.append(self._once(target, variant, count))
            if not tries[-1][1] > GAP * tries[-1][0]:
                return tries[-1]
        return min(tries, key=lambda found: found[1] / found[0])

    def _once(self, target: Target, variant: Variant, count: int) -> tuple[float, float]:
        own = self._own(variant)
        if variant.beside is None:
            wall, waited = own.ask("time", target, count)
            return wall, waited
        beside = self._beside(variant)
        beside.ask("loop", variant.beside)
        wall, waited = own.ask("time", target, count)
        beside.ask("stop")
        return wall, waited

    def _host(self, target: Target, variant: Variant, repeats: int) -> Sample:
        """A pass is timed in turns with each of its kernels alone, which are taken off it."""
        parts = host_parts(ghost(self.model), target, min(LAUNCHED, self.model.layers))
        own = self._own(variant)
        try:
            counts = {one: _calls(own.ask("prepare", one)) for one in (target, *(part for part, _ in parts))}
        except Failed as error:
            return Sample(target, variant, (), failed=str(error))
        wall: list[float] = []
        taken: list[list[float]] = [[] for _ in parts]
        for _ in range(repeats):
            wall.append(own.ask("time", target, counts[target])[0])
            for times, (part, runs) in zip(taken, parts, strict=True):
                times.append(runs * own.ask("time", part, counts[part])[0])
        return Sample(target, variant, host_seconds(wall, taken))

    def _own(self, variant: Variant) -> Handle:
        return self._worker("own", tuple(self.cores[: variant.sms]))

    def _beside(self, variant: Variant) -> Handle:
        return self._worker("beside", tuple(self.cores[-variant.beside_sms :]))

    def _worker(self, side: str, cores: tuple[int, ...]) -> Handle:
        """One for each side: both may be on the same cores."""
        key = side, cores
        if key not in self.workers:
            self.workers[key] = Handle(cores, serve, (self.model, self.cache_bytes), REMEDY)
            self.workers[key].wait()
        return self.workers[key]


def _calls(seconds: float) -> int:
    return min(MOST_CALLS, max(1, math.ceil(SAMPLE_S / max(seconds, 1e-9))))


def _seconds_and_gap(times: Sequence[tuple[float, float]]) -> tuple[tuple[float, ...], float | None]:
    gap = max(waited / wall for wall, waited in times)
    return tuple(wall for wall, _ in times), None if math.isnan(gap) else gap


def _cache_bytes() -> int:
    """Of the largest cache; of the machine's, not the share's."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        digits = text.rstrip("KM")
        sizes.append(int(digits) * unit if digits.isdigit() else 0)
    return max(sizes, default=CACHE_BYTES)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    return platform.processor() or platform.machine()
