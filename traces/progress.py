"""How far the work on a trace is, for whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

Progress = Callable[[float], None]
"""Hears the share of the work that is done, from 0 to 1."""


def untold(share: float) -> None:
    """Tells nobody."""


def part(progress: Progress, begin: float, end: float) -> Progress:
    """What tells ``progress`` of a piece of its work, which takes it from the share ``begin`` to ``end``."""
    return lambda share: progress(begin + (end - begin) * share)


class ToldFile(FileIO):
    """A file, read as bytes, that tells the share of them that has been read."""

    def __init__(self, path: Path, progress: Progress) -> None:
        super().__init__(path)
        self._progress = progress
        self._bytes = max(1, path.stat().st_size)

    def readinto(self, buffer: Any) -> int:
        """As any file's."""
        count = super().readinto(buffer)
        self._progress(self.tell() / self._bytes)
        return count

    def read(self, size: int | None = -1) -> bytes:
        """As any file's."""
        found = super().read(size)
        self._progress(self.tell() / self._bytes)
        return found
