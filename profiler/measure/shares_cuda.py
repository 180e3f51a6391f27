"""A CUDA GPU as a device: shares are pairs of green contexts, times come from graphs and events."""

from __future__ import annotations

import importlib
import math
import os
import platform
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from profiler.measure.cuda_runtime import Captured, CudaRuntime
from profiler.measure.device import Sample, host_seconds
from profiler.measure.green import GreenContexts, ShareError, Side, asked, misplaced
from profiler.measure.grid import GPU, Group, Reach, Shares, Target, Variant, host_parts
from profiler.measure.kernels import fused_kernels
from profiler.measure.models import LAUNCHED, ghost
from profiler.measure.nvml import facts
from profiler.measure.targets import Bench
from profiler.presets import DEVICES
from profiler.specs import ModelSpec

GRAPH_S = 2e-3
"""A graph holds calls for about this long, so that starting it does not count."""

SAMPLE_S = 5e-3
WARM_S = 4e-3
"""A graph shorter than this is replayed once before it is timed; in a longer one the start does not count."""

MOST_CALLS = 256
MARGIN = 2.0
"""A co-runner is given this many times the work that would last as long as what is timed beside it."""

TRIES = 5


class Ready(NamedTuple):
    """A point about to be timed: its graph and replays, and those of the other side."""

    captured: Captured
    replays: int
    warm: bool
    beside: Captured | None = None
    beside_replays: int = 0


class CudaDevice:
    """The first GPU that the process sees."""

    dtype = "bf16"
    rounds = 1

    def __init__(self, model: ModelSpec, runtime: Any = None, driver: Any = None) -> None:
        self.runtime = runtime or cuda_runtime()
        properties = self.runtime.properties
        self.model = model
        self.name = device_name(properties.name)
        self.bench = Bench(model, self.runtime.device, torch.bfloat16, properties.L2_cache_size)
        self.reach = fitting(model, properties.total_memory)
        whole = properties.multi_processor_count
        self.contexts, self.pairs, kind = disjoint_pairs(driver, self.runtime, asked(whole))
        # Without shares the two sides of a co-run may both use every SM.
        splits = tuple((a.sms, b.sms) for a, b in self.pairs) or ((whole, whole),)
        self.shares = Shares(whole, splits)
        self.streams = self._streams()
        self.settings = {
            **machine(properties),
            "shares": kind,
            "splits": [list(split) for split in splits],
        }

    def measure(self, group: Group, repeats: int) -> Iterator[Sample]:
        try:
            if group.target.kernel.startswith("host_"):
                yield from (self._host(group.target, variant, repeats) for variant in group.variants)
            else:
                yield from self._in_turns(group, repeats)
        finally:
            self.runtime.forget()

    def close(self) -> None:
        if self.contexts is not None:
            self.contexts.close()

    def _streams(self) -> dict[tuple[int, int], tuple[Any, Any]]:
        """(own, other) streams by (own, other) SMs; the other 0 for a share that runs alone."""
        runtime, whole = self.runtime, self.shares.whole
        found = {(whole, 0): (runtime.stream(), None), (whole, whole): (runtime.stream(), runtime.stream())}
        for a, b in self.pairs:
            first, second = runtime.stream(a.stream), runtime.stream(b.stream)
            found.setdefault((a.sms, b.sms), (first, second))
            found.setdefault((b.sms, a.sms), (second, first))
            found.setdefault((a.sms, 0), (first, None))
            found.setdefault((b.sms, 0), (second, None))
        return found

    def _in_turns(self, group: Group, repeats: int) -> Iterator[Sample]:
        ready: dict[Variant, Ready] = {}
        failed: dict[Variant, str] = {}
        calls: dict[Target, Any] = {}
        for variant in group.variants:
            try:
                ready[variant] = self._ready(group.target, variant, calls)
            except (RuntimeError, ValueError) as error:
                failed[variant] = " ".join(str(error).split())[:300]
        times: dict[Variant, list[float]] = {variant: [] for variant in ready}
        for _ in range(repeats):
            for variant, prepared in ready.items():
                times[variant].append(self._timed(prepared))
        for variant, seconds in times.items():
            if any(math.isnan(value) for value in seconds):
                failed[variant] = "the other side of the co-run ended first, however much of it was queued"
            else:
                yield Sample(group.target, variant, tuple(seconds))
        yield from (Sample(group.target, variant, (), failed=why) for variant, why in failed.items())

    def _ready(self, target: Target, variant: Variant, calls: dict[Target, Any]) -> Ready:
        """Graphs of both sides and their replays, the other's as many as outlast the own ones."""
        own, other = self.streams[variant.sms, variant.beside_sms]
        captured, seconds = self._captured(target, own, calls)
        replays = max(1, math.ceil(SAMPLE_S / seconds))
        ready = Ready(captured, replays, warm=seconds < WARM_S)
        if variant.beside is None:
            return ready
        beside, beside_seconds = self._captured(variant.beside, other, calls)
        span = (replays + ready.warm) * seconds * MARGIN
        return ready._replace(beside=beside, beside_replays=math.ceil(span / beside_seconds))

    def _captured(self, target: Target, stream: Any, calls: dict[Target, Any]) -> tuple[Captured, float]:
        """A graph of one side, and its device seconds."""
        if target not in calls:
            calls[target] = self.bench.call(target)
        first = self.runtime.once(calls[target], stream)
        count = min(MOST_CALLS, max(1, math.ceil(GRAPH_S / max(first, 1e-6))))
        captured = self.runtime.capture(calls[target], count, stream)
        # One long call needs no second look; of short ones the first measured the host's pace.
        return captured, first if count == 1 else count * self.runtime.seconds(captured, 1, True)

    def _timed(self, ready: Ready) -> float:
        """Seconds of a call; NaN where the co-runner could not be kept busy."""
        captured, replays, warm, beside, others = ready
        if beside is None:
            return float(self.runtime.seconds(captured, replays, warm))
        for _ in range(TRIES):
            seconds, covered = self.runtime.seconds_beside(captured, replays, warm, beside, others)
            if covered:
                return float(seconds)
            others *= 2
        return math.nan

    def _host(self, target: Target, variant: Variant, repeats: int) -> Sample:
        """Decode steps are replayed as one graph and their tokens read; launches of layers go out kernel by kernel."""
        stream, _ = self.streams[variant.sms, 0]
        parts = host_parts(ghost(self.model), target, min(LAUNCHED, self.model.layers))
        calls: dict[Target, Any] = {}
        try:
            graphs = [(self._captured(part, stream, calls)[0], runs) for part, runs in parts]
            call = self.bench.call(target)
            self.runtime.once(call, stream)
            step = self.runtime.capture(call, 1, stream) if target.kernel == "host_pass" else None
        except (RuntimeError, ValueError) as error:
            return Sample(target, variant, (), failed=" ".join(str(error).split())[:300])
        wall: list[float] = []
        taken: list[list[float]] = [[] for _ in graphs]
        for _ in range(repeats):
            wall.append(self.runtime.replay_and_read(step) if step else self.runtime.launch(call, stream))
            for times, (graph, runs) in zip(taken, graphs, strict=True):
                times.append(runs * self.runtime.seconds(graph, 1, True))
        return Sample(target, variant, host_seconds(wall, taken))


