"""Times of launches as sums over kernels, tabulated so that one costs a few look-ups.

All of a layer but attention depends on the number of tokens alone, the head on the number of sequences alone, prefill
attention on the sequences being prefilled, and decode attention on the batch and its context; so the sum is four
parts, each kept in a table. ``KernelClock`` is the formula; ``everyshare`` has it for many shares at once, and
``decodetable`` and ``AttentionTimer`` for one after another, to the same bit. Nothing else computes a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from profiler.decodepass import DecodePass, Pieces
from profiler.decodetable import DecodeTable
from profiler.kernels import Chunks, Kernel, Shard
from profiler.kerneltime import (
    AttentionRates,
    AttentionTimer,
    KernelClock,
    KernelTime,
    KernelTimer,
    PromptTimer,
    blocks_of,
)
from profiler.latency import Source
from profiler.layertable import PREPARED_SEQUENCES, LayerTable, Prepared, cost_of
from profiler.overlap import Parts, overlapped, overlapped_cost
from profiler.passrest import PassRest
from profiler.prefillbatch import PrefillBatch
from profiler.tables import put
from profiler.times import NO_TIME, PassTimes, Times
from profiler.work import Work, bad_layers

if TYPE_CHECKING:
    from profiler.decodetable import DecodeKnots


UNMEASURED: tuple[tuple[float, ...], Source] = ((1.0,), "roofline")
"""Alphas of a kernel and their source without a calibration."""

RECENT_BATCHES = 1024
"""Batches of prompts that are kept: one is asked for on several shares, and then no more."""


class Calibration(Protocol):
    """What measurements say of a kernel: the same kernel with its ``alphas`` and ``source``."""

    def calibrated(self, kernel: Kernel) -> Kernel: ...

    def prefill_alphas(self, dims: tuple[int, ...], chunks: Chunks) -> tuple[tuple[float, ...], Source]:
        """Those of a prefill attention of these dimensions, and the source."""
        ...

    @property
    def outside_layers(self) -> list[float] | None:
        """By SMs, a factor on what is in no layer: the embedding and the head."""
        ...

    @property
    def mixes(self) -> bool:
        """Whether ``mixed_ratio`` is known."""
        ...

    def mixed_ratio(self, new_tokens: int, requests: int, context: int) -> float:
        """Attention of prefilling and decoding sequences in one launch over the sum of the two."""
        ...

    def token_knots(self) -> list[int]:
        """Tokens between which a dense layer's time but for attention may be taken as linear, ascending."""
        ...

    def context_knots(self, kernel: Kernel) -> list[float]:
        """Context tokens of a decode attention at which its alphas are known, ascending; linear between them."""
        ...

    def decode_knots(self, kernel: Kernel) -> DecodeKnots | None:
        """Of the batch of a decode attention: the least context, those that are known, and one beyond.

        None where alphas differ from share to share, knots are no whole numbers, or none is above one token.
        """
        ...


def line_knots(shard: Shard, calibration: Calibration | None) -> list[int]:
    """Tokens between which a layer's time but for attention is linear; none where it is not."""
    # Rows of experts change elsewhere than tokens do.
    return [] if calibration is None or shard.model.experts else calibration.token_knots()


