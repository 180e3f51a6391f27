"""Tables that grow as they are asked, and do not grow for ever."""

from __future__ import annotations

from typing import Final, TypeVar

TABLE_ENTRIES: Final = 32_768
"""Entries that one table keeps before it starts anew."""

K = TypeVar("K")
V = TypeVar("V")


def put(table: dict[K, V], key: K, value: V, most: int | None = None) -> V:
    """Notes ``value`` under ``key`` and returns it; a table with ``most`` entries starts anew."""
    if len(table) >= (most or TABLE_ENTRIES):
        table.clear()
    table[key] = value
    return value
