"""What a launch reads: token ids and where each token goes, in one copy from the host.

The parts lie one after the other in a buffer that a lane keeps, in pinned memory and again on the device. So a launch
costs one copy that nobody waits for, and a captured graph finds its inputs where it was captured, if the launch has as
many tokens and sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from profiler.measure.attention import Segments, Sequenced, check_fit

Integers = NDArray[np.int64]

_EVEN = 2
"""Parts begin at multiples of 16 bytes: kernels are compiled anew for pointers that are less aligned."""


class Layout(NamedTuple):
    """Where each part begins, in units of 8 bytes, and the end of all. The last three are int32, the others int64."""

    tokens: int
    positions: int
    rows: int
    last: int
    query_starts: int
    key_starts: int
    used: int
    end: int

    @classmethod
    def of(cls, tokens: int, sequences: int) -> Layout:
        """For a launch of so many."""
        halves = (sequences + 2) // 2
        sizes = (tokens, tokens, tokens, sequences, halves, halves, (sequences + 1) // 2)
        return cls(*accumulate((-(-size // _EVEN) * _EVEN for size in sizes), initial=0))


class Inputs:
    """The buffer of one lane, for launches of up to ``tokens`` tokens and ``sequences`` sequences."""

    def __init__(self, runtime: Any, tokens: int, sequences: int, slot_tokens: int) -> None:
        self._layout = Layout.of(tokens, sequences)
        self._slot_tokens = slot_tokens
        self._sequences: tuple[Sequenced, ...] = ()
        self._pinned: Tensor = runtime.pinned(self._layout.end)
        self._host: Integers = self._pinned.numpy()
        self._narrow = self._host.view(np.int32)
        self._device = torch.zeros(self._layout.end, dtype=torch.int64, device=runtime.device)

    def write(self, sequences: Sequence[Sequenced], tokens: Sequence[int]) -> None:
        """Puts a launch into pinned memory; what was sent last must have arrived.

        Raises ValueError for a sequence that does not fit its slot.
        """
        check_fit(sequences, self._slot_tokens)
        slots, new, cached = (np.array(column, dtype=np.int64) for column in zip(*sequences, strict=True))
        ends, keys, used = new.cumsum(), slots * self._slot_tokens, cached + new
        count, total = len(sequences), int(ends[-1])
        self._sequences, self._layout = tuple(sequences), Layout.of(total, count)
        layout, host, narrow = self._layout, self._host, self._narrow
        positions = np.arange(total) + np.repeat(used - ends, new)
        host[layout.tokens : layout.tokens + total] = tokens
        host[layout.positions : layout.positions + total] = positions
        host[layout.rows : layout.rows + total] = positions + np.repeat(keys, new)
        host[layout.last : layout.last + count] = ends - 1
        first, key, use = 2 * layout.query_starts, 2 * layout.key_starts, 2 * layout.used
        narrow[first] = 0
        narrow[first + 1 : first + 1 + count] = ends
        narrow[key : key + count] = keys
        narrow[key + count] = keys[-1] + self._slot_tokens
        narrow[use : use + count] = used

    def send(self) -> None:
        """Copies what was written to the device, on the current stream."""
        end = self._layout.end
        self._device[:end].copy_(self._pinned[:end], non_blocking=True)

    def tokens(self) -> Tensor:
        """The token ids of the launch that was written last, on the device."""
        layout = self._layout
        return self._device[layout.tokens : layout.tokens + sum(sequence.new for sequence in self._sequences)]

    def segments(self, longest_key: int | None = None) -> Segments:
        """The sequences of the launch that was written last, as kernels read them.

        ``longest_key``: for a graph, the most tokens that a sequence may have after any launch that replays it.
        """
        layout, sequences, device = self._layout, self._sequences, self._device
        total, count = sum(sequence.new for sequence in sequences), len(sequences)

        def narrow(begin: int, end: int, count: int) -> Tensor:
            return device[begin:end].view(torch.int32)[:count]

        return Segments(
            sequences=sequences,
            slot_tokens=self._slot_tokens,
            positions=device[layout.positions : layout.positions + total],
            rows=device[layout.rows : layout.rows + total],
            query_starts=narrow(layout.query_starts, layout.key_starts, count + 1),
            key_starts=narrow(layout.key_starts, layout.used, count + 1),
            used=narrow(layout.used, layout.end, count),
            last=device[layout.last : layout.last + count],
            longest_query=max(sequence.new for sequence in sequences),
            longest_key=longest_key or max(sequence.cached + sequence.new for sequence in sequences),
        )
