"""The CPU as the devices of a run: lanes are processes on shares of its cores, weights and KV in memory they share."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from select import select
from typing import NamedTuple

import torch
from torch import Tensor

from policies.api import LINK
from profiler.measure.processes import Failed, Handle, waited_s
from profiler.measure.shares_cpu import cpu_shares, machine
from profiler.measure.transformer import KVCache
from profiler.specs import ModelSpec
from real.arena import ALIGNMENT, Arena, available_bytes
from real.lanes import Copy, DeviceError, Done, Job
from real.model import RunnableModel
from real.worker import Shared, serve

DTYPE = torch.float32

TAKE_LESS = "take fewer --slots, shorter requests or a smaller --model"

REMEDY = "if memory is short, serve with fewer --slots or a smaller --model; what had finished is kept"


class _Lane(NamedTuple):
    """A lane's processes by the cores they have; a link has one, which counts as none."""

    name: str
    shares: dict[int, Handle]

    def granted(self, sms: int) -> int:
        """The share nearest to what is asked, the smaller of two as near."""
        return 0 if self.name == LINK else min(self.shares, key=lambda share: (abs(share - sms), share))


class CpuLanes:
    """Lanes (real.lanes) of one or several instances, each on cores of its own.

    lanes: the names of each instance's. cores_each: of an instance. The first computing lane of an instance takes its
    cores from the front, the second from the back. launch_tokens: the most that a launch may hold.
    Raises ValueError where there are too few cores, or too little memory.
    """

    def __init__(
        self,
        model: RunnableModel,
        *,
        lanes: Sequence[Sequence[str]],
        cores_each: int,
        slots: int,
        slot_tokens: int,
        launch_tokens: int = 16384,
        seed: int = 0,
    ) -> None:
        self.slots, self.slot_tokens = slots, slot_tokens
        self.settings = machine() | {"instances": len(lanes), "cores_each": cores_each}
        cores = sorted(os.sched_getaffinity(0))
        if (needed := len(lanes) * cores_each) > len(cores):
            raise ValueError(
                f"{len(lanes)} instances of {cores_each} cores need {needed}, and this process may use {len(cores)}; "
                f"take a policy of fewer instances, or more cores"
            )
        self._handles: dict[Connection, tuple[Handle, Job | None]] = {}
        self._finished: deque[Done] = deque()
        self._lanes: dict[tuple[int, str], _Lane] = {}
        size = _size(model.spec, lanes, slots, slot_tokens, launch_tokens)
        parts = [cores[i * cores_each :][:cores_each] for i in range(len(lanes))]
        with _room(model.spec.name):
            self._arena = Arena(size)
            try:
                self._start(model, lanes, parts, launch_tokens, seed)
            except BaseException:
                self.close()
                raise

    def granted(self, instance: int, lane: str, sms: int) -> int:
        return self._lanes[instance, lane].granted(sms)

    def submit(self, job: Job) -> None:
        granted = self.granted(job.instance, job.lane, job.sms)
        handle = self._lanes[job.instance, job.lane].shares[granted]
        self._handles[handle.connection] = handle, job._replace(sms=granted)
        try:
            handle.send("copy" if isinstance(job.task, Copy) else "compute", job.task)
        except ValueError as error:
            raise DeviceError(str(error)) from None

    def wait(self, timeout_s: float | None) -> Done | None:
        if not self._finished:
            busy = [connection for connection, (_, job) in self._handles.items() if job is not None]
            if busy:
                # Not multiprocessing's own wait, which counts in whole milliseconds.
                for ready in select(busy, [], [], timeout_s)[0]:
                    self._finished.append(self._answer(ready))
            elif timeout_s is not None:
                time.sleep(timeout_s)
        return self._finished.popleft() if self._finished else None

    def waited_s(self) -> float:
        """Seconds that threads of all lanes have been ready without a core: for each other, or for other programs."""
        return sum(waited_s(handle.process.pid) for handle, _ in self._handles.values())

    def close(self) -> None:
        for handle, _ in self._handles.values():
            handle.close()
        self._handles.clear()
        self._lanes.clear()
        self._arena.close()

    def _answer(self, connection: Connection) -> Done:
        handle, job = self._handles[connection]
        assert job is not None
        self._handles[connection] = handle, None
        try:
            tokens, begin_s, finish_s, processor_s = handle.answer()
        except Failed as error:
            raise DeviceError(f"lane {job.lane} of instance {job.instance} failed: {error}") from None
        except ValueError as error:
            raise DeviceError(str(error)) from None
        return Done(job.job_id, tokens, begin_s, finish_s, processor_s, job.sms)

    def _start(
        self,
        model: RunnableModel,
        lanes: Sequence[Sequence[str]],
        cores: Sequence[Sequence[int]],
        launch_tokens: int,
        seed: int,
    ) -> None:
        spec, arena = model.spec, self._arena
        # Copied in once, for all lanes; the first copy goes.
        weights = arena.unpack(arena.pack(model.weights(torch.device("cpu"), DTYPE)))
        caches = tuple(self._cache(spec) for _ in lanes)
        for instance, names in enumerate(lanes):
            computing = [name for name in names if name != LINK]
            for name in names:
                state: tuple[Tensor | None, Tensor | None] = None, None
                if name != LINK:
                    shape = launch_tokens, spec.hidden
                    state = arena.empty(shape, DTYPE), arena.empty(shape, DTYPE)
                packed = arena.pack(Shared(spec, model.numerics, weights, caches, *state))
                mine = cores[instance]
                alone = name == LINK or len(computing) == 1
                shares = (mine,) if alone else _shares(mine, back=name != computing[0])
                arguments = (arena, packed, instance, seed)
                found = {0 if name == LINK else len(share): self._handle(share, arguments) for share in shares}
                self._lanes[instance, name] = _Lane(name, found)
        for handle, _ in self._handles.values():
            handle.wait()

    def _handle(self, cores: Sequence[int], arguments: tuple[Arena, bytes, int, int]) -> Handle:
        handle = Handle(cores, serve, arguments, REMEDY)
        self._handles[handle.connection] = handle, None
        return handle

    def _cache(self, spec: ModelSpec) -> KVCache:
        shape = self.slots * self.slot_tokens, spec.kv_heads, spec.head_dim
        keys, values = (tuple(self._arena.empty(shape, DTYPE) for _ in range(spec.layers)) for _ in range(2))
        return KVCache(self.slots, self.slot_tokens, keys, values)


