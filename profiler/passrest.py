"""A pass but for its attention: what depends on the number of tokens and of sequences alone."""

from __future__ import annotations

from profiler.latency import Source
from profiler.layertable import LayerTable, SumsLine
from profiler.times import PassTimes, Sums


class PassRest:
    """Of so many tokens and sequences, on one share after another."""

    __slots__ = ("_head", "_line", "_rows", "_share", "_table", "_tokens")

    def __init__(self, table: LayerTable, tokens: int, rows: int) -> None:
        prepared = table.together()
        self._table = table
        self._tokens = tokens
        self._rows = rows
        self._line: SumsLine | None = None
        self._head: Sums | None = None
        self._share = 0.0
        if prepared is None:
            return
        self._head = prepared.head(rows)
        self._line = line = prepared.line(tokens)
        if line is not None:
            self._share = (tokens - line.low) / (line.high - line.low)

    def on(self, sms: int) -> PassTimes:
        """On so many SMs."""
        line = self._line
        if line is None:
            layer_s, layer_dram, source = self._layer(sms)
            embedding_s, embedding_dram = self._embedding(sms)
        else:
            # As between_sums, written out: a batch is new on most shares that are asked for.
            share = self._share
            low_s, low_dram, sources, _ = line.layer_low
            high_s, high_dram, _, _ = line.layer_high
            layer_s = low_s[sms] + share * (high_s[sms] - low_s[sms])
            layer_dram = low_dram[sms] + share * (high_dram[sms] - low_dram[sms])
            source = sources[sms]
            low_s, low_dram, _, _ = line.embedding_low
            high_s, high_dram, _, _ = line.embedding_high
            embedding_s = low_s[sms] + share * (high_s[sms] - low_s[sms])
            embedding_dram = low_dram[sms] + share * (high_dram[sms] - low_dram[sms])
        head = self._head
        if head is None:
            head_s, head_dram = self._headed(sms)
        else:
            head_s, head_dram = head[0][sms], head[1][sms]
        return layer_s, layer_dram, source, embedding_s, embedding_dram, head_s, head_dram

    def _layer(self, sms: int) -> tuple[float, float, Source]:
        table, tokens = self._table, self._tokens
        found = table.layers[sms].get(tokens) or table.add_layer(tokens, sms)
        return found[0], found[1], found[2]

    def _embedding(self, sms: int) -> tuple[float, float]:
        table, tokens = self._table, self._tokens
        found = table.embeddings[sms].get(tokens) or table.add_embedding(tokens, sms)
        return found[0], found[1]

    def _headed(self, sms: int) -> tuple[float, float]:
        table, rows = self._table, self._rows
        found = table.heads[sms].get(rows) or table.add_head(rows, sms)
        return found[0], found[1]
