"""Times of launches under the SM-scaling roofline, tabulated so that one costs a few look-ups.

A launch is a sum over its kernels. All of a layer but attention depends on the number of tokens alone, the head on
the number of sequences alone, prefill attention on each sequence alone, and decode attention is linear in the batch;
so the sum is four parts, of which three are kept in tables. ``kernel_time`` is the formula; nothing else computes one.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from profiler.kernels import Kernel, Shard
from profiler.tiles import waves
from profiler.work import Work

TABLE_ENTRIES = 4096
"""Entries that one table (of one number of SMs) keeps before it starts anew."""


K = TypeVar("K")
V = TypeVar("V")


class Peaks(NamedTuple):
    """What kernels reach on a whole device when no wave is lost: FLOP/s by kind and dtype, and bytes/s."""

    flops: dict[tuple[str, str], float]
    dram_bytes_per_s: float


class KernelTime(NamedTuple):
    """A kernel, the seconds of all its ``runs`` launches, and what bounds it: compute, dram or link."""

    kernel: Kernel
    seconds: float
    bound: str


class _Times(NamedTuple):
    """Seconds, and those of them that DRAM bounds."""

    seconds: float
    dram_seconds: float


class _Cost(NamedTuple):
    flops: float
    dram_bytes: float


def _sum(times: list[KernelTime]) -> _Times:
    dram = sum(time.seconds for time in times if time.bound == "dram")
    return _Times(sum(time.seconds for time in times), dram)


def _cost(kernels: list[Kernel]) -> _Cost:
    return _Cost(sum(k.runs * k.flops for k in kernels), sum(k.runs * k.dram_bytes for k in kernels))


class StepTable:
    """Launch times of one shard. Holds no settings of its own; tables grow as shapes are met."""

    __slots__ = (
        "_bandwidth",
        "_chunk_costs",
        "_chunks",
        "_decode",
        "_head_costs",
        "_heads",
        "_layer_costs",
        "_layer_kernels",
        "_layers",
        "_model_layers",
        "_shard",
        "_sm_flops",
    )

    def __init__(self, shard: Shard, peaks: Peaks) -> None:
        shares = range(shard.device.sms + 1)
        device = shard.device
        self._shard = shard
        self._sm_flops = {key: flops / device.sms for key, flops in peaks.flops.items()}
        self._bandwidth = [peaks.dram_bytes_per_s * min(1.0, sms / device.bandwidth_knee_sms) for sms in shares]
        self._model_layers = shard.model.layers
        self._layers: list[dict[int, tuple[_Times, _Times]]] = [{} for _ in shares]
        self._heads: list[dict[int, _Times]] = [{} for _ in shares]
        self._chunks: list[dict[tuple[int, int], _Times]] = [{} for _ in shares]
        self._decode = [(0.0, 0.0, 0.0), *(self._decode_rates(sms) for sms in shares[1:])]
        self._layer_kernels: dict[int, tuple[list[Kernel], list[Kernel]]] = {}
        self._layer_costs: dict[int, tuple[_Cost, _Cost]] = {}
        self._head_costs: dict[int, _Cost] = {}
        self._chunk_costs: dict[tuple[int, int], _Cost] = {}

    def kernel_time(self, kernel: Kernel, sms: int) -> KernelTime:
        """T = max(q f_b / C_p, m / D_p), with waves in C_p and the bandwidth knee in D_p; links ignore SMs."""
        _, kind, flops, dram_bytes, dtype, blocks, block_flops, link_bytes, runs = kernel
        if kind == "link":
            device = self._shard.device
            seconds = device.link_latency_s + link_bytes / device.link_bytes_per_s
            return KernelTime(kernel, runs * seconds, "link")
        moved = dram_bytes / self._bandwidth[sms]
        if kind == "memory":
            return KernelTime(kernel, runs * moved, "dram")
        flops_of_one_sm = self._sm_flops[kind, dtype]
        if blocks is None:
            computed = flops / (flops_of_one_sm * sms)
        else:
            computed = waves(blocks, sms) * block_flops / flops_of_one_sm
        if computed > moved:
            return KernelTime(kernel, runs * computed, "compute")
        return KernelTime(kernel, runs * moved, "dram")

    def launch(self, work: Work, sms: int) -> tuple[float, float]:
        """(seconds, those of them bound by DRAM) of a launch alone on ``sms`` SMs, host overhead excluded.

        Raises ValueError for token counts that no launch has.
        """
        prefill, tokens, context, layers, head, _ = work
        seconds = dram = 0.0
        if tokens:
            if context < tokens:
                raise _bad(work)
            token_flops_s, token_bytes_s, request_bytes_s = self._decode[sms]
            moved = context * token_bytes_s + tokens * request_bytes_s
            computed = context * token_flops_s
            if computed > moved:
                seconds = computed
            else:
                seconds = dram = moved
        elif context:
            raise _bad(work)
        rows = len(prefill) + tokens
        if prefill:
            chunks = self._chunks[sms]
            for chunk in prefill:
                tokens += chunk[0]
                times = chunks.get(chunk) or self._add_chunk(chunk, sms, work)
                seconds += times[0]
                dram += times[1]
        layer, embedding = self._layers[sms].get(tokens) or self._add_layer(tokens, sms, work)
        if layers is None:
            count = self._model_layers
        else:
            if not 0 < layers <= self._model_layers:
                raise _bad_layers(work, self._model_layers)
            count = layers
            if not head:
                return count * (seconds + layer[0]), count * (dram + layer[1])
        last = self._heads[sms].get(rows) or self._add_head(rows, sms)
        return (
            count * (seconds + layer[0]) + embedding[0] + last[0],
            count * (dram + layer[1]) + embedding[1] + last[1],
        )

    def cost(self, work: Work) -> tuple[float, float]:
        """(useful FLOPs, DRAM bytes) of a launch on one device. Raises ValueError as ``launch`` does."""
        prefill, tokens, context, layers, head, _ = work
        if context < tokens or (context and not tokens):
            raise _bad(work)
        rates = self._shard.decode_attention
        flops = context * rates.flops_per_token
        moved = context * rates.bytes_per_token + tokens * rates.bytes_per_request
        rows = len(prefill) + tokens
        for chunk in prefill:
            tokens += chunk[0]
            cost = self._chunk_costs.get(chunk) or self._add_chunk_cost(chunk, work)
            flops += cost[0]
            moved += cost[1]
        layer, embedding = self._layer_costs.get(tokens) or self._add_layer_cost(tokens, work)
        count = self._model_layers if layers is None else layers
        if not 0 < count <= self._model_layers:
            raise _bad_layers(work, self._model_layers)
        flops, moved = count * (flops + layer[0]), count * (moved + layer[1])
        if layers is not None and not head:
            return flops, moved
        last = self._head_costs.get(rows) or self._add_head_cost(rows)
        return flops + embedding[0] + last[0], moved + embedding[1] + last[1]

    def _decode_rates(self, sms: int) -> tuple[float, float, float]:
        """Seconds of decode attention in one layer: computing a token, moving a token, moving a sequence."""
        rates = self._shard.decode_attention
        bandwidth = self._bandwidth[sms]
        computing = self._sm_flops["attention", "bf16"] * sms
        return (
            rates.flops_per_token / computing,
            rates.bytes_per_token / bandwidth,
            rates.bytes_per_request / bandwidth,
        )

    def _kernels(self, tokens: int, work: Work) -> tuple[list[Kernel], list[Kernel]]:
        """Kernels of one layer and of the embedding."""
        found = self._layer_kernels.get(tokens)
        if found is None:
            if tokens < 1 or work.decode_requests < 0:
                raise _bad(work)
            found = (self._shard.layer_kernels(tokens), self._shard.embedding_kernels(tokens))
            _put(self._layer_kernels, tokens, found)
        return found

    def _add_layer(self, tokens: int, sms: int, work: Work) -> tuple[_Times, _Times]:
        layer, embedding = self._kernels(tokens, work)
        times = (
            _sum([self.kernel_time(kernel, sms) for kernel in layer]),
            _sum([self.kernel_time(kernel, sms) for kernel in embedding]),
        )
        return _put(self._layers[sms], tokens, times)

    def _add_head(self, rows: int, sms: int) -> _Times:
        kernels = self._shard.head_kernels(rows)
        return _put(self._heads[sms], rows, _sum([self.kernel_time(kernel, sms) for kernel in kernels]))

    def _add_chunk(self, chunk: tuple[int, int], sms: int, work: Work) -> _Times:
        new, cached = chunk
        if new < 1 or cached < 0:
            raise _bad(work)
        _, seconds, bound = self.kernel_time(self._shard.attention_prefill(new, cached), sms)
        table = self._chunks[sms]
        if len(table) >= TABLE_ENTRIES:
            table.clear()
        times = table[chunk] = _Times(seconds, seconds if bound == "dram" else 0.0)
        return times

    def _add_layer_cost(self, tokens: int, work: Work) -> tuple[_Cost, _Cost]:
        layer, embedding = self._kernels(tokens, work)
        return _put(self._layer_costs, tokens, (_cost(layer), _cost(embedding)))

    def _add_head_cost(self, rows: int) -> _Cost:
        return _put(self._head_costs, rows, _cost(self._shard.head_kernels(rows)))

    def _add_chunk_cost(self, chunk: tuple[int, int], work: Work) -> _Cost:
        new, cached = chunk
        if new < 1 or cached < 0:
            raise _bad(work)
        return _put(self._chunk_costs, chunk, _cost([self._shard.attention_prefill(new, cached)]))


def _put(table: dict[K, V], key: K, value: V) -> V:
    if len(table) >= TABLE_ENTRIES:
        table.clear()
    table[key] = value
    return value


def _bad(work: Work) -> ValueError:
    return ValueError(
        f"no launch has these token counts: {work}; a prefill has 1 or more new and 0 or more cached tokens, a "
        f"decoding request at least one context token, and work has at least one of them"
    )


def _bad_layers(work: Work, model_layers: int) -> ValueError:
    return ValueError(f"work.layers is {work.layers}; it must be 1 to {model_layers}, or None for the whole model")
