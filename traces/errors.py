"""The one error that bad traces raise."""

from __future__ import annotations


class TraceError(ValueError):
    """A trace cannot be read, made or served as asked; the message names place, value and remedy, on one line."""

    def __init__(self, message: str) -> None:
        # Messages quote what a file holds, and a broken file may hold line ends anywhere.
        super().__init__(" ".join(message.split()))
