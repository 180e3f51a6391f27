"""Launches whose kernels run beside each other: nano-batches, and attention of both phases in one kernel.

Elsewhere a launch is a sum over kernels. Here kernels are sorted by what bounds each when alone (compute, DRAM or the
link), and those of different kinds share the device, at a loss.

**Nano-batches** (NanoFlow, arXiv 2408.12757). Every kernel of a layer is launched once for each part of the batch, with
its own waves, floors and weights; kernels of one part run beside those of another. The paper profiles what a
compute-bound kernel gives up for another one: with 0.4 of the device decode attention runs at 0.8 of its pace alone,
while products are left 0.6 of theirs (section 4.1, table 3 and figure 6). With C, M and L the seconds of each kind
alone, and R and P these two numbers,

    T = max(C + R / P (M + L),  M + (1 - P) / (1 - R) (C + L),  the same for L,  all bytes / D_p)

The first is the time where something compute-bound runs throughout: a second of other work takes 1 / P seconds, in
each of which compute loses R. The second is where DRAM-bound kernels do. Assumed: that the exchange holds on every
device and for links as for DRAM; that the order of kernels never keeps two kinds apart (layers follow each other
without a gap); and that embedding and LM head, outside the layers, are launched once and alone.

**Fused attention** (POD-Attention, arXiv 2410.18038). Blocks of prefill and of decode attention share each SM, so
that the kernel takes the longer of its compute-bound and DRAM-bound parts, and what it fails to hide of the shorter:

    T = max(C, M) + LOST min(C, M)

The paper's largest gain over the two kernels in turn is 59 %, against 100 % if all of two equal halves were hidden:
LOST = 2 / 1.59 - 1. Its mean of 28 % is not an input.

Where a fitted model knows what mixed batches cost in one ragged kernel, that ratio is not applied: these kernels
replace that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from profiler.latency import Source
from profiler.times import Times
from profiler.work import Work, bad_layers

SHARE, PACE = 0.4, 0.8
"""R and P of NanoFlow: the share of the device that decode attention gets beside products, and its pace with that."""

LOST = 2 / 1.59 - 1
"""What a fused attention kernel does not hide of the shorter of its two parts."""


class Parts(NamedTuple):
    """A launch in parts: per layer attention and all else, and ``once_s``, the embedding and the head.

    moved_s: DRAM bytes of one layer over the bandwidth there is.
    """

    prefill_attention: Times
    decode_attention: Times
    layer: Times
    once_s: float
    moved_s: float


class PartTable(Protocol):
    """Where parts are looked up: a :class:`profiler.steptable.StepTable`."""

    @property
    def model_layers(self) -> int: ...
    def parts(self, work: Work, sms: int) -> Parts: ...
    def cost(self, work: Work) -> tuple[float, float]: ...


def nano_batches(work: Work, count: int) -> tuple[Work, ...]:
    """``work`` in up to ``count`` parts that have like numbers of decodes, and of prompt tokens in order.

    A prompt that is cut attends in its later parts to the earlier ones. Parts without tokens are left out.
    """
    prompts = sum(new for new, _ in work.prefill)
    requests, context = work.decode_requests, work.decode_context_tokens
    parts = []
    for index in range(count):
        chunks = _span(work.prefill, prompts * index // count, prompts * (index + 1) // count)
        # The first parts have one decode more, the last ones one token more.
        before, after = (-(-requests * edge // count) for edge in (index, index + 1))
        if chunks or after > before:
            share = context * after // requests - context * before // requests if requests else 0
            parts.append(Work(chunks, after - before, share, work.layers, work.head))
    return tuple(parts)


def _span(chunks: Sequence[tuple[int, int]], begin: int, end: int) -> tuple[tuple[int, int], ...]:
    """Tokens ``begin`` to ``end`` of the chunks laid end to end, as chunks."""
    found = []
    for new, cached in chunks:
        first, last = max(0, begin), min(new, end)
        if first < last:
            found.append((last - first, cached + first))
        begin, end = begin - new, end - new
    return tuple(found)


def exchanged(compute: float, dram: float, link: float) -> float:
    """Seconds of kernels of three kinds beside each other, from the seconds of each alone."""
    slowed = (1 - PACE) / (1 - SHARE)
    return max(
        compute + SHARE / PACE * (dram + link),
        dram + slowed * (compute + link),
        link + slowed * (compute + dram),
    )


def fused(prefill: Times, decode: Times) -> float:
    """Seconds of attention of both phases in one kernel."""
    dram = prefill.dram_seconds + decode.dram_seconds
    compute = prefill.seconds + decode.seconds - dram
    return max(compute, dram) + LOST * min(compute, dram)


def overlapped(table: PartTable, work: Work, sms: int) -> tuple[float, float, Source]:
    """(seconds, those bound by DRAM, what most rest on) of a launch with an overlap, as ``StepTable.launch``.

    Raises ValueError for token counts and layers that no launch has.
    """
    assert work.overlap is not None
    count = _layers(work, table)
    whole = table.parts(work._replace(overlap=None), sms)
    pieces = [whole]
    if work.overlap.fused_attention:
        seconds = fused(whole.prefill_attention, whole.decode_attention) + whole.layer.seconds
    else:
        pieces = [table.parts(part, sms) for part in nano_batches(work, work.overlap.nano_batches)]
        kernels = [times for piece in pieces for times in piece[:3]]
        dram, link = sum(times.dram_seconds for times in kernels), sum(times.link_seconds for times in kernels)
        compute = sum(times.seconds for times in kernels) - dram - link
        seconds = max(exchanged(compute, dram, link), sum(piece.moved_s for piece in pieces))
    longest = max((times for piece in pieces for times in piece[:3]), key=lambda times: times.seconds)
    bound = sum(times.dram_seconds for piece in pieces for times in piece[:3])
    once = whole.once_s if work.head or work.layers is None else 0.0
    return count * seconds + once, min(count * bound, count * seconds), longest.source


def overlapped_cost(table: PartTable, work: Work) -> tuple[float, float]:
    """(FLOPs, DRAM bytes) of a launch with an overlap: nano-batches read the weights of a layer once each."""
    assert work.overlap is not None
    plain = table.cost(work._replace(overlap=None))
    if work.overlap.fused_attention:
        return plain
    count = _layers(work, table)
    in_layers = table.cost(work._replace(layers=1, head=False, overlap=None))
    parts = nano_batches(work, work.overlap.nano_batches)
    costs = [table.cost(part._replace(layers=1, head=False)) for part in parts]
    flops, moved = (sum(values) for values in zip(*costs, strict=True))
    return plain[0] + count * (flops - in_layers[0]), plain[1] + count * (moved - in_layers[1])


def _layers(work: Work, table: PartTable) -> int:
    count = table.model_layers if work.layers is None else work.layers
    if not 0 < count <= table.model_layers:
        raise bad_layers(work, table.model_layers)
    return count
