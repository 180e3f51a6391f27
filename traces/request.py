"""What is asked of a server: requests with lengths and arrival times, and where they came from.

A :class:`Trace` keeps its requests in columns, so that a million of them stay small; iterating or indexing
gives :class:`Request` values. ``output_tokens`` is the truth that no policy may see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

FloatColumn = NDArray[np.float64]
IntColumn = NDArray[np.int64]

MAX_ARRIVAL_S = 1e12
"""Some 30,000 years: a later arrival is a slip of units or a broken file, and floats of that size lose milliseconds."""


class Request(NamedTuple):
    """One request. ``arrival_s`` counts from the trace's start; ``block_hashes`` name its prefix blocks."""

    request_id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    session_id: str | None = None
    block_hashes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a trace came from and what was done to it, in order."""

    source: str
    format: str
    sha256: str | None = None
    notes: tuple[str, ...] = ()

    def noting(self, note: str) -> Provenance:
        """The same origin with one more step of its history."""
        return replace(self, notes=(*self.notes, note))


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace(Sequence[Request]):
    """Requests in order of arrival.

    Columns have shape (n,). ``arrival_s`` is None for a file of lengths alone: give it arrivals
    (:mod:`traces.arrivals`) before it can be served. ``block_tokens`` is the size of the hashed prefix
    blocks, where the source has them; ``answers_hashed`` says that they go on over the answer, which is known of
    hashes made from sessions alone (:mod:`traces.sessions`).
    """

    provenance: Provenance
    prompt_tokens: IntColumn
    output_tokens: IntColumn
    arrival_s: FloatColumn | None = None
    request_ids: tuple[str, ...] | None = None
    session_ids: tuple[str | None, ...] | None = None
    block_hashes: tuple[tuple[int, ...], ...] | None = None
    block_tokens: int | None = None
    answers_hashed: bool = False
    name: str = field(default="trace")

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def __iter__(self) -> Iterator[Request]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> Trace: ...
    def __getitem__(self, index: int | slice) -> Request | Trace:
        if isinstance(index, slice):
            return self.select(np.arange(len(self))[index])
        return Request(
            request_id=str(range(len(self))[index]) if self.request_ids is None else self.request_ids[index],
            arrival_s=0.0 if self.arrival_s is None else float(self.arrival_s[index]),
            prompt_tokens=int(self.prompt_tokens[index]),
            output_tokens=int(self.output_tokens[index]),
            session_id=None if self.session_ids is None else self.session_ids[index],
            block_hashes=() if self.block_hashes is None else self.block_hashes[index],
        )

    def select(self, rows: IntColumn | NDArray[np.bool_]) -> Trace:
        """The trace of these rows (indices or mask, shape (m,) or (n,)), their identities kept."""
        chosen = np.arange(len(self))[rows]
        ids = self.request_ids
        return replace(
            self,
            prompt_tokens=self.prompt_tokens[chosen],
            output_tokens=self.output_tokens[chosen],
            arrival_s=None if self.arrival_s is None else self.arrival_s[chosen],
            request_ids=tuple(str(i) if ids is None else ids[i] for i in chosen.tolist()),
            session_ids=None if self.session_ids is None else tuple(self.session_ids[i] for i in chosen),
            block_hashes=None if self.block_hashes is None else tuple(self.block_hashes[i] for i in chosen),
        )


def repeated(ids: Sequence[str]) -> tuple[int, int] | None:
    """The rows of the first name that is given twice; None if each is given once."""
    if len(set(ids)) == len(ids):
        return None
    seen: dict[str, int] = {}
    return next((seen[name], row) for row, name in enumerate(ids) if seen.setdefault(name, row) != row)
