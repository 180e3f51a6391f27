"""Prompts prefilled in one launch with nothing that decodes: any of their layers, on any share."""

from __future__ import annotations

from profiler.kernels import Kernel
from profiler.kerneltime import KernelClock
from profiler.latency import Source
from profiler.layertable import Cost, LayerTable, cost_of
from profiler.times import Times


class PrefillBatch:
    """One batch. A scheduler asks for it on a dozen shares and by many groups of its layers, and then no more.

    attention: its attention kernel, with the ``alphas`` and ``source`` that measurements give it.
    """

    __slots__ = ("_alphas", "_attention", "_clock", "_in_layer", "_layers", "_rows", "_source", "_tokens")

    def __init__(
        self, attention: Kernel, alphas: tuple[float, ...], source: Source, clock: KernelClock, layers: LayerTable
    ) -> None:
        self._attention = attention
        self._alphas = alphas
        self._source: Source = source
        self._clock = clock
        self._layers = layers
        self._rows = len(attention.chunks)
        self._tokens = sum([new for new, _ in attention.chunks])
        self._in_layer: dict[int, tuple[float, float, Source]] = {}

    @property
    def attention_cost(self) -> Cost:
        """Of one layer's attention."""
        return cost_of([self._attention])

    def attention(self, sms: int) -> Times:
        """One layer's attention."""
        _, seconds, bound, source = self._clock.timed(self._attention, sms, self._alphas, self._source)
        return Times(seconds, seconds if bound == "dram" else 0.0, source)

    def launch(self, layers: int, ends: bool, sms: int) -> tuple[float, float, Source]:
        """As ``StepTable.launch`` of so many layers; ``ends`` for a launch with the embedding and the head."""
        in_layer = self._in_layer.get(sms)
        if in_layer is None:
            in_layer = self._in_layer[sms] = self._layer(sms)
        seconds, dram, source = in_layer
        if not ends:
            return layers * seconds, layers * dram, source
        table, tokens, rows = self._layers, self._tokens, self._rows
        embedding = table.embeddings[sms].get(tokens) or table.add_embedding(tokens, sms)
        head = table.heads[sms].get(rows) or table.add_head(rows, sms)
        return layers * seconds + embedding[0] + head[0], layers * dram + embedding[1] + head[1], source

    def _layer(self, sms: int) -> tuple[float, float, Source]:
        seconds, dram, source, _ = self.attention(sms)
        rest = self._layers.layers[sms].get(self._tokens) or self._layers.add_layer(self._tokens, sms)
        return seconds + rest[0], dram + rest[1], rest[2] if rest[0] >= seconds else source
