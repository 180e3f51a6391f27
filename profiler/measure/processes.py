"""Processes that are born on a set of cores and answer requests over a pipe: both ends.

A core mask set later does not move threads that exist, and a thread count belongs to the thread that sets it; so both
are set before torch is imported, and every share of a CPU is a process of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def settle(cores: Sequence[int]) -> None:
    """Makes this process one of these cores, before it does anything else; it ends when its parent closes the pipe.

    Signals may go to the whole group; the parent decides what they mean.
    """
    os.sched_setaffinity(0, cores)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(len(cores))
    # A thread that waits for its team spins for milliseconds by default. Beside another lane or program, the one it
    # waits for then gets no core meanwhile, and a kernel takes many times as long.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    import torch

    torch.set_num_threads(len(cores))


def waited_s(process: int | None = None) -> float:
    """Seconds that a process's threads have been ready to run without a core, all together; NaN where unknown.

    Of this process by default. Linux counts them a thread: what another program takes shows here, whatever the threads
    do meanwhile.
    """
    try:
        threads = Path(f"/proc/{process or 'self'}/task")
        tasks = [path.read_text().split() for path in threads.glob("*/schedstat")]
    except OSError:
        # A thread has just ended.
        return float("nan")
    return sum(int(fields[1]) for fields in tasks) * 1e-9 if tasks else float("nan")


class Failed(Exception):
    """One request could not be done; others may."""


class Handle:
    """The parent's end: a process that runs ``target(connection, cores, *arguments)``.

    remedy: what to do about a process that died, for the message. Answers are (whether it worked, its value).
    """

    def __init__(
        self, cores: Sequence[int], target: Callable[..., None], arguments: tuple[Any, ...], remedy: str
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.cores, self.remedy = cores, remedy
        self.connection, child = context.Pipe()
        self.process = context.Process(target=target, args=(child, cores, *arguments), daemon=True)
        # One that comes while it is still loading would end it with a traceback: it is born with them blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self.process.start()
            child.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        except BaseException:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self.close()
            raise

    def wait(self) -> Any:
        """The next thing that the process says. Raises ValueError where it died."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join(1)
            raise ValueError(
                f"the process on cores {', '.join(map(str, self.cores))} died with exit code {self.process.exitcode}; "
                f"{self.remedy}"
            ) from None

    def send(self, name: str, *arguments: Any) -> None:
        try:
            self.connection.send((name, arguments))
        except (BrokenPipeError, ConnectionError):
            self.wait()

    def ask(self, name: str, *arguments: Any) -> Any:
        """Raises Failed for what the process could not do."""
        self.send(name, *arguments)
        return self.answer()

    def answer(self) -> Any:
        worked, value = self.wait()
        if not worked:
            raise Failed(str(value))
        return value

    def close(self) -> None:
        """Ends the process, whatever it is at: it holds nothing that would be lost."""
        self.connection.close()
        if self.process.pid is not None:
            self.process.kill()
            self.process.join()