class StepTable:
    """Launch times of one shard. Holds no settings of its own; tables grow as shapes are met."""

    __slots__ = (
        "_attention",
        "_attention_dims",
        "_batches",
        "_bounds",
        "_calibration",
        "_clock",
        "_decode",
        "_layers",
        "_mixed_ratio",
        "_passes",
        "_rates",
        "_shard",
        "dram_bytes_per_s",
        "model_layers",
    )

    def __init__(
        self,
        shard: Shard,
        clock: KernelClock,
        calibration: Calibration | None = None,
        beforehand: Prepared | None = None,
    ) -> None:
        shares = range(shard.device.sms + 1)
        self._shard = shard
        self._clock = clock
        self._calibration = calibration
        self._mixed_ratio = calibration.mixed_ratio if calibration is not None and calibration.mixes else None
        self.dram_bytes_per_s = shard.device.dram_bytes_per_s
        self.model_layers = shard.model.layers
        outside = None if calibration is None else calibration.outside_layers
        self._layers = LayerTable(shard, clock, self._calibrated, line_knots(shard, calibration), beforehand, outside)
        batches = None if beforehand is None else beforehand.batches
        self._decode = DecodeTable(shard, clock, self._calibrated, calibration, batches)
        self._attention: list[dict[Chunks, Times]] = [{} for _ in shares]
        self._attention_dims = shard.attention_prefill(((1, 0),)).dims
        self._rates = AttentionRates(clock)
        self._batches: dict[Chunks, PrefillBatch] = {}
        self._bounds: dict[int, list[tuple[int, float, list[float]]]] = {}
        self._passes: list[dict[int, DecodePass]] = [{} for _ in shares]

    def make_ready(self) -> None:
        """Makes now what is otherwise made once it is worth it."""
        self._layers.make_ready()
        for requests in range(1, PREPARED_SEQUENCES + 1):
            self._decode.batch(requests)

    def kernel_time(self, kernel: Kernel, sms: int) -> KernelTime:
        """A kernel of this shard alone on ``sms`` SMs, calibrated where there are measurements."""
        if kernel.op != "attention_decode":
            return self._clock.time(self._calibrated([kernel])[0], sms)
        context, requests = kernel.size, kernel.dims[0]
        if context in (point.size for point in self._decode.points(requests, sms)):
            return self._clock.time(self._calibrated([kernel])[0], sms)
        pieces = self._decode.known[sms].get(requests) or self._decode.add(requests, sms)
        seconds, dram, source = pieces.at(context)
        return KernelTime(kernel, kernel.runs * seconds, "dram" if dram else "compute", source)

    def launch(self, work: Work, sms: int) -> tuple[float, float, Source]:
        """(seconds, those of them bound by DRAM, what most rest on) of a launch alone on ``sms`` SMs, host excluded.

        Raises ValueError for token counts that no launch has.
        """
        prefill, tokens, context, layers, head, _, overlap = work
        if overlap is not None:
            return overlapped(self, work, sms)
        if not prefill:
            if layers is None and context >= tokens > 0:
                return self.decode_pass(tokens, sms).at(context, self.model_layers)
        elif not tokens and not context:
            return self.batch(prefill).launch(self._count(work), layers is None or head, sms)
        return self._launch(work, sms)

    def _launch(self, work: Work, sms: int) -> tuple[float, float, Source]:
        prefill, tokens, context, layers, head, _, _ = work
        seconds = dram = 0.0
        source: Source = "roofline"
        if tokens or context:
            if not 0 < tokens <= context:
                raise _bad(work)
            pieces = self._decode.known[sms].get(tokens) or self._decode.add(tokens, sms)
            seconds, dram, source = pieces.at(context)
        rows = tokens
        if prefill:
            times = self._attention[sms].get(prefill) or self._add_attention(prefill, sms)
            if times[0] >= seconds:
                source = times[2]
            seconds += times[0]
            dram += times[1]
            for chunk in prefill:
                tokens += chunk[0]
            if rows and self._mixed_ratio is not None:
                ratio = self._mixed_ratio(tokens - rows, rows, context)
                seconds *= ratio
                dram *= ratio
            rows += len(prefill)
        layer = self._layers.layers[sms].get(tokens) or self._add_layer(tokens, sms, work)
        if layer[0] >= seconds:
            source = layer[2]
        count = self._count(work)
        if layers is not None and not head:
            return count * (seconds + layer[0]), count * (dram + layer[1]), source
        embedding = self._layers.embeddings[sms].get(tokens) or self._layers.add_embedding(tokens, sms)
        last = self._layers.heads[sms].get(rows) or self._layers.add_head(rows, sms)
        return (
            count * (seconds + layer[0]) + embedding[0] + last[0],
            count * (dram + layer[1]) + embedding[1] + last[1],
            source,
        )

    def parts(self, work: Work, sms: int) -> Parts:
        """The parts that ``launch`` adds up; attention of both phases as if in launches of their own.

        Raises ValueError as ``launch`` does.
        """
        prefill, requests, context = work.prefill, work.decode_requests, work.decode_context_tokens
        decoding = NO_TIME
        if not 0 <= requests <= context or (context and not requests):
            raise _bad(work)
        if requests:
            pieces = self._decode.known[sms].get(requests) or self._decode.add(requests, sms)
            decoding = Times(*pieces.at(context))
        prefilling = NO_TIME
        if prefill:
            prefilling = self._attention[sms].get(prefill) or self._add_attention(prefill, sms)
        tokens = work.new_tokens
        layer = self._layers.layers[sms].get(tokens) or self._add_layer(tokens, sms, work)
        embedding = self._layers.embeddings[sms].get(tokens) or self._layers.add_embedding(tokens, sms)
        rows = len(prefill) + requests
        head = self._layers.heads[sms].get(rows) or self._layers.add_head(rows, sms)
        moved_s = self.cost(work._replace(layers=1, head=False, overlap=None))[1] / self._clock.bandwidth[sms]
        return Parts(prefilling, decoding, layer, embedding.seconds + head.seconds, moved_s)

    def pass_bounds(self, sequences: int) -> list[tuple[int, float, list[float]]]:
        """Of passes that prefill, at the knots that were prepared: tokens, at least the FLOPs of so many sequences
        or fewer without cached tokens, and seconds of a layer but for attention by SMs. Ascending; none without knots.
        """
        bounds = self._bounds.get(sequences)
        if bounds is None:
            heads, bounds = cost_of(self._shard.head_kernels(sequences)).flops, []
            for tokens, layer_s in self._layers.prepared_layers():
                # One sequence attends to more than several of as many tokens.
                attention = self._shard.attention_prefill(((tokens, 0),)).flops
                layer, embedding = self._layers.cost(tokens)
                bounds.append((tokens, self.model_layers * (attention + layer[0]) + embedding[0] + heads, layer_s))
            self._bounds[sequences] = bounds
        return bounds

    def decode_pass(self, requests: int, sms: int) -> DecodePass:
        """Whole passes that decode one or more requests, in parts."""
        return self._passes[sms].get(requests) or self._add_pass(requests, sms)

    def decode_pieces(self, work: Work, sms: int) -> Pieces:
        """Whole passes that decode as many requests as ``work``: where pieces linear in the context begin, and these.

        Raises ValueError as ``launch`` does.
        """
        requests = work.decode_requests
        if not work.decode_context_tokens >= requests > 0:
            raise _bad(work)
        pieces = self._decode.known[sms].get(requests) or self._decode.add(requests, sms)
        layer_s, layer_dram_s, source, embedding_s, embedding_dram_s, head_s, head_dram_s = self._rest(requests, sms)
        count = self.model_layers
        return Pieces(
            pieces.starts,
            [count * (at_zero + layer_s) + embedding_s + head_s for at_zero in pieces.at_zero],
            [count * a_token for a_token in pieces.a_token],
            [count * (dram + layer_dram_s) + embedding_dram_s + head_dram_s for dram in pieces.dram_at_zero],
            [count * a_token for a_token in pieces.dram_a_token],
            [source if layer_s >= pieces.at(start)[0] else pieces.at(start)[2] for start in pieces.starts],
        )

    def cost(self, work: Work) -> tuple[float, float]:
        """(useful FLOPs, DRAM bytes) of a launch on one device. Raises ValueError as ``launch`` does."""
        prefill, tokens, context, layers, head, _, overlap = work
        if overlap is not None:
            return overlapped_cost(self, work)
        if context < tokens or (context and not tokens):
            raise _bad(work)
        if prefill and not (tokens or context):
            return self.batch(prefill).cost(self._count(work), layers is None or head)
        rates = self._shard.decode_attention
        flops = context * rates.flops_per_token
        moved = context * rates.bytes_per_token + tokens * rates.bytes_per_request
        rows = len(prefill) + tokens
        if prefill:
            # The next hybrid launch has other chunks, and nobody asks for its batch again.
            cost = cost_of([self._attention_kernel(prefill)])
            flops += cost[0]
            moved += cost[1]
            for chunk in prefill:
                tokens += chunk[0]
        self._check_tokens(tokens, work)
        layer, embedding = self._layers.cost(tokens)
        count = self._count(work)
        flops, moved = count * (flops + layer[0]), count * (moved + layer[1])
        if layers is not None and not head:
            return flops, moved
        last = self._layers.head_cost(rows)
        return flops + embedding[0] + last[0], moved + embedding[1] + last[1]

    def _calibrated(self, kernels: list[Kernel]) -> list[Kernel]:
        calibration = self._calibration
        return kernels if calibration is None else [calibration.calibrated(kernel) for kernel in kernels]

    def _add_pass(self, requests: int, sms: int) -> DecodePass:
        decoded = DecodePass(self._decode.lines(requests, sms), self._rest(requests, sms))
        return put(self._passes[sms], requests, decoded)

    def _rest(self, requests: int, sms: int) -> PassTimes:
        """A pass that decodes so many, but for attention."""
        return PassRest(self._layers, requests, requests).on(sms)

    def _add_layer(self, tokens: int, sms: int, work: Work) -> Times:
        self._check_tokens(tokens, work)
        return self._layers.add_layer(tokens, sms)

    def _check_tokens(self, tokens: int, work: Work) -> None:
        if tokens < 1 or work.decode_requests < 0:
            raise _bad(work)

    def _count(self, work: Work) -> int:
        """Layers of a launch."""
        count = self.model_layers if work[3] is None else work[3]
        if not 0 < count <= self.model_layers:
            raise bad_layers(work, self.model_layers)
        return count

    def _add_attention(self, prefill: Chunks, sms: int) -> Times:
        kernel = self._attention_kernel(prefill)
        alphas, source = self._alphas(prefill)
        _, seconds, bound, source = self._clock.timed(kernel, sms, alphas, source)
        return put(self._attention[sms], prefill, Times(seconds, seconds if bound == "dram" else 0.0, source))

    def batch(self, chunks: Chunks) -> PrefillBatch:
        """These prompts, with nothing that decodes. Raises ValueError as ``launch`` does."""
        return self._batches.get(chunks) or put(self._batches, chunks, self._make_batch(chunks), RECENT_BATCHES)

    def _make_batch(self, chunks: Chunks) -> PrefillBatch:
        tokens = _new_tokens(chunks)
        totals, dims = self._shard.prompt_totals(chunks), self._attention_dims
        alphas, source = self._alphas(chunks)
        timer: PromptTimer
        if len(alphas) == 1:
            sequences = [blocks_of(chunk, dims) for chunk in chunks] if len(chunks) > 1 else []
            timer = AttentionTimer(self._rates, totals, sequences, alphas[0], source)
        else:
            timer = KernelTimer(self._clock, self._shard.attention_prefill(chunks), alphas, source)
        return PrefillBatch(timer, totals[0], totals[1], tokens, len(chunks), self._layers)

    def _attention_kernel(self, prefill: Chunks) -> Kernel:
        _new_tokens(prefill)
        return self._shard.attention_prefill(prefill)

    def _alphas(self, prefill: Chunks) -> tuple[tuple[float, ...], Source]:
        """Of their attention."""
        calibration = self._calibration
        return UNMEASURED if calibration is None else calibration.prefill_alphas(self._attention_dims, prefill)


def _new_tokens(chunks: Chunks) -> int:
    """Raises ValueError where there are none, or fewer cached ones than none."""
    tokens = 0
    for new, cached in chunks:
        if new < 1 or cached < 0:
            raise _bad(Work(chunks))
        tokens += new
    return tokens


def _bad(work: Work) -> ValueError:
    return ValueError(
        f"no launch has these token counts: {work}; a prefill has 1 or more new and 0 or more cached tokens, a "
        f"decoding request at least one context token, and work has at least one of them"
    )
