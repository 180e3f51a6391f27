"""Devices of a run in this process, on a clock of their own: real tokens, durations as a test chooses them."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

import pytest
import torch

from policies.api import LINK
from profiler.measure.attention import Segments
from profiler.measure.numerics import LLAMA3, Numerics
from profiler.measure.transformer import KVCache, Scratch, Transformer, Weights
from profiler.specs import ModelSpec
from real import serving
from real.executor import DeviceExecutor
from real.lanes import Batch, Copy, Done, Job
from sim.launch import Completion

CPU, FP32 = torch.device("cpu"), torch.float32
TICK_S = 1e-6
"""By how much the clock goes on whenever it is read, as a real one does."""

Seconds = Callable[[Job], float]


class InlineLanes:
    """Lanes (real.lanes) that compute in this process, each job when it begins or when it ends, as ``random`` says.

    seconds: how long a job takes. Whatever the loop launches must suit the slots: two jobs at once share none, and a
    sequence goes on where it stopped. ``busy_s`` sums the jobs' seconds by instance and lane.
    """

    settings: dict[str, Any]

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        numerics: Numerics = LLAMA3,
        *,
        lanes: Sequence[Sequence[str]],
        slots: int,
        slot_tokens: int,
        seconds: Seconds,
        random: Random | None = None,
        begins_s: float = 1000.0,
    ) -> None:
        self.slots, self.slot_tokens, self.settings = slots, slot_tokens, {"machine": "a test"}
        self.jobs: list[Job] = []
        self.busy_s: defaultdict[tuple[int, str], float] = defaultdict(float)
        self._seconds, self._random, self._now_s = seconds, random or Random(0), begins_s
        self._caches = [KVCache.of(spec, slots, slot_tokens, CPU, FP32) for _ in lanes]
        self._models = {
            (instance, name): Transformer(
                spec,
                weights,
                self._caches[instance],
                Scratch(spec, slots * slot_tokens, slots, CPU, FP32),
                numerics=numerics,
            )
            for instance, names in enumerate(lanes)
            for name in names
            if name != LINK
        }
        self._layers = spec.layers
        self._flights: list[tuple[float, int, Job, float, tuple[int, ...] | None]] = []
        self._held: dict[tuple[int, int], int] = {}

    def clock(self) -> float:
        """Seconds; later at every look."""
        self._now_s += TICK_S
        return self._now_s

    def granted(self, instance: int, lane: str, sms: int) -> int:
        return sms

    def submit(self, job: Job) -> None:
        lane, slots = (job.instance, job.lane), _slots(job)
        for _, _, other, _, _ in self._flights:
            assert (other.instance, other.lane) != lane, "a lane has one job at a time"
            assert not slots & _slots(other), "two jobs at once are in one slot"
        if job.job_id >= 0:  # a probe reads whatever lies there
            self._check_held(job)
        self.jobs.append(job)
        begin_s = self.clock()
        seconds = self._seconds(job)
        self.busy_s[lane] += seconds
        early = self._computed(job) if self._random.random() < 0.5 else None
        heapq.heappush(self._flights, (begin_s + seconds, len(self.jobs), job, begin_s, early))

    def wait(self, timeout_s: float | None) -> Done | None:
        until_s = float("inf") if timeout_s is None else self._now_s + timeout_s
        if not self._flights or self._flights[0][0] > until_s:
            assert timeout_s is not None, "it would wait for ever"
            self._now_s = until_s
            return None
        finish_s, _, job, begin_s, early = heapq.heappop(self._flights)
        self._now_s = max(self._now_s, finish_s)
        tokens = self._computed(job) if early is None else early
        return Done(job.job_id, tokens, begin_s, finish_s, finish_s - begin_s, job.sms)

    def close(self) -> None: ...

    def _check_held(self, job: Job) -> None:
        """A sequence begins at 0 or goes on where it stopped; a layer group goes on with what its lane has."""
        if isinstance(job.task, Copy):
            assert self._held[job.task.source, job.task.source_slot] == job.task.tokens
            self._held[job.instance, job.task.slot] = job.task.tokens
            return
        assert len(job.task.tokens) == (0 if job.task.first else sum(one.new for one in job.task.sequences))
        for one in job.task.sequences:
            place = job.instance, one.slot
            assert 0 <= one.slot < self.slots
            assert one.cached in (0, self._held.get(place)), "it goes on where it stopped, or begins anew"
            if job.task.last == self._layers:
                self._held[place] = one.cached + one.new

    def _computed(self, job: Job) -> tuple[int, ...]:
        with torch.inference_mode():
            return self._copied(job, job.task) if isinstance(job.task, Copy) else self._run(job, job.task)

    def _copied(self, job: Job, task: Copy) -> tuple[int, ...]:
        of, to = self._caches[task.source], self._caches[job.instance]
        for source, target in zip((*of.keys, *of.values), (*to.keys, *to.values), strict=True):
            there, here = (part.view(self.slots, self.slot_tokens, *part.shape[1:]) for part in (source, target))
            here[task.slot, : task.tokens] = there[task.source_slot, : task.tokens]
        return ()

    def _run(self, job: Job, batch: Batch) -> tuple[int, ...]:
        model = self._models[job.instance, job.lane]
        segments = Segments.of(batch.sequences, self.slot_tokens, CPU)
        if batch.first == 0:
            model.begin(torch.tensor(batch.tokens))
        model.layers(segments, batch.first, batch.last)
        if batch.last < self._layers:
            return ()
        found: list[int] = model.next_tokens(segments).tolist()
        return tuple(found)


def _slots(job: Job) -> set[tuple[int, int]]:
    """(instance, slot) that a job reads or writes."""
    if isinstance(job.task, Copy):
        return {(job.instance, job.task.slot), (job.task.source, job.task.source_slot)}
    return {(job.instance, one.slot) for one in job.task.sequences}


class NotingExecutor(DeviceExecutor):
    """Keeps what the device said of every launch: ``tokens`` of each request, and ``times``, in order."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.tokens: defaultdict[int, list[int]] = defaultdict(list)
        self.times: list[Any] = []

    def next(self, until_s: float | None) -> Completion | None:
        completion = super().next(until_s)
        if completion is not None:
            assert self.last is not None
            self.times.append(self.last)
            for request, token in self.last.tokens:
                self.tokens[request].append(token)
        return completion


@contextmanager
def served_by_its_clock(lanes: InlineLanes) -> Iterator[None]:
    """``serving.serve`` reads the lanes' clock instead of the wall's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "DeviceExecutor", partial(DeviceExecutor, clock=lanes.clock))
        yield


def drawn_seconds(random: Random, shortest: float = 0.001, longest: float = 0.1) -> Seconds:
    """Durations of no law: a factor between the shortest and the longest, so that lanes overtake each other."""
    return lambda job: shortest * (longest / shortest) ** random.random()
