"""The formats that :func:`traces.load` reads: one module a family, one entry here a format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from traces.formats import azure, lengths, own
from traces.formats.rows import ReadOptions, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a format reads; ``columns`` is the header by which a CSV of it is recognised."""

    read: Callable[[Path, ReadOptions], Rows]
    about: str
    columns: tuple[str, ...] = ()


FORMATS: dict[str, Format] = {
    "azure": Format(read=azure.read, about="Azure LLM inference 2023, 2024, 2025", columns=azure.NEEDED),
    "vidur": Format(
        read=lengths.read_vidur, about="Vidur, Sarathi: arrivals and lengths, or lengths", columns=lengths.VIDUR
    ),
    "exchanges": Format(
        read=lengths.read_exchanges, about="first exchanges of conversations", columns=lengths.EXCHANGES
    ),
    "csv": Format(read=own.read_csv, about="our own CSV", columns=own.NEEDED),
}
"""By name. A CSV is given to the first whose columns its header holds, so the more particular come first."""