@contextmanager
def _room(name: str) -> Iterator[None]:
    """Memory may be short all the same: a limit of this process (ulimit -v) is not in the machine's account."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        why = " ".join(str(error).split()) or "memory is short"
        raise ValueError(f"{name} cannot be laid out: {why}; {TAKE_LESS}") from error


def _shares(cores: Sequence[int], *, back: bool) -> tuple[Sequence[int], ...]:
    """Parts of an instance's cores that a lane may get, from one end or the other."""
    return tuple(cores[-size:] if back else cores[:size] for size in cpu_shares(len(cores)).all)


def _size(spec: ModelSpec, lanes: Sequence[Sequence[str]], slots: int, slot_tokens: int, launch_tokens: int) -> int:
    """Bytes that the processes share. Raises ValueError where this machine has not so many."""
    weights = DTYPE.itemsize * spec.parameters
    # The spec counts KV in its own dtype.
    token = 2 * spec.layers * spec.kv_heads * spec.head_dim * DTYPE.itemsize
    kv = len(lanes) * slots * slot_tokens * token
    state = sum(len(names) for names in lanes) * 2 * launch_tokens * spec.hidden * DTYPE.itemsize
    needed, free = weights + kv + state, available_bytes()
    # They are made, or read, before they are copied in; nothing else has pages until then.
    if max(needed, 2 * weights) > free:
        raise ValueError(
            f"{spec.name} does not fit: weights {weights / 1e9:.1f} GB, KV of {len(lanes)} x {slots} slots of "
            f"{slot_tokens} tokens {kv / 1e9:.1f} GB, launches {state / 1e9:.1f} GB, or weights twice as they are "
            f"loaded, of {free / 1e9:.1f} GB free; {TAKE_LESS}"
        )
    # Every tensor begins at a border: norms, matrices and KV of a layer, and few others.
    tensors = (10 + 2 * len(lanes)) * spec.layers + 2 * len(lanes) * 4 + 8
    return needed + tensors * ALIGNMENT
