"""Ctrl-C and SIGTERM, put off until what is done by then has been kept."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Held:
    """One signal, held back: the first that came."""

    def __init__(self) -> None:
        self.came: int | None = None
        self._stop: Callable[[], None] | None = None

    def stops(self, stop: Callable[[], None]) -> None:
        """``stop`` is what ends the work that is under way, from a signal handler at any moment."""
        self._stop = stop
        if self.came is not None:
            stop()

    def arrived(self, number: int) -> None:
        self.came = number
        if self._stop is not None:
            self._stop()


@contextmanager
def held_back() -> Iterator[Held]:
    """What a signal does it does at the block's end; a second one does it at once."""
    held = Held()
    # What is ignored, as Ctrl-C by a command in the background, stays ignored.
    before = {number: found for number in SIGNALS if (found := signal.getsignal(number)) != signal.SIG_IGN}

    def arrive(number: int, frame: FrameType | None) -> None:
        restore()
        held.arrived(number)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, arrive)
    try:
        yield held
    finally:
        restore()
    if held.came is not None:
        signal.raise_signal(held.came)
