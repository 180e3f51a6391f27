"""A process on a share of a CPU that times calls there, as its parent tells it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from profiler.measure.processes import settle, waited_s
from profiler.specs import ModelSpec

if TYPE_CHECKING:
    from profiler.measure.grid import Target
    from profiler.measure.targets import Call


def serve(connection: Connection, cores: Sequence[int], model: ModelSpec, cache_bytes: int) -> None:
    """Answers requests until the pipe ends, which it also does when the parent is killed."""
    settle(cores)
    import torch

    from profiler.measure.targets import Bench

    bench = Bench(model, torch.device("cpu"), torch.float32, cache_bytes)
    worker = Worker(connection, bench.call)
    connection.send("ready")
    with torch.inference_mode():
        worker.answer()


class Worker:
    """Keeps calls that were asked for and times them."""

    def __init__(self, connection: Connection, make: Callable[[Target], Call]) -> None:
        self.connection, self.make = connection, make
        self.calls: dict[Target, Call] = {}
        self.turn = 0

    def answer(self) -> None:
        """Requests are (name of a method below, its arguments); answers are (whether it worked, its value)."""
        while True:
            try:
                name, arguments = self.connection.recv()
                try:
                    answer = True, getattr(self, name)(*arguments)
                except (RuntimeError, ValueError, MemoryError) as error:
                    answer = False, " ".join(str(error).split()) or type(error).__name__
                self.connection.send(answer)
            except (EOFError, OSError):
                return

    def prepare(self, target: Target) -> float:
        """Makes the call and warms it up; seconds of one."""
        if target not in self.calls:
            self.calls[target] = self.make(target)
            self.time(target, 1)
        return min(self.time(target, 1)[0] for _ in range(2))

    def time(self, target: Target, count: int) -> tuple[float, float]:
        """Seconds of one of ``count`` calls in a row, and for how much of it threads waited for a core."""
        call, first = self.calls[target], self.turn
        self.turn += count
        waited, wall = waited_s(), time.perf_counter()
        for turn in range(first, first + count):
            call(turn)
        wall = time.perf_counter() - wall
        return wall / count, (waited_s() - waited) / count

    def loop(self, target: Target) -> Any:
        """Runs the call over and over until the next request arrives; says when it has begun."""
        call = self.calls[target]
        call(self.turn)
        self.connection.send((True, None))
        while not self.connection.poll():
            self.turn += 1
            call(self.turn)
        self.connection.recv()
        return None

    def drop(self) -> None:
        """Forgets all calls and their memory."""
        self.calls.clear()