def machine(properties: Any) -> dict[str, Any]:
    """What provenance should say of a GPU, by torch's ``properties`` of it and by its driver."""
    return {
        "machine": properties.name,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "elementwise": "triton" if fused_kernels() else "torch",
        **facts(str(properties.uuid)),
    }


def cuda_runtime(ordinal: int = 0) -> CudaRuntime:
    """The GPU of this number, counted among those that the process sees. Raises ValueError where there is none."""
    # Read when CUDA starts; with fewer queues two streams may wait for each other though their SMs are disjoint.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    if not torch.cuda.is_available():
        raise ValueError(
            f"device is 'cuda', but torch {torch.__version__} finds no CUDA GPU; take --device cpu, or install a torch "
            f"built for CUDA on a machine with a GPU and its driver"
        )
    count = torch.cuda.device_count()
    if ordinal >= count:
        raise ValueError(
            f"{ordinal + 1} GPUs are needed, one for each instance, and torch finds {count}; take fewer instances, or "
            f"see what CUDA_VISIBLE_DEVICES hides"
        )
    return CudaRuntime(ordinal)


def disjoint_pairs(
    driver: Any, runtime: Any, sizes: Sequence[int]
) -> tuple[GreenContexts | None, list[tuple[Side, Side]], str]:
    """Pairs of shares, one of about each of ``sizes`` SMs and the rest, and in words what they are.

    ``driver``: the module of driver calls, None for cuda.bindings. Pairs are equal to others but once. Where the driver
    refuses, or blocks were seen on other SMs than granted, there are none, and the words say why.
    """
    if driver is None:
        try:
            driver = importlib.import_module("cuda.bindings.driver")
        except ImportError:
            return None, [], "shared streams: cuda.bindings is not installed"
    contexts = None
    try:
        contexts = GreenContexts(driver, runtime.device.index or 0)
        found = [contexts.split(size) for size in sizes]
        for first, second in found:
            runtime.probe(runtime.stream(first.stream), runtime.stream(second.stream))
    except (ShareError, AttributeError, RuntimeError) as error:
        if contexts is not None:
            contexts.close()
        return None, [], f"shared streams: {str(error).splitlines()[0]}"
    pairs = list({(a.sms, b.sms): (a, b) for a, b in reversed(found)}.values())[::-1]
    where = _placement(pairs, runtime, contexts.whole)
    if where.startswith("shared"):
        contexts.close()
        return None, [], where
    return contexts, pairs, where


def _placement(pairs: list[tuple[Side, Side]], runtime: Any, whole: int) -> str:
    try:
        from profiler.measure.smid import sms_of

        seen = {side.stream: sms_of(runtime.stream(side.stream), whole) for pair in pairs for side in pair}
    except Exception as error:
        # Anything a compiler may raise. The driver's own counts are granted all the same.
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        return f"green contexts, SM numbers unchecked: {reason}"
    wrong = misplaced(pairs, seen)
    return f"shared streams: {wrong}" if wrong else "green contexts, SM numbers checked"


def device_name(torch_name: str) -> str:
    """The built-in device that torch calls this, else torch's own name.

    torch says "NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB" or "NVIDIA GeForce RTX 4090".
    """
    words = torch_name.replace("-", " ").split()
    # Parts with PCIe sockets and paired boards run at other clocks than the built-in ones.
    if {"PCIe", "PCIE", "NVL"} & set(words):
        return torch_name
    for spec in DEVICES:
        family, *size = spec.name.split("-")
        if family in words and all(part in words or f"{part}B" in words for part in size):
            return spec.name
    return torch_name


def fitting(model: ModelSpec, memory_bytes: int) -> Reach:
    """The reach, with decode batches whose KV takes a quarter of the memory at most."""
    per_token = model.kv_bytes_per_token // model.layers * min(GPU.layers, model.layers)
    tokens = memory_bytes // 4 // per_token
    return GPU._replace(kv_tokens=min(GPU.kv_tokens, 1 << (max(1, tokens).bit_length() - 1)))
