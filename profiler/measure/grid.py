"""What is measured: which kernels at which shapes, on which shares, beside what, and in which order.

The order is by worth, so that a measurement cut off early leaves a usable profile: first the device's ceilings, then
every kernel coarsely on the shares that matter most, then co-runs, then the other shares, then the finer shapes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from profiler.measure.models import projections
from profiler.profile import SHAPES
from profiler.specs import ModelSpec

MEASURED = tuple(name for name in SHAPES if name not in ("attention_mixed", "all_reduce"))
"""Kernels of a profile that one device can be measured for; mixed launches are predicted from their parts."""


class Target(NamedTuple):
    """A kernel of :data:`profiler.profile.SHAPES` and the values of its shape columns."""

    kernel: str
    shape: tuple[int, ...]

    def columns(self, prefix: str = "") -> dict[str, int]:
        return {prefix + name: value for name, value in zip(SHAPES[self.kernel], self.shape, strict=True)}


class Variant(NamedTuple):
    """The share a target runs on, and what keeps another share busy meanwhile."""

    sms: int
    beside: Target | None = None
    beside_sms: int = 0


class Group(NamedTuple):
    """One target on several shares: timed in turns, so that a drift of the machine meets all alike."""

    target: Target
    variants: tuple[Variant, ...]


class Shares(NamedTuple):
    """Shares a device grants: all of it, and disjoint pairs (granted, rest). No pairs: shares cannot be had.

    common: (own, other) of shares that two launches may have at a time although they have SMs in common.
    """

    whole: int
    splits: tuple[tuple[int, int], ...]
    common: tuple[tuple[int, int], ...] = ()

    @property
    def all(self) -> tuple[int, ...]:
        """Every size, the whole device first, then the largest."""
        return tuple(sorted({self.whole, *(part for split in self.splits for part in split)}, reverse=True))

    @property
    def key(self) -> tuple[int, ...]:
        """The sizes worth most: the whole, about half, and about a quarter, from which the others are interpolated."""
        parts = self.all[1:]
        near = [min(parts, key=lambda part: abs(part - self.whole * share)) for share in (0.5, 0.25) if parts]
        return tuple(dict.fromkeys([self.whole, *near]))


class Reach(NamedTuple):
    """How far shapes go on a kind of device. Each tuple holds the coarse values, then the finer ones.

    kv_tokens: most tokens a decode batch may hold together. layers: of the launches of whole layers.
    prefills, decodes: (new, cached) and (requests, context) of launches that run beside each other.
    lone_prefills, lone_decodes: of launches timed alone only, at the sizes that steps have: a product in a layer is not
        what it is over and over.
    prefill_stride: every how many of the token counts prefill attention is measured at.
    cube, copy_bytes: of the product and the copies that the device's ceilings are read from.
    """

    tokens: tuple[tuple[int, ...], tuple[int, ...]]
    requests: tuple[tuple[int, ...], tuple[int, ...]]
    contexts: tuple[tuple[int, ...], tuple[int, ...]]
    cached: tuple[tuple[int, ...], tuple[int, ...]]
    sequences: tuple[int, ...]
    prefills: tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]
    decodes: tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]
    kv_tokens: int
    cube: int
    copy_bytes: tuple[int, ...]
    layers: int = 4
    context: int = 1 << 17
    prefill_stride: int = 2
    lone_prefills: tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] = ((), ())
    lone_decodes: tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] = ((), ())


MIB = 1 << 20

GPU = Reach(
    tokens=(
        (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
        # Just above a tile's border a product costs a whole tile more; between powers of two it wastes least.
        (4, 17, 24, 33, 48, 65, 96, 129, 192, 257, 384, 513, 768, 1025, 1536, 2049, 3072, 6144, 16384),
    ),
    requests=((1, 8, 32, 128), (2, 4, 16, 64, 256)),
    contexts=((512, 2048, 8192), (128, 1024, 4096, 32768)),
    cached=((0, 2048, 8192), (512, 32768)),
    sequences=(2, 4, 8),
    prefills=(((2048, 0), (4096, 0)), ((512, 0), (1024, 8192), (8192, 0))),
    decodes=(((16, 1024), (64, 2048)), ((1, 8192), (128, 1024), (32, 8192))),
    lone_prefills=(((128, 0), (1024, 0)), ((64, 0), (256, 0))),
    lone_decodes=(((4, 1024), (32, 1024)), ((1, 1024), (2, 1024), (8, 1024), (256, 512))),
    kv_tokens=1 << 20,
    cube=8192,
    copy_bytes=(1024 * MIB, 256 * MIB),
)

CPU = Reach(
    tokens=((1, 4, 16, 64, 256, 1024), (2, 8, 32, 48, 96, 128, 192, 384, 512, 768)),
    requests=((1, 4, 16), (2, 8, 32)),
    contexts=((64, 256, 1024), (128, 512, 2048)),
    cached=((0, 512), (128, 1536)),
    sequences=(2, 4),
    prefills=(((64, 0), (256, 0)), ((128, 256),)),
    decodes=(((1, 256), (8, 256)), ((4, 512), (16, 128))),
    lone_prefills=(((8, 0), (32, 0), (128, 0)), ((4, 0), (16, 0), (28, 0), (48, 0), (96, 0))),
    # Of few rows the time of products is no line between powers of two.
    lone_decodes=(
        ((2, 128), (4, 128), (16, 128)),
        ((3, 128), (6, 128), (7, 128), (9, 128), (10, 128), (12, 128), (13, 128), (15, 128), (32, 128)),
    ),
    kv_tokens=1 << 14,
    cube=1024,
    copy_bytes=(64 * MIB, 16 * MIB),
    context=2048,
    prefill_stride=1,
)


@dataclass(frozen=True, slots=True)
class Grid:
    """Groups in the order in which they are measured; no point twice."""

    groups: tuple[Group, ...]

    @property
    def points(self) -> int:
        return sum(len(group.variants) for group in self.groups)

    @property
    def digest(self) -> str:
        """Of all its points and their order: two grids with one digest are the same."""
        return hashlib.sha256(json.dumps(self.groups).encode()).hexdigest()[:16]


def plan(model: ModelSpec, shares: Shares, reach: Reach, *, quick: bool, kernels: Sequence[str] = ()) -> Grid:
    """The grid for a model on a device; ``quick`` leaves out the finer shapes, ``kernels`` all others.

    Raises ValueError for a kernel that is not measured.
    """
    for name in kernels:
        if name not in MEASURED:
            raise ValueError(f"unknown kernel {name!r}; known: {', '.join(MEASURED)}")
    wanted = set(kernels or MEASURED)
    shapes = Shapes(model, reach)
    groups = _in_order(shapes, shares, quick)
    return Grid(tuple(_unique(group for group in groups if group.target.kernel in wanted)))


def _in_order(shapes: Shapes, shares: Shares, quick: bool) -> Iterator[Group]:
    whole = (Variant(shares.whole),)
    everywhere = tuple(Variant(sms) for sms in shares.all)
    yield from (Group(target, whole) for target in shapes.ceilings())
    coarse = list(shapes.alone(0))
    yield from (Group(target, tuple(Variant(sms) for sms in shares.key)) for target in coarse)
    yield from (Group(target, whole) for target in shapes.host())
    yield from _saturation(shapes, shares)
    yield from _co_runs(shapes, shares, 0)
    yield from (Group(target, everywhere) for target in coarse)
    if not quick:
        yield from _co_runs(shapes, shares, 1)
        yield from (Group(target, everywhere) for target in shapes.alone(1))


def _saturation(shapes: Shapes, shares: Shares) -> Iterator[Group]:
    """A copy on every share, and beside a large product on the rest (paper, section 3.2)."""
    copy, product = shapes.copies()[0], shapes.large_product()
    yield Group(copy, tuple(Variant(sms) for sms in shares.all))
    pairs = _both_ways(shares)
    yield Group(copy, tuple(Variant(sms, product, rest) for sms, rest in pairs))
    yield Group(product, tuple(Variant(sms, copy, rest) for sms, rest in pairs))


def _co_runs(shapes: Shapes, shares: Shares, fineness: int) -> Iterator[Group]:
    """Each shape of layers alone on every share and beside each shape of the other phase on every split.

    All in turns, since by how much one slows another is the ratio of such times. How launches share SMs that they have
    in common hardly depends on what they are: there each coarse shape is measured beside one of the other phase.
    """
    prefills, decodes = shapes.co_runs(fineness)
    for targets, others in ((decodes, prefills), (prefills, decodes)):
        for place, target in enumerate(targets):
            variants = [Variant(sms) for sms in shares.all]
            variants += [Variant(sms, beside, rest) for beside in others for sms, rest in _both_ways(shares)]
            if fineness == 0 and place < len(others):
                variants += [Variant(sms, others[place], other) for sms, other in shares.common]
            yield Group(target, tuple(variants))


def _both_ways(shares: Shares) -> list[tuple[int, int]]:
    """(own, other) sizes, each split seen from both sides."""
    return list(dict.fromkeys(pair for a, b in shares.splits for pair in ((a, b), (b, a))))


def _unique(groups: Iterable[Group]) -> Iterator[Group]:
    seen: set[tuple[Target, Variant]] = set()
    for group in groups:
        fresh = tuple(variant for variant in group.variants if (group.target, variant) not in seen)
        seen.update((group.target, variant) for variant in fresh)
        if fresh:
            yield Group(group.target, fresh)


class Shapes:
    """Targets of one model within a reach. ``fineness`` 0: the coarse ones, 1: those between."""

    def __init__(self, model: ModelSpec, reach: Reach) -> None:
        self.model, self.reach = model, reach
        self.context = min(model.max_context, reach.context)
        self.layers = min(reach.layers, model.layers)
        qkv, o, gate_up, down, _ = projections(model).values()
        self.products = (qkv, o, gate_up, down)
        self.heads = (model.heads, model.kv_heads, model.head_dim)

    def ceilings(self) -> list[Target]:
        """The largest product and copy: what the device reaches at best."""
        return [Target("gemm", (self.reach.cube,) * 3), *self.copies()]

    def copies(self) -> list[Target]:
        return [Target("copy", (size,)) for size in self.reach.copy_bytes]

    def large_product(self) -> Target:
        """Gate and up on the most tokens of the coarse grid."""
        columns, depth = self.products[2]
        return Target("gemm", (self.reach.tokens[0][-1], columns, depth))

    def alone(self, fineness: int) -> Iterator[Target]:
        """Every kernel but the copy, which :meth:`ceilings` has, and layers that are timed beside others."""
        tokens, requests = self.reach.tokens[fineness], self.reach.requests[fineness]
        most = max(size for sizes in self.reach.requests for size in sizes)
        yield from (Target("gemm", (m, n, k)) for n, k in self.products for m in tokens)
        yield from (Target("gemm", (m, self.model.vocab, self.model.hidden)) for m in tokens if m <= most)
        yield from self.attention_prefill(fineness)
        yield from self.attention_decode(fineness)
        yield from self.elementwise(tokens, requests)
        yield from self.prefill_layers(self.reach.lone_prefills[fineness])
        yield from self.decode_layers(self.reach.lone_decodes[fineness])

    def elementwise(self, tokens: Sequence[int], requests: Sequence[int]) -> Iterator[Target]:
        # Bound by memory and smooth in their tokens: half of the points do, both ends among them.
        few = tuple(dict.fromkeys((tokens[0], *tokens[::-2][::-1])))
        yield from (Target("norm", (count, self.model.hidden)) for count in few)
        yield from (Target("rotary", (count, *self.heads)) for count in few)
        yield from (Target("activation", (count, self.model.intermediate)) for count in few)
        yield from (Target("embedding", (count, self.model.hidden)) for count in few)
        yield from (Target("sampling", (count, self.model.vocab)) for count in requests)

    def attention_prefill(self, fineness: int) -> Iterator[Target]:
        """Chunks over prefixes; and several short sequences at once, on the finer grid."""
        coarse_new, fine_new = ([count for count in tokens if count > 8] for tokens in self.reach.tokens)
        coarse_cached, fine_cached = self.reach.cached
        stride = self.reach.prefill_stride
        # The longest chunk first, then every other one, or on a CPU all.
        some, others = coarse_new[::-stride], coarse_new[-2::-2]
        if fineness == 0:
            shapes = [(1, new, cached) for cached in coarse_cached for new in some]
        else:
            shapes = [(1, new, cached) for cached in coarse_cached for new in others]
            shapes += [(1, new, cached) for cached in fine_cached for new in some]
            shapes += [(1, new, 0) for new in fine_new[:: stride + 1]]
            shapes += [(count, new, 0) for count in self.reach.sequences for new in coarse_new[1:-1:2]]
        for count, new, cached in shapes:
            if new + cached <= self.context and count * new <= max(coarse_new):
                yield Target("attention_prefill", (count, new, cached, *self.heads))

    def attention_decode(self, fineness: int) -> Iterator[Target]:
        coarse, fine = self.reach.requests, self.reach.contexts
        both = [(r, c) for r in coarse[0] for c in fine[0]]
        every = [(r, c) for r in (*coarse[0], *coarse[1]) for c in (*fine[0], *fine[1])]
        for requests, context in both if fineness == 0 else every:
            if context <= self.context and requests * context <= self.reach.kv_tokens:
                yield Target("attention_decode", (requests, context, *self.heads))

    def prefill_layers(self, chunks: Sequence[tuple[int, int]]) -> list[Target]:
        return [
            Target("prefill_layers", (1, new, cached, self.layers))
            for new, cached in chunks
            if new + cached <= self.context
        ]

    def decode_layers(self, batches: Sequence[tuple[int, int]]) -> list[Target]:
        return [
            Target("decode_layers", (requests, context, self.layers))
            for requests, context in batches
            if context <= self.context and requests * context <= self.reach.kv_tokens
        ]

    def co_runs(self, fineness: int) -> tuple[list[Target], list[Target]]:
        """Prefills and decode steps that are timed beside each other."""
        reach = self.reach
        return self.prefill_layers(reach.prefills[fineness]), self.decode_layers(reach.decodes[fineness])

    def host(self) -> list[Target]:
        tokens = [count for count in self.reach.requests[0] if count * HOST_CONTEXT <= self.reach.kv_tokens]
        return [Target(name, (count,)) for name in ("host_pass", "host_launch") for count in tokens]


HOST_CONTEXT = 64
"""KV tokens of each sequence in the passes that host time is read from."""


def host_parts(model: ModelSpec, target: Target, launched: int) -> list[tuple[Target, int]]:
    """The kernels of the pass, or of the launch of ``launched`` layers, that a host row is about, and their runs."""
    (tokens,) = target.shape
    layers = launched if target.kernel == "host_launch" else model.layers
    heads = (model.heads, model.kv_heads, model.head_dim)
    products = projections(model)
    head = Target("gemm", (tokens, *products.pop("lm_head")))
    parts = [
        (Target("norm", (tokens, model.hidden)), 2 * layers),
        (Target("rotary", (tokens, *heads)), layers),
        (Target("attention_decode", (tokens, HOST_CONTEXT, *heads)), layers),
        (Target("activation", (tokens, model.intermediate)), layers),
        *((Target("gemm", (tokens, n, k)), layers) for n, k in products.values()),
    ]
    if target.kernel == "host_launch":
        return parts
    rest = [
        Target("embedding", (tokens, model.hidden)),
        Target("norm", (tokens, model.hidden)),
        head,
        Target("sampling", (tokens, model.vocab)),
    ]
    return [*parts, *((part, 1) for part in rest)]
