"""What depends on the number of tokens or sequences alone: a layer but for attention, the embedding and the head.

Tokens are met in thousands of different numbers and on dozens of shares. Where times may be taken as linear between
knots, a layer is summed at those alone, and for all shares at once as soon as a second share is asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from profiler.decodepass import KnownBatch
from profiler.kernels import Kernel, Shard
from profiler.kerneltime import KernelClock
from profiler.tables import put
from profiler.times import Sums, Times, added, between, between_sums, scaled, scaled_sums

PREPARED_TOKENS, PREPARED_SEQUENCES = 8192, 256
"""Up to which sums on all shares are made together: more than most launches have."""

LONGEST_TOKENS = 32_768
"""Up to which they are where longer launches than those come, or nobody can wait for them."""

FEW_LONGER = 16
"""Longer launches that cost less one by one."""

HEADS_AT_ONCE = 32
"""Numbers of sequences for which the head is."""

FEW = 128
"""Sums that cost less one by one than all of them together."""

MOST_SUMS = 4096
"""Numbers of tokens at which sums on all shares are kept; there are some hundred knots."""

Part = Literal["layer", "embedding", "head"]


class Cost(NamedTuple):
    """Of a launch or a part of one: useful FLOPs and DRAM bytes."""

    flops: float
    dram_bytes: float


def cost_of(kernels: Sequence[Kernel]) -> Cost:
    """Kernels one after another."""
    return Cost(sum(k.runs * k.flops for k in kernels), sum(k.runs * k.dram_bytes for k in kernels))


Costs = tuple[tuple[float, float], tuple[float, float]]
"""(useful FLOPs, DRAM bytes) of a layer and of the embedding."""


def _on_affine(one: tuple[float, float], two: tuple[float, float], more: int) -> tuple[float, float]:
    """What so many more than one come to, where one and two come to that."""
    return one[0] + more * (two[0] - one[0]), one[1] + more * (two[1] - one[1])


class SumsLine:
    """Sums at two knots next to each other, of a layer and of the embedding."""

    __slots__ = ("embedding_high", "embedding_low", "high", "layer_high", "layer_low", "low")

    def __init__(
        self, low: int, high: int, layer_low: Sums, layer_high: Sums, embedding_low: Sums, embedding_high: Sums
    ) -> None:
        self.low = low
        self.high = high
        self.layer_low = layer_low
        self.layer_high = layer_high
        self.embedding_low = embedding_low
        self.embedding_high = embedding_high


class Prepared:
    """Sums on all shares at many sizes, made together when they are worth it: for a tenth of what they cost one after
    another. Nothing where ``knots`` are none, or a kernel's time was measured on several shares.

    All tables of one shard may have them in common, and ``batches``: decode attention by requests. ``outside``: by SMs,
    a factor on the embedding and the head.
    """

    __slots__ = (
        "_asked",
        "_asked_longer",
        "_calibrated",
        "_clock",
        "_embeddings",
        "_heads",
        "_layers",
        "_lines",
        "_longer",
        "_outside",
        "_places",
        "_shard",
        "_tokens",
        "batches",
    )

    def __init__(
        self,
        shard: Shard,
        clock: KernelClock,
        calibrated: Callable[[list[Kernel]], list[Kernel]],
        knots: Sequence[int],
        outside: list[float] | None = None,
    ) -> None:
        self._shard = shard
        self._clock = clock
        self._calibrated = calibrated
        self._outside = outside
        self._tokens = [knot for knot in knots if knot <= PREPARED_TOKENS]
        self._longer = [knot for knot in knots if PREPARED_TOKENS < knot <= LONGEST_TOKENS]
        self._asked_longer = 0
        self._asked = 0
        self._layers: dict[int, Sums] | None = None
        self._embeddings: dict[int, Sums] | None = None
        self._heads: dict[int, Sums] = {}
        self._lines: list[SumsLine] = []
        self._places: list[int] | None = None
        self.batches: dict[int, KnownBatch] = {}

    def make(self) -> None:
        """All of them, whether they are worth it or not."""
        self._asked, self._asked_longer = FEW + 1, FEW_LONGER
        self.line(LONGEST_TOKENS)
        if self.layers and self.embeddings:
            for sequences in range(1, PREPARED_SEQUENCES, HEADS_AT_ONCE):
                self.head(sequences)

    def worth(self) -> bool:
        """Whether more than a few sums have been asked for, this one included."""
        self._asked += 1
        return self.made

    @property
    def made(self) -> bool:
        """Whether they are worth it by now."""
        return self._asked > FEW

    @property
    def layers(self) -> dict[int, Sums]:
        """Of a layer, at the knots up to PREPARED_TOKENS."""
        if self._layers is None:
            self._layers = self._sums(self._shard.layer_kernels, self._tokens)
        return self._layers

    @property
    def embeddings(self) -> dict[int, Sums]:
        """Of the embedding, at the same knots."""
        if self._embeddings is None:
            self._embeddings = self._once(self._sums(self._shard.embedding_kernels, self._tokens))
        return self._embeddings

    def line(self, tokens: int) -> SumsLine | None:
        """The sums at the knots around so many tokens; None where there are none."""
        if self._places is None:
            self._places = [-1] * self._tokens[0] if self.layers and self.embeddings else []
            self._place_lines(self._tokens)
        # Knots are too many to search them for each batch.
        places = self._places
        if tokens >= len(places) and self._longer:
            self._asked_longer += 1
            if self._asked_longer > FEW_LONGER:
                self._add_longer()
        return self._lines[places[tokens]] if tokens < len(places) and places[tokens] >= 0 else None

    def _add_longer(self) -> None:
        """Sums at the knots beyond PREPARED_TOKENS."""
        longer, self._longer = self._longer, []
        if self.layers and self.embeddings:
            self.layers.update(self._sums(self._shard.layer_kernels, longer))
            self.embeddings.update(self._once(self._sums(self._shard.embedding_kernels, longer)))
            self._place_lines([self._tokens[-1], *longer])

    def _place_lines(self, knots: Sequence[int]) -> None:
        """Notes, by tokens from those of the first knot on, where in ``_lines`` is the line that they are on."""
        if not (self.layers and self.embeddings):
            return
        assert self._places is not None
        for low, high in pairwise(knots):
            self._places += [len(self._lines)] * (high - low)
            sums = (self.layers[low], self.layers[high], self.embeddings[low], self.embeddings[high])
            self._lines.append(SumsLine(low, high, *sums))

    def head(self, sequences: int) -> Sums | None:
        """Of the head, for up to PREPARED_SEQUENCES."""
        found = self._heads.get(sequences)
        if found is None and self._tokens and sequences <= PREPARED_SEQUENCES:
            first = sequences - (sequences - 1) % HEADS_AT_ONCE
            self._heads |= self._once(self._sums(self._shard.head_kernels, range(first, first + HEADS_AT_ONCE)))
            found = self._heads.get(sequences)
        return found

    def _once(self, sums: dict[int, Sums]) -> dict[int, Sums]:
        """Of what comes once a pass."""
        outside = self._outside
        return sums if outside is None else {size: scaled_sums(found, outside) for size, found in sums.items()}

    def _sums(self, made: Callable[[int], list[Kernel]], sizes: Sequence[int]) -> dict[int, Sums]:
        if not sizes or any(len(kernel.alphas) > 1 for kernel in self._calibrated(made(sizes[0]))):
            return {}
        # Imported here: numpy takes longer than all of the package, and a device's name needs none of it.
        from profiler.everyshare import sums

        return dict(zip(sizes, sums(self._clock, [self._calibrated(made(size)) for size in sizes]), strict=True))


class LayerTable:
    """Times and costs of one shard.

    ``calibrated`` gives kernels what measurements say of them; ``knots`` are the tokens between which times may be
    taken as linear, ascending, none where they may not; ``outside`` is a factor on the embedding and the head, by SMs.

    ``layers`` and ``embeddings`` (by tokens) and ``heads`` (by sequences) hold, by SMs, what has been asked. ``_asked``
    is the share on which each knot was asked for first, ``_affine`` what one token costs and what two do.
    """

    __slots__ = (
        "_affine",
        "_asked",
        "_calibrated",
        "_clock",
        "_costs",
        "_head_costs",
        "_kernels",
        "_knots",
        "_made",
        "_outside",
        "_prepared",
        "_shard",
        "_sums",
        "embeddings",
        "heads",
        "layers",
    )

    def __init__(
        self,
        shard: Shard,
        clock: KernelClock,
        calibrated: Callable[[list[Kernel]], list[Kernel]],
        knots: Sequence[int],
        beforehand: Prepared | None = None,
        outside: list[float] | None = None,
    ) -> None:
        shares = range(shard.device.sms + 1)
        self._shard = shard
        self._clock = clock
        self._calibrated = calibrated
        self._knots = knots
        self._prepared = beforehand
        self._outside = outside
        self._kernels: dict[tuple[Part, int], list[Kernel]] = {}
        self._made: dict[Part, Callable[[int], list[Kernel]]] = {
            "layer": shard.layer_kernels,
            "embedding": shard.embedding_kernels,
            "head": shard.head_kernels,
        }
        self._affine: tuple[Costs, Costs] | None = None
        self._sums: dict[int, Sums] = {}
        self._asked: dict[int, int] = {}
        self.layers: list[dict[int, Times]] = [{} for _ in shares]
        self.embeddings: list[dict[int, Times]] = [{} for _ in shares]
        self.heads: list[dict[int, Times]] = [{} for _ in shares]
        self._costs: dict[int, Costs] = {}
        self._head_costs: dict[int, tuple[float, float]] = {}

    def add_layer(self, tokens: int, sms: int) -> Times:
        """A layer on one or more tokens."""
        prepared = self.together()
        known = {} if prepared is None else prepared.layers
        return put(self.layers[sms], tokens, self._on_line(known, self._layer, tokens, sms))

    def add_embedding(self, tokens: int, sms: int) -> Times:
        """The embedding of one or more tokens."""
        prepared = self.together()
        known = {} if prepared is None else prepared.embeddings
        return put(self.embeddings[sms], tokens, self._on_line(known, self._embedding, tokens, sms))

    def add_head(self, rows: int, sms: int) -> Times:
        """Final norm, LM head and sampling of so many sequences."""
        prepared = self.together()
        sums = None if prepared is None else prepared.head(rows)
        times = self._once("head", rows, sms) if sums is None else sums.on(sms)
        return put(self.heads[sms], rows, times)

    def cost(self, tokens: int) -> Costs:
        """Of a layer and of the embedding on one or more tokens."""
        if self._shard.model.experts:
            return self._costs.get(tokens) or put(self._costs, tokens, self._cost(tokens))
        if self._affine is None:
            self._affine = self._cost(1), self._cost(2)
        # In proportion to tokens but for the weights, all of them whole numbers: nothing is rounded.
        one, two = self._affine
        return _on_affine(one[0], two[0], tokens - 1), _on_affine(one[1], two[1], tokens - 1)

    def head_cost(self, rows: int) -> tuple[float, float]:
        """Of the head for so many sequences."""
        found = self._head_costs.get(rows)
        if found is None:
            flops, moved = cost_of(self._shard.head_kernels(rows))
            found = put(self._head_costs, rows, (flops, moved))
        return found

    def together(self) -> Prepared | None:
        """Sums made together, where they are worth it."""
        prepared = self._prepared
        return prepared if prepared is not None and prepared.worth() else None

    def make_ready(self) -> None:
        """Makes what is prepared, now."""
        if self._prepared is not None:
            self._prepared.make()

    def prepared_layers(self) -> list[tuple[int, list[float]]]:
        """(tokens, seconds of a layer by SMs) at the knots that are prepared, ascending."""
        if self._prepared is None:
            return []
        return [(tokens, sums.seconds) for tokens, sums in self._prepared.layers.items()]

    def _cost(self, tokens: int) -> Costs:
        (flops, moved), (of_embedding, moved_by_embedding) = (
            cost_of(kernels(tokens)) for kernels in (self._shard.layer_kernels, self._shard.embedding_kernels)
        )
        return (flops, moved), (of_embedding, moved_by_embedding)

    def _on_line(self, known: dict[int, Sums], at: Callable[[int, int], Times], tokens: int, sms: int) -> Times:
        """What ``at`` says of the tokens on these SMs, or between the knots around them; ``known`` are made already."""
        knots, place = self._knots, bisect_right(self._knots, tokens)
        if not 0 < place < len(knots) or knots[place - 1] == tokens:
            sums = known.get(tokens)
            return at(tokens, sms) if sums is None else sums.on(sms)
        low, high = knots[place - 1], knots[place]
        share = (tokens - low) / (high - low)
        one, two = known.get(low), known.get(high)
        if one is not None and two is not None:
            return between_sums(one, two, share, sms)
        return between(at(low, sms), at(high, sms), share)

    def _embedding(self, tokens: int, sms: int) -> Times:
        known = self.embeddings[sms]
        return known.get(tokens) or put(known, tokens, self._once("embedding", tokens, sms))

    def _layer(self, tokens: int, sms: int) -> Times:
        known = self.layers[sms].get(tokens)
        if known is not None:
            return known
        sums = self._sums.get(tokens)
        if sums is None:
            kernels = self._kernels_of("layer", tokens)
            asked = self._asked.get(tokens) or put(self._asked, tokens, sms)
            if not self._knots or asked == sms:
                return put(self.layers[sms], tokens, self._sum_on(kernels, sms))
            # Imported here for numpy's sake, as above.
            from profiler.everyshare import sums as sums_of

            (sums,) = sums_of(self._clock, [kernels])
            put(self._sums, tokens, sums, MOST_SUMS)
        return put(self.layers[sms], tokens, sums.on(sms))

    def _once(self, part: Part, size: int, sms: int) -> Times:
        """A part that comes once a pass."""
        times = self._sum_on(self._kernels_of(part, size), sms)
        return times if self._outside is None else scaled(times, self._outside[sms])

    def _sum_on(self, kernels: list[Kernel], sms: int) -> Times:
        time = self._clock.time
        return added([time(kernel, sms) for kernel in kernels])

    def _kernels_of(self, part: Part, size: int) -> list[Kernel]:
        found = self._kernels.get((part, size))
        if found is None:
            found = put(self._kernels, (part, size), self._calibrated(self._made[part](size)))
        return found
