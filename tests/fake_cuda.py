"""A GPU whose streams run at once, on the CPU: real tokens, and a record of which stream did what."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import profiler
from profiler.measure import transformer
from profiler.measure.attention import Segments, Sequenced
from profiler.measure.cuda_runtime import Captured
from profiler.measure.numerics import LLAMA3
from real.cuda import CudaLanes
from real.lanes import Batch, Done, Job
from real.model import RunnableModel
from tests.reference_model import one_thread
from tests.test_measure_cuda import FakeDriver, FakeRuntime

SPEC = replace(profiler.model("tiny"), layers=4, hidden=48, intermediate=40, heads=6, kv_heads=2, head_dim=8, vocab=64)
MODEL = RunnableModel(SPEC, LLAMA3, seed=7)
SLOT = 48
SIZES: dict[str, Any] = {"slots": 6, "slot_tokens": SLOT, "launch_tokens": 64}


class FakeStream:
    """``delay_s``: by how much all that it ends is late. ``waited``: the events it was told to wait for."""

    def __init__(self, address: int | None, priority: int) -> None:
        self.address, self.priority = address, priority
        self.delay_s = 0.0
        self.waited: list[FakeEvent] = []

    def wait_event(self, event: FakeEvent) -> None:
        self.waited.append(event)


class FakeEvent:
    """Happens as late as its stream is. ``broken`` raises what a failed device would."""

    broken: str = ""

    def __init__(self) -> None:
        self.at_s = float("nan")
        self.stream: Any = None

    def record(self, stream: FakeStream) -> None:
        self.at_s, self.stream = time.perf_counter() + stream.delay_s, stream

    def query(self) -> bool:
        if self.broken:
            raise RuntimeError(self.broken)
        return time.perf_counter() >= self.at_s

    def elapsed_time(self, other: FakeEvent) -> float:
        return (other.at_s - self.at_s) * 1e3


class FakeGraph:
    def __init__(self, runtime: LaneRuntime, call: Any, stream: FakeStream) -> None:
        self.runtime, self.call, self.stream = runtime, call, stream

    def replay(self) -> None:
        assert self.runtime.current is self.stream, "it runs where it was captured; events elsewhere time nothing"
        self.call(0)
        self.runtime.replayed += 1


class LaneRuntime(FakeRuntime):
    """free: bytes of memory. current: the stream that launches go to. replayed: how many graphs, since it was reset."""

    def __init__(self, free: int = 1 << 40, sms: int = 132) -> None:
        super().__init__()
        self.properties = SimpleNamespace(**{**vars(self.properties), "multi_processor_count": sms})
        self.free, self.current, self.replayed = free, None, 0
        self.pools: set[Any] = set()

    def stream(self, address: int | None = None, priority: int = 0) -> Any:
        return FakeStream(address, priority)

    @contextmanager
    def on(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream  # type: ignore[assignment]
        try:
            with torch.inference_mode():
                yield
        finally:
            self.current = before

    def event(self) -> FakeEvent:
        return FakeEvent()

    def synchronize(self) -> None: ...

    def pinned(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int64)

    def free_bytes(self) -> int:
        return self.free

    def pool(self) -> Any:
        return object()

    def capture(self, call: Any, count: int, stream: Any, pool: Any = None) -> Any:
        assert count == 1
        self.pools.add(pool)
        return Captured(FakeGraph(self, call, stream), stream, count, None)


def device_attention(query: Tensor, keys: Tensor, values: Tensor, segments: Segments, out: Tensor) -> Tensor:
    """Attention by what lies on the device alone, as a captured graph has it: other sequences may be there by now."""
    starts, used = segments.query_starts.tolist(), segments.used.tolist()
    group = query.shape[1] // keys.shape[1]
    for index, (begin, end) in enumerate(pairwise(starts)):
        first, count = int(segments.key_starts[index]), used[index]
        assert end - begin <= segments.longest_query
        assert count <= segments.longest_key
        key, value = (part[first : first + count].repeat_interleave(group, 1) for part in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", query[begin:end], key) * query.shape[-1] ** -0.5
        unseen = torch.ones(end - begin, count, dtype=torch.bool).triu(1 + count - (end - begin))
        out[begin:end] = torch.einsum("hqk,khd->qhd", scores.masked_fill(unseen, -torch.inf).softmax(-1), value)
    return out


Opener = Callable[..., CudaLanes]


@contextmanager
def lane_opener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """What makes lanes on such a GPU; in the end they are closed, and the driver has everything back."""
    made: list[tuple[CudaLanes, Any]] = []

    def make(runtime: LaneRuntime | None = None, driver: FakeDriver | None = None, **settings: Any) -> CudaLanes:
        runtime, driver = runtime or LaneRuntime(), driver or FakeDriver()
        chosen = {"lanes": [("prefill", "decode")], "splits": [32, 64], **SIZES, **settings}
        lanes = CudaLanes(MODEL, dtype=torch.float32, open_runtime=lambda number: runtime, driver=driver, **chosen)
        made.append((lanes, driver))
        return lanes

    monkeypatch.setattr(transformer, "attention", device_attention)
    with one_thread():
        yield make
        for lanes, driver in made:
            lanes.close()
            lanes.close()
            assert driver.alive == []


def run(lanes: CudaLanes, job: Job) -> Done:
    """The job from start to end."""
    lanes.submit(job)
    done = lanes.wait(10)
    assert done is not None
    assert done.job_id == job.job_id
    return done


def prompt_of(slot: int, ids: Sequence[int], first: int = 0, last: int = SPEC.layers) -> Batch:
    """Layers of a whole prompt."""
    return Batch((Sequenced(slot, len(ids), 0),), () if first else tuple(ids), first, last)


def step_of(*slots: int, cached: int = 0, **changes: Any) -> Batch:
    """A decode step; each sequence's last token is the number of its slot."""
    sequences = tuple(Sequenced(slot, 1, cached) for slot in slots)
    return Batch(sequences, tuple(slots), 0, SPEC.layers)._replace(**changes)
