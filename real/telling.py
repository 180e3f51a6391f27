"""How long work says where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Told = Callable[[int, str], None]
"""Is told (steps done, what comes now)."""

Begin = Callable[[int], Told]
"""Is told how many steps there are."""


class Teller:
    """Says nothing. Commands have one that shows progress."""

    def stage(self, what: str) -> AbstractContextManager[Begin]:
        """Something that takes a while, and how far it is."""
        return _silent()

    def note(self, text: str) -> None:
        """One line."""


@contextmanager
def _silent() -> Iterator[Begin]:
    yield lambda steps: lambda done, text: None


SILENT = Teller()
"""For those who are told nothing."""
