"""The serving loop's executor on a device: wall clock, launches as jobs of lanes, real tokens.

The loop decides; what it launches is put in terms that a device knows: which slots, which tokens, which layers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from policies.api import RequestProgress
from profiler.measure.attention import Sequenced
from real.lanes import Batch, Copy, Done, Job, Lanes
from real.residents import Residents
from sim.instance import PolicyError
from sim.launch import Completion, Launch


class DeviceTimes(NamedTuple):
    """Where a launch's time went, in seconds since the run's start, and what came of it.

    begin_s, finish_s: the device was at it. processor_s: processor time of the lane's threads in between, NaN on a GPU.
    granted_sms: the share that the device gave, 0 for a copy.
    tokens: (request, token) of every request that got its next token.
    """

    begin_s: float
    finish_s: float
    processor_s: float
    granted_sms: int
    tokens: tuple[tuple[int, int], ...]


Heirs = tuple[RequestProgress | None, ...]
"""Whose next token each sequence of a launch gives, if anybody's."""


class DeviceExecutor:
    """An executor (sim.launch) over the lanes of real devices. Its clock starts when it is first read.

    layers: of the model. temperature: of sampling; 0 takes the likeliest token. last: of the launch that ``next``
    returned last, where its time went.
    """

    def __init__(
        self,
        lanes: Lanes,
        residents: Residents,
        *,
        layers: int,
        temperature: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.last: DeviceTimes | None = None
        self._lanes, self._residents = lanes, residents
        self._layers, self._temperature = layers, temperature
        self._clock = clock
        self._begun: float | None = None
        self._flights: dict[int, Heirs] = {}
        self._layers_done: dict[tuple[int, str], int] = {}

    def now(self) -> float:
        if self._begun is None:
            self._begun = self._clock()
        return self._clock() - self._begun

    def start(self, launch: Launch) -> None:
        if launch.work.overlap is not None:
            raise PolicyError("a step whose kernels overlap, which no device here can launch; simulate this policy")
        if launch.step.suspend:
            raise PolicyError(
                "a batch put aside between layer groups, which no device here can do; simulate this policy"
            )
        task, heirs = self._copy(launch) if launch.source is not None else self._batch(launch)
        step = launch.step
        sms = 0 if launch.source is not None else step.sms
        self._flights[launch.launch_id] = heirs
        self._lanes.submit(Job(launch.launch_id, launch.instance, step.lane, sms, task))

    def next(self, until_s: float | None) -> Completion | None:
        while self._flights or until_s is not None:
            left_s = None if until_s is None else max(0.0, until_s - self.now())
            done = self._lanes.wait(left_s)
            if done is not None:
                return self._completed(done)
            if until_s is not None and self.now() >= until_s:
                return None
        return None

    def release(self, request: int, instance: int) -> None:
        self._residents.release(instance, request)

    def settle(self) -> None:
        """Waits for what a run that was stopped left in flight: lanes are idle then, for the next."""
        while self._flights:
            done = self._lanes.wait(None)
            if done is not None:
                del self._flights[done.job_id]

    def _completed(self, done: Done) -> Completion:
        now = self.now()
        heirs = self._flights.pop(done.job_id)
        given = []
        for request, token in zip(heirs, done.tokens, strict=bool(done.tokens)):
            if request is not None:
                self._residents.tokens(request).append(token)
                given.append((request.index, token))
        assert self._begun is not None
        begun = self._begun
        self.last = DeviceTimes(done.begin_s - begun, done.finish_s - begun, done.processor_s, done.sms, tuple(given))
        return Completion(done.job_id, now)

    def _copy(self, launch: Launch) -> tuple[Copy, Heirs]:
        request = launch.step.transfer
        assert request is not None
        assert launch.source is not None
        source_slot = self._residents.slot(launch.source, request.index)
        slot = self._residents.slot(launch.instance, request.index)
        return Copy(launch.source, source_slot, slot, launch.work.kv_transfer_tokens), ()

    def _batch(self, launch: Launch) -> tuple[Batch, Heirs]:
        first, last = self._span(launch)
        sequences: list[Sequenced] = []
        tokens: list[int] = []
        heirs: list[RequestProgress | None] = []
        for request, new in launch.step.prefill:
            cached = request.prefilled_tokens
            sequences.append(Sequenced(self._residents.slot(launch.instance, request.index), new, cached))
            # The prompt's last chunk gives the next token; what the others would say is of no use.
            heirs.append(request if cached + new == request.prefill_tokens else None)
            tokens += self._residents.tokens(request)[cached : cached + new]
        for request in launch.decoding:
            cached = request.context_tokens
            sequences.append(Sequenced(self._residents.slot(launch.instance, request.index), 1, cached))
            heirs.append(request)
            tokens += self._residents.tokens(request)[cached : cached + 1]
        batch = Batch(tuple(sequences), () if first else tuple(tokens), first, last, self._temperature)
        return batch, tuple(heirs)

    def _span(self, launch: Launch) -> tuple[int, int]:
        """The layers of the launch: after those that its lane has done of the same batch."""
        lane = launch.instance, launch.step.lane
        first = self._layers_done.pop(lane, 0)
        last = self._layers if launch.work.layers is None else first + launch.work.layers
        if last < self._layers:
            self._layers_done[lane] = last
        return first, last
