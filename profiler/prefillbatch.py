"""Prompts prefilled in one launch with nothing that decodes: any of their layers, on any share."""

from __future__ import annotations

from profiler.kerneltime import PromptTimer
from profiler.latency import Source
from profiler.layertable import LayerTable
from profiler.passrest import PassRest
from profiler.times import PassTimes


class OnShare:
    """A batch on some SMs: of a layer seconds, those of them that DRAM bounds and what they rest on; seconds and DRAM
    seconds of the embedding and the head, one after the other."""

    __slots__ = ("dram_s", "embedding_dram_s", "embedding_s", "head_dram_s", "head_s", "seconds", "source")

    def __init__(self, attention: tuple[float, bool, Source], rest: PassTimes) -> None:
        seconds, in_dram, source = attention
        layer_s, layer_dram_s, layer_source, embedding_s, embedding_dram_s, head_s, head_dram_s = rest
        # Attention comes first in a layer.
        self.seconds = seconds + layer_s
        self.dram_s = (seconds if in_dram else 0.0) + layer_dram_s
        self.source: Source = layer_source if layer_s >= seconds else source
        self.embedding_s = embedding_s
        self.embedding_dram_s = embedding_dram_s
        self.head_s = head_s
        self.head_dram_s = head_dram_s


class PrefillBatch:
    """One batch. A scheduler asks for it on a few shares and by many groups of its layers, and then no more.

    timer, flops, dram_bytes: of its attention. tokens: new ones, of ``rows`` sequences.
    """

    __slots__ = (
        "_costs",
        "_dram_bytes",
        "_flops",
        "_head_costs",
        "_known",
        "_layers",
        "_rest",
        "_rows",
        "_timer",
        "_tokens",
    )

    def __init__(
        self, timer: PromptTimer, flops: float, dram_bytes: float, tokens: int, rows: int, layers: LayerTable
    ) -> None:
        self._timer = timer
        self._flops = flops
        self._dram_bytes = dram_bytes
        self._tokens = tokens
        self._rows = rows
        self._layers = layers
        self._rest = PassRest(layers, tokens, rows)
        self._known: dict[int, OnShare] = {}
        self._costs: tuple[float, float, float, float] | None = None
        self._head_costs = (0.0, 0.0)

    def launch(self, layers: int, ends: bool, sms: int) -> tuple[float, float, Source]:
        """As ``StepTable.launch`` of so many layers; ``ends`` for a launch with the embedding and the head."""
        known = self._known.get(sms)
        if known is None:
            known = self._known[sms] = OnShare(self._timer.on(sms), self._rest.on(sms))
        seconds, dram_s = layers * known.seconds, layers * known.dram_s
        if ends:
            seconds = seconds + known.embedding_s + known.head_s
            dram_s = dram_s + known.embedding_dram_s + known.head_dram_s
        return seconds, dram_s, known.source

    def timed(self, sms: int) -> bool:
        """Whether ``launch`` has worked out these SMs."""
        return sms in self._known

    def cost(self, layers: int, ends: bool) -> tuple[float, float]:
        """(useful FLOPs, DRAM bytes) of such a launch."""
        if self._costs is None:
            (layer_flops, layer_moved), (of_embedding, moved_by_embedding) = self._layers.cost(self._tokens)
            flops, moved = self._flops + layer_flops, self._dram_bytes + layer_moved
            self._costs = flops, moved, of_embedding, moved_by_embedding
            self._head_costs = self._layers.head_cost(self._rows)
        flops, moved, of_embedding, moved_by_embedding = self._costs
        if not ends:
            return layers * flops, layers * moved
        of_head, moved_by_head = self._head_costs
        return layers * flops + of_embedding + of_head, layers * moved + moved_by_embedding + moved_by_head
