"""Prompts prefilled in one launch with nothing that decodes: any of their layers, on any share."""

from __future__ import annotations

from profiler.kernels import Kernel
from profiler.kerneltime import AttentionTimer, KernelClock
from profiler.latency import Source
from profiler.layertable import Cost, LayerTable


class PrefillBatch:
    """One batch. A scheduler asks for it on a dozen shares and by many groups of its layers, and then no more.

    attention: its attention kernel, with the ``alphas`` and ``source`` that measurements give it.
    """

    __slots__ = (
        "_alphas",
        "_attention",
        "_clock",
        "_embedding",
        "_head",
        "_in_layer",
        "_layers",
        "_line",
        "_rows",
        "_source",
        "_timer",
        "_tokens",
        "attention_cost",
    )

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
        self._line, self._embedding = layers.lines(self._tokens)
        self._head = layers.head_sums(self._rows)
        self._timer = AttentionTimer(clock, attention, alphas[0], source) if len(alphas) == 1 else None
        self._in_layer: dict[int, tuple[float, float, Source]] = {}
        self.attention_cost = Cost(attention.flops, attention.dram_bytes)

    def launch(self, layers: int, ends: bool, sms: int) -> tuple[float, float, Source]:
        """As ``StepTable.launch`` of so many layers; ``ends`` for a launch with the embedding and the head."""
        in_layer = self._in_layer.get(sms)
        if in_layer is None:
            in_layer = self._in_layer[sms] = self._layer(sms)
        seconds, dram, source = in_layer
        if not ends:
            return layers * seconds, layers * dram, source
        embedding_s, embedding_dram = self._embedded(sms)
        head_s, head_dram = self._headed(sms)
        return layers * seconds + embedding_s + head_s, layers * dram + embedding_dram + head_dram, source

    def _embedded(self, sms: int) -> tuple[float, float]:
        """(seconds, those bound by DRAM) of the embedding."""
        if self._embedding is None:
            table, tokens = self._layers, self._tokens
            found = table.embeddings[sms].get(tokens) or table.add_embedding(tokens, sms)
            return found[0], found[1]
        # As between_sums, here and below written out: a batch is new on most shares that are asked for.
        (low_s, low_dram, _, _), (high_s, high_dram, _, _), share = self._embedding
        return (
            low_s[sms] + share * (high_s[sms] - low_s[sms]),
            low_dram[sms] + share * (high_dram[sms] - low_dram[sms]),
        )

    def _headed(self, sms: int) -> tuple[float, float]:
        """The same of the head."""
        head = self._head
        if head is None:
            found = self._layers.heads[sms].get(self._rows) or self._layers.add_head(self._rows, sms)
            return found[0], found[1]
        return head[0][sms], head[1][sms]

    def _timed(self, sms: int) -> tuple[float, bool, Source]:
        if self._timer is not None:
            return self._timer.on(sms)
        _, seconds, bound, source = self._clock.timed(self._attention, sms, self._alphas, self._source)
        return seconds, bound == "dram", source

    def _layer(self, sms: int) -> tuple[float, float, Source]:
        """One layer, attention first."""
        seconds, in_dram, source = self._timed(sms)
        dram = seconds if in_dram else 0.0
        if self._line is None:
            rest = self._layers.layers[sms].get(self._tokens) or self._layers.add_layer(self._tokens, sms)
            rest_s, rest_dram, rest_source = rest[0], rest[1], rest[2]
        else:
            (low_s, low_dram, sources, _), (high_s, high_dram, _, _), share = self._line
            rest_s = low_s[sms] + share * (high_s[sms] - low_s[sms])
            rest_dram = low_dram[sms] + share * (high_dram[sms] - low_dram[sms])
            rest_source = sources[sms]
        return seconds + rest_s, dram + rest_dram, rest_source if rest_s >= seconds else source
