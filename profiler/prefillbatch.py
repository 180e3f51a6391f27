"""Prompts prefilled in one launch with nothing that decodes: any of their layers, on any share."""

from __future__ import annotations

from profiler.kernels import Kernel
from profiler.kerneltime import AttentionTimer, KernelClock
from profiler.latency import Source
from profiler.layertable import LayerTable

OnShare = tuple[float, float, Source, float, float, float, float]
"""Seconds of a layer, those bound by DRAM and what they rest on; seconds and DRAM seconds of the embedding and of the
head."""


class PrefillBatch:
    """One batch. A scheduler asks for it on a few shares and by many groups of its layers, and then no more.

    attention: its attention kernel, with the ``alphas`` and ``source`` that measurements give it.
    """

    __slots__ = (
        "_alphas",
        "_attention",
        "_clock",
        "_costs",
        "_embedding",
        "_head",
        "_head_costs",
        "_known",
        "_layers",
        "_line",
        "_rows",
        "_source",
        "_timer",
        "_tokens",
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
        self._known: dict[int, OnShare] = {}
        self._costs: tuple[float, float, float, float] | None = None
        self._head_costs = (0.0, 0.0)

    def launch(self, layers: int, ends: bool, sms: int) -> tuple[float, float, Source]:
        """As ``StepTable.launch`` of so many layers; ``ends`` for a launch with the embedding and the head."""
        known = self._known.get(sms)
        if known is None:
            known = self._known[sms] = self._on(sms)
        seconds, dram, source, embedding_s, embedding_dram, head_s, head_dram = known
        if not ends:
            return layers * seconds, layers * dram, source
        return layers * seconds + embedding_s + head_s, layers * dram + embedding_dram + head_dram, source

    def timed(self, sms: int) -> bool:
        """Whether ``launch`` has worked out these SMs."""
        return sms in self._known

    def cost(self, layers: int, ends: bool) -> tuple[float, float]:
        """(useful FLOPs, DRAM bytes) of such a launch."""
        if self._costs is None:
            (layer_flops, layer_moved), (of_embedding, moved_by_embedding) = self._layers.cost(self._tokens)
            attention = self._attention
            flops, moved = attention.flops + layer_flops, attention.dram_bytes + layer_moved
            self._costs = flops, moved, of_embedding, moved_by_embedding
            self._head_costs = self._layers.head_cost(self._rows)
        flops, moved, of_embedding, moved_by_embedding = self._costs
        if not ends:
            return layers * flops, layers * moved
        of_head, moved_by_head = self._head_costs
        return layers * flops + of_embedding + of_head, layers * moved + moved_by_embedding + moved_by_head

    def _on(self, sms: int) -> OnShare:
        """On so many SMs; of a layer, attention comes first."""
        seconds, in_dram, source = self._timed(sms)
        dram = seconds if in_dram else 0.0
        rest_s, rest_dram, rest_source = self._rest(sms)
        source = rest_source if rest_s >= seconds else source
        return (seconds + rest_s, dram + rest_dram, source, *self._embedded(sms), *self._headed(sms))

    def _timed(self, sms: int) -> tuple[float, bool, Source]:
        if self._timer is not None:
            return self._timer.on(sms)
        _, seconds, bound, source = self._clock.timed(self._attention, sms, self._alphas, self._source)
        return seconds, bound == "dram", source

    def _rest(self, sms: int) -> tuple[float, float, Source]:
        """A layer without attention."""
        if self._line is None:
            layer = self._layers.layers[sms].get(self._tokens) or self._layers.add_layer(self._tokens, sms)
            return layer[0], layer[1], layer[2]
        # As between_sums, here and below written out: a batch is new on most shares that are asked for.
        (low_s, low_dram, sources, _), (high_s, high_dram, _, _), share = self._line
        return (
            low_s[sms] + share * (high_s[sms] - low_s[sms]),
            low_dram[sms] + share * (high_dram[sms] - low_dram[sms]),
            sources[sms],
        )

    def _embedded(self, sms: int) -> tuple[float, float]:
        """(seconds, those bound by DRAM) of the embedding."""
        if self._embedding is None:
            table, tokens = self._layers, self._tokens
            found = table.embeddings[sms].get(tokens) or table.add_embedding(tokens, sms)
            return found[0], found[1]
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
