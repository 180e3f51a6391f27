"""What a reader hands on: the columns of one source, before the rules that all formats share are applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from traces.progress import Progress, untold
from traces.request import FloatColumn, IntColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What some formats need to be told.

    ``seed`` drives formats that generate requests (ServeGen), ``scale`` multiplies their rates, and
    ``start_s`` and ``end_s`` cut the span that they generate, in seconds of the source. ``count_tokens``
    gives the tokens of a text, for formats that hold text. ``block_tokens`` is the size of prefix blocks
    where a file has their hashes and not their size. ``progress`` hears how far the reading is.
    """

    seed: int = 0
    scale: float = 1.0
    start_s: float = 0.0
    end_s: float | None = None
    count_tokens: Callable[[str], int] | None = None
    block_tokens: int = 512
    progress: Progress = untold


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Columns of shape (n,) in file order; ``arrival_s`` in seconds from any origin, None for lengths alone.

    ``rebased`` asks for the first arrival to become 0; our own files keep the origin they were written with.
    """

    prompt_tokens: IntColumn
    output_tokens: IntColumn
    arrival_s: FloatColumn | None = None
    request_ids: Sequence[str] | None = None
    session_ids: Sequence[str | None] | None = None
    block_hashes: Sequence[tuple[int, ...]] | None = None
    block_tokens: int | None = None
    rebased: bool = True
    notes: tuple[str, ...] = ()
