"""GPUs as the devices of a run: lanes are streams on shares of the SMs, and one thread launches for all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from profiler.measure.shares_cuda import cuda_runtime, machine
from profiler.measure.transformer import Weights
from real.cuda_clock import seconds
from real.cuda_instance import Instance, Needs, check_lanes, computing, shares_of
from real.cuda_lane import CudaLane, Flight
from real.cuda_shares import DeviceShares
from real.lanes import Batch, Copy, DeviceError, Done, Job
from real.model import RunnableModel

POLL_S = 20e-6
IDLE_S = 1e-3

Key = tuple[int, str]
"""An instance and the name of a lane."""


class CudaLanes:
    """The GPUs of a run (real.lanes.Lanes). They hold nothing of a run once its last job is done: use them again.

    lanes: the names of each instance's; at most two use SMs, and those called ``link`` copy KV.
    slots, slot_tokens: of each instance's KV cache. launch_tokens: the most of one launch.
    seed, temperature: of sampling. Decode at another temperature than this goes out kernel by kernel, not as graphs.
    splits: SMs that the second lane of a GPU will ask for, the first the rest; by default eighths of the device up to
        six. Where a GPU has one lane alone, what that will ask for; by default all.
    graphs: SMs at which lanes decode by graph, by name; by default an instance's last lane at all its shares.
    devices: the number of each instance's GPU, by default 0, 1 and so on. Two instances of a lane each may be on one:
        they share its SMs as two lanes of an instance do if there are splits, and else both use all.
    open_runtime, driver: what reaches a GPU, by its number, and the module of driver calls.

    Raises ValueError for settings that contradict each other and GPUs that are missing, DeviceError for what does not
    fit one or fails there.
    """

    def __init__(
        self,
        model: RunnableModel,
        *,
        lanes: Sequence[Sequence[str]],
        slots: int,
        slot_tokens: int,
        launch_tokens: int = 16384,
        seed: int = 0,
        temperature: float = 0.0,
        splits: Sequence[int] | None = None,
        graphs: Mapping[str, Sequence[int]] | None = None,
        devices: Sequence[int] | None = None,
        dtype: torch.dtype = torch.bfloat16,
        open_runtime: Callable[[int], Any] = cuda_runtime,
        driver: Any = None,
    ) -> None:
        self.slots, self.slot_tokens = slots, slot_tokens
        self.settings: dict[str, Any] = {}
        self._instances: list[Instance] = []
        self._shares: dict[int, DeviceShares] = {}
        self._lanes: dict[Key, CudaLane | None] = {}
        self._flights: dict[Key, tuple[Job, Flight]] = {}
        self._ready: list[tuple[Key, Done]] = []
        self._finished_s: dict[Key, float] = {}
        numbers = list(devices or range(len(lanes)))
        check_lanes(lanes, numbers)
        runtimes = {number: open_runtime(number) for number in dict.fromkeys(numbers)}
        # Kernels draw from the devices' own generators, the one kind that a graph carries on.
        torch.manual_seed(seed)
        needs = Needs(model, slots, slot_tokens, launch_tokens, temperature, dtype)
        try:
            begun_s = time.perf_counter()
            self._open(lanes, [(number, runtimes[number]) for number in numbers], needs, splits, driver)
            self.settings = self._described(self._prepare(lanes, graphs), begun_s)
        except BaseException as error:
            self.close()
            if isinstance(error, RuntimeError):
                raise _device_error("preparing lanes", error) from error
            raise

    def _open(
        self,
        lanes: Sequence[Sequence[str]],
        gpus: Sequence[tuple[int, Any]],
        needs: Needs,
        splits: Sequence[int] | None,
        driver: Any,
    ) -> None:
        """Makes the instances; ``gpus``: number and runtime of each one's."""
        for number, runtime in dict(gpus).items():
            here = [names for names, (other, _) in zip(lanes, gpus, strict=True) if other == number]
            self._shares[number] = shares_of(runtime, driver, here, splits)
        loaded: dict[int, Weights] = {}
        left = {number: list(shares.lanes) for number, shares in self._shares.items()}
        for names, (number, runtime) in zip(lanes, gpus, strict=True):
            own = [left[number].pop(0) for _ in computing(names)]
            instance = Instance(runtime, needs, own, loaded.get(number))
            loaded[number] = instance.replica.weights
            self._instances.append(instance)
        self.rename(lanes)

    def _described(self, captured: int, begun_s: float) -> dict[str, Any]:
        shares = self._shares.values()
        return {
            **machine(self._instances[0].replica.runtime.properties),
            "gpus": len(shares),
            "shares": "; ".join(dict.fromkeys(share.kind for share in shares)),
            "splits": [list(pair) for pair in dict.fromkeys(pair for share in shares for pair in share.splits)],
            "decode_graphs": captured,
            "preparation_s": time.perf_counter() - begun_s,
        }

    def _prepare(self, lanes: Sequence[Sequence[str]], graphs: Mapping[str, Sequence[int]] | None) -> int:
        """Warms up all lanes and captures their graphs; how many."""
        captured = 0
        for instance, names in zip(self._instances, lanes, strict=True):
            for name, lane in zip(computing(names), instance.lanes, strict=True):
                default = [share.sms for share in lane.shares.all] if lane is instance.lanes[-1] else []
                captured += lane.prepare(default if graphs is None else graphs.get(name, ()))
        return captured

    @property
    def uuids(self) -> tuple[str, ...]:
        """NVML's names of the GPUs."""
        return tuple(dict.fromkeys(str(i.replica.runtime.properties.uuid) for i in self._instances))

    def rename(self, lanes: Sequence[Sequence[str]]) -> None:
        """Serves a run with other names: no more instances, nor lanes of one, than there are. The last lanes are kept.

        Raises ValueError where there are too few, or where something is running.
        """
        if self._flights:
            raise ValueError("lanes cannot be renamed while a job is running; wait for it")
        found: dict[Key, CudaLane | None] = {}
        for index, names in enumerate(lanes):
            own = self._instances[index].lanes if index < len(self._instances) else []
            using = computing(names)
            if not 0 < len(using) <= len(own):
                raise ValueError(
                    f"instance {index} is to have lanes {', '.join(names)}, and was made with {len(own)} that use SMs; "
                    f"make lanes anew"
                )
            by_name = dict(zip(using, own[-len(using) :], strict=True))
            found |= {(index, name): by_name.get(name) for name in names}
        self._lanes = found
        self._finished_s.clear()

    def granted(self, instance: int, lane: str, sms: int) -> int:
        """The SMs that a job on this lane gets which asks for ``sms``; 0 on a link."""
        found = self._lane(instance, lane)
        return 0 if found is None else found.shares.nearest(sms).sms

    def submit(self, job: Job) -> None:
        """See real.lanes.Lanes. Raises ValueError for a job that cannot be run, DeviceError where the GPU fails."""
        key, task = (job.instance, job.lane), job.task
        lane = self._lane(*key)
        if key in self._flights:
            raise ValueError(f"{_name(key)} is busy; wait for its job")
        try:
            if isinstance(task, Batch) and lane is not None:
                flight = lane.start(job.sms, task)
            elif isinstance(task, Copy) and lane is None:
                flight = self._copied(job.instance, task)
            else:
                raise ValueError(f"{_name(key)} {'copies KV' if lane is None else 'runs layers'} and nothing else")
        except RuntimeError as error:
            raise _device_error(_name(key), error) from error
        self._flights[key] = job, flight

    def wait(self, timeout_s: float | None) -> Done | None:
        """See real.lanes.Lanes; None at once where nothing runs and no ``timeout_s`` is given."""
        deadline = math.inf if timeout_s is None else time.perf_counter() + timeout_s
        while True:
            self._look()
            if self._ready:
                key, done = self._ready.pop(0)
                del self._flights[key]
                return done
            left_s = deadline - time.perf_counter()
            if left_s <= 0 or (not self._flights and timeout_s is None):
                return None
            time.sleep(min(left_s, POLL_S if self._flights else IDLE_S))

    def close(self) -> None:
        """Waits for what runs and frees everything; may be called twice."""
        self._flights.clear()
        self._ready.clear()
        self._lanes.clear()
        while self._instances:
            self._instances.pop().close()
        while self._shares:
            contexts = self._shares.popitem()[1].contexts
            if contexts is not None:
                contexts.close()

    def _lane(self, instance: int, name: str) -> CudaLane | None:
        """None for a link."""
        try:
            return self._lanes[instance, name]
        except KeyError:
            known = ", ".join(map(_name, self._lanes)) or "none, they are closed"
            raise ValueError(f"there is no {_name((instance, name))}; known: {known}") from None

    def _copied(self, instance: int, task: Copy) -> Flight:
        """KV of every layer, from another instance's cache, on the streams of both links."""
        if not 0 <= task.source < len(self._instances):
            raise ValueError(f"a copy from instance {task.source}; there are {len(self._instances)}")
        if not (0 <= task.slot < self.slots and 0 <= task.source_slot < self.slots):
            raise ValueError(f"a copy from slot {task.source_slot} to {task.slot}; there are 0 to {self.slots - 1}")
        if not 0 < task.tokens <= self.slot_tokens:
            raise ValueError(f"a copy of {task.tokens} tokens; a slot holds 1 to {self.slot_tokens}")
        source, target = self._instances[task.source], self._instances[instance]
        runtime, stream = target.replica.runtime, target.link
        begin, finish = runtime.event(), runtime.event()
        anchor, sent_s = target.replica.clock.anchor(), time.perf_counter()
        there, here = task.source_slot * self.slot_tokens, task.slot * self.slot_tokens
        of, to = source.replica.cache, target.replica.cache
        # A copy between devices goes by the current streams of both.
        with source.replica.runtime.on(source.link), runtime.on(stream):
            begin.record(stream)
            for old, new in zip((*of.keys, *of.values), (*to.keys, *to.values), strict=True):
                new[here : here + task.tokens].copy_(old[there : there + task.tokens], non_blocking=True)
            finish.record(stream)
        return Flight(begin, finish, anchor, sent_s, 0, None)

    def _look(self) -> None:
        """Takes note of all jobs that have ended, the first to end first."""
        known = {key for key, _ in self._ready}
        for key, (job, flight) in self._flights.items():
            if key in known:
                continue
            try:
                if flight.finish.query():
                    self._ready.append((key, self._done(key, job, flight)))
            except RuntimeError as error:
                raise _device_error(_name(key), error) from error
        self._ready.sort(key=lambda ended: ended[1].finish_s)

    def _done(self, key: Key, job: Job, flight: Flight) -> Done:
        # The two clocks agree to microseconds only: nothing began before it was sent or another on its lane had ended.
        begin_s = max(seconds(flight.anchor, flight.begin), flight.sent_s, self._finished_s.get(key, 0.0))
        finish_s = max(begin_s, min(seconds(flight.anchor, flight.finish), time.perf_counter()))
        self._finished_s[key] = finish_s
        tokens = () if flight.results is None else tuple(flight.results.tolist())
        return Done(job.job_id, tokens, begin_s, finish_s, math.nan, flight.sms)


def _name(key: Key) -> str:
    return f"lane {key[1]} of instance {key[0]}"


def _device_error(where: str, error: RuntimeError) -> DeviceError:
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    if isinstance(error, torch.OutOfMemoryError):
        return DeviceError(f"{where}: {reason} Lower slots, slot_tokens or the most tokens of a launch")
    return DeviceError(
        f"{where}: {reason}; this process cannot use the GPU any more. The kernel's log (dmesg, lines with Xid) may "
        f"say more; run again, with CUDA_LAUNCH_BLOCKING=1 to see which launch it was"
    )
