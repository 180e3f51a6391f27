"""The calls to torch that need a GPU: streams, graphs and events. All decisions are in shares_cuda."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from profiler.measure.targets import Call

cuda: Any = torch.cuda
"""Its classes have no annotations."""


class Captured(NamedTuple):
    """``calls`` calls as a graph. It runs on the SMs of the stream it was captured on, whatever stream replays it."""

    graph: Any
    stream: Any
    calls: int
    result: Any


class CudaRuntime:
    """One GPU."""

    def __init__(self, ordinal: int = 0) -> None:
        cuda.init()
        self.device = torch.device("cuda", ordinal)
        torch.cuda.set_device(self.device)
        self.properties = torch.cuda.get_device_properties(self.device)

    def stream(self, address: int | None = None, priority: int = 0) -> Any:
        """A stream of the whole device, or the one that the driver made at this address.

        ``priority`` is of the former; a lower number comes first.
        """
        if address is None:
            return cuda.Stream(self.device, priority=priority)
        return cuda.ExternalStream(address, device=self.device)

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """What is launched inside goes to the stream, and to its device."""
        with torch.inference_mode(), torch.cuda.stream(stream):
            yield

    def event(self) -> Any:
        """One with a time, on this device."""
        return cuda.Event(enable_timing=True)

    def synchronize(self) -> None:
        """Waits for all streams of the device."""
        torch.cuda.synchronize(self.device)

    def pinned(self, count: int) -> Tensor:
        """Host memory for ``count`` int64, to and from which copies do not wait."""
        return torch.zeros(count, dtype=torch.int64, pin_memory=True)

    def free_bytes(self) -> int:
        """Memory of the device that nobody holds."""
        return int(torch.cuda.mem_get_info(self.device)[0])

    def pool(self) -> Any:
        """Memory that graphs may share of which never two run at once."""
        return torch.cuda.graph_pool_handle()

    def once(self, call: Call, stream: Any) -> float:
        """Device seconds of one call, after warming up. RuntimeError for what the device cannot run."""
        begin, end = self.event(), self.event()
        self.synchronize()  # inputs were made on another stream
        with torch.inference_mode(), torch.cuda.stream(stream):
            call(0)
            begin.record(stream)
            call(1)
            end.record(stream)
        stream.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def capture(self, call: Call, count: int, stream: Any, pool: Any = None) -> Captured:
        """A graph of ``count`` calls with memory of ``pool``. The caller has warmed them up on the stream."""
        graph = torch.cuda.CUDAGraph()
        self.synchronize()
        with torch.inference_mode(), torch.cuda.stream(stream):
            # Not torch.cuda.graph: it collects garbage and empties caches each time, which takes longer than a sample.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                result = None
                for turn in range(count):
                    result = call(turn)
            except BaseException:
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        return Captured(graph, stream, count, result)

    def seconds(self, captured: Captured, replays: int, warm: bool) -> float:
        """Device seconds of one call, over so many replays; ``warm``: after one more that is not timed."""
        begin, end = self.event(), self.event()
        self._replayed(captured, replays, warm, begin, end)
        captured.stream.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / (replays * captured.calls)

    def seconds_beside(
        self, captured: Captured, replays: int, warm: bool, beside: Captured, beside_replays: int
    ) -> tuple[float, bool]:
        """The same from when ``beside`` begins, and whether that ran until after the last timed replay."""
        running, ended, begin, end = (self.event() for _ in range(4))
        with torch.cuda.stream(beside.stream):
            running.record(beside.stream)
            for _ in range(beside_replays):
                beside.graph.replay()
            ended.record(beside.stream)
        captured.stream.wait_event(running)
        self._replayed(captured, replays, warm, begin, end)
        self.synchronize()
        covered = end.elapsed_time(ended) > 0
        return float(begin.elapsed_time(end)) / 1e3 / (replays * captured.calls), bool(covered)

    def _replayed(self, captured: Captured, replays: int, warm: bool, begin: Any, end: Any) -> None:
        with torch.cuda.stream(captured.stream):
            if warm:
                captured.graph.replay()
            begin.record(captured.stream)
            for _ in range(replays):
                captured.graph.replay()
            end.record(captured.stream)

    def probe(self, first: Any, second: Any) -> None:
        """Does on two streams all that timing does there. RuntimeError where the driver will not have it."""
        values = torch.zeros(1 << 20, device=self.device)
        for stream in (first, second):
            self.once(lambda turn: values.add_(1), stream)
        one, other = (self.capture(lambda turn: values.add_(1), 1, stream) for stream in (first, second))
        self.seconds_beside(one, 1, True, other, 1)
        self.seconds_beside(other, 1, True, one, 1)

    def replay_and_read(self, captured: Captured) -> float:
        """Host seconds from starting a graph of one call until its result has been read."""
        self.synchronize()
        begun = time.perf_counter()
        with torch.cuda.stream(captured.stream):
            captured.graph.replay()
            captured.result.tolist()
        return time.perf_counter() - begun

    def launch(self, call: Call, stream: Any) -> float:
        """Host seconds of a call that goes out kernel by kernel, until the device has finished."""
        self.synchronize()
        begun = time.perf_counter()
        with torch.inference_mode(), torch.cuda.stream(stream):
            call(0)
        stream.synchronize()
        return time.perf_counter() - begun

    def forget(self) -> None:
        """Gives freed memory back, since the next shapes are others."""
        self.synchronize()
        torch.cuda.empty_cache()
