"""The one error that bad traces raise."""

from __future__ import annotations


class TraceError(ValueError):
    """A trace cannot be read, made or served as asked; the message names place, value and remedy."""
