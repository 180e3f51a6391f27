"""A device's calibration, tabulated for the kernels that are asked for.

The trees answer in tens of microseconds, so they are asked once for each projection, on knots along the number of
rows, and once for attention, on a grid. Between knots log alpha is linear in the logarithms of sizes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from profiler.calibration import OpCalibration
from profiler.decodetable import DecodeKnots
from profiler.devicecalibration import DeviceCalibration
from profiler.grid import Axis, Grid
from profiler.kernels import Chunks, Kernel
from profiler.kerneltime import KernelClock
from profiler.latency import Source
from profiler.specs import DTYPE_BYTES
from profiler.structure import AXES, Floats, Shapes
from profiler.tables import put

_TILE_BORDERS = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, *range(256, 2049, 128), *range(2304, 4353, 256))
ROW_KNOTS = tuple(
    sorted({*range(1, 17), *_TILE_BORDERS, *(border + 1 for border in _TILE_BORDERS), 6144, 8192, 16384, 32768})
)
"""Rows of products at which the trees are asked: both sides of the borders of tiles."""

_LAYER_KNOTS = frozenset(
    border + above for border in (*range(16, 513, 16), *range(640, 32_769, 128)) for above in (0, 1)
) | frozenset(range(1, 17))

SIZE_KNOTS = tuple(round(2 ** (power / 2)) for power in range(61))
"""Sizes of everything else, half a power of two apart."""

PREFIX_KNOTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0)
"""Cached tokens over new ones."""

_VARYING = {"all_reduce": "bytes", "gemm": "m"}


class ShardCalibration:
    """Gives kernels the alphas that a device's measurements imply; its grids serve every model on that device."""

    __slots__ = (
        "_clock",
        "_defaults",
        "_grids",
        "_in_layers",
        "_lines",
        "_mixed",
        "_ops",
        "_products",
        "outside_layers",
    )

    def __init__(self, calibration: DeviceCalibration) -> None:
        unmeasured = calibration.unmeasured
        self._clock: KernelClock = calibration.clock()
        self._ops = calibration.ops
        self._products = calibration.composition.products
        self.outside_layers = calibration.composition.costs.outside_layers(calibration.device.sms)
        self._in_layers: dict[float, tuple[float, ...]] = {}
        self._defaults = {
            "gemm": (1 / unmeasured.gemm,),
            "attention": (1 / unmeasured.attention,),
            "memory": (1 / unmeasured.bandwidth,),
            "link": (1.0,),
        }
        self._grids: dict[tuple[object, ...], Grid] = {}
        self._lines: dict[tuple[int, ...], Grid] = {}
        mixed = calibration.mixed
        self._mixed = None if mixed is None else mixed.grid()

    @property
    def clock(self) -> KernelClock:
        return self._clock

    def calibrated(self, kernel: Kernel) -> Kernel:
        """``kernel`` with the alphas and source of :meth:`alphas`."""
        return Kernel(*kernel[:-2], *self.alphas(kernel))

    def alphas(self, kernel: Kernel) -> tuple[tuple[float, ...], Source]:
        """(measured alphas, source), or the assumed efficiency of its kind where its op was not measured.

        Of products as they are in layers, where whole layers were measured; a kernel alone has those of its op, and so
        has the LM head, which is in none.
        """
        op = self._ops.get(kernel.op)
        if op is None:
            return self._defaults[kernel.kind], kernel.source
        if kernel.op == "attention_prefill":
            return self._prefill(op, kernel.dims, kernel.chunks)
        if kernel.op == "attention_decode":
            return self._decode_grid(op, kernel).alphas((kernel.dims[0], kernel.size / kernel.dims[0]))
        alphas, source = self._curve(op, kernel).alphas((kernel.size,))
        if kernel.op != "gemm" or kernel.name == "lm_head" or not self._products.by_sms:
            return alphas, source
        return tuple(map(operator.mul, alphas, self._factors(op, kernel.size))), source

    def _factors(self, op: OpCalibration, rows: float) -> tuple[float, ...]:
        """On products of so many rows in a layer, on each of the shares that products were measured on."""
        found = self._in_layers.get(rows)
        if found is None:
            found = put(self._in_layers, rows, tuple(self._products.at(rows, sms) for sms in op.share_sms))
        return found

    @property
    def mixes(self) -> bool:
        """Whether mixed attention was measured."""
        return self._mixed is not None

    def mixed_ratio(self, new_tokens: int, requests: int, context: int) -> float:
        """Attention of prefilling and decoding sequences in one launch over the sum of the two, where measured."""
        assert self._mixed is not None
        return self._mixed.alphas((new_tokens, requests, context / requests))[0][0]

    def token_knots(self) -> list[int]:
        """Tokens between which a layer's time but for attention is linear, or near enough.

        Blocks of products change just above multiples of 16 rows, of 128 rows for larger ones.
        """
        measured = self._products.rows()
        products = self._ops.get("gemm")
        if products is not None and products.points is not None:
            measured |= {round(rows) for rows in products.points.shapes[:, 0].tolist()}
        return sorted({*_LAYER_KNOTS, *measured})

    def context_knots(self, kernel: Kernel) -> list[float]:
        """Context tokens of a decode attention at which its alphas are known."""
        op = self._ops.get(kernel.op)
        if op is None:
            return []
        requests = kernel.dims[0]
        return [requests * knot for knot in self._decode_grid(op, kernel).axes[1].knots]

    def decode_knots(self, kernel: Kernel) -> DecodeKnots | None:
        """See :class:`profiler.steptable.Calibration`."""
        op = self._ops.get(kernel.op)
        if op is None or len(op.share_sms) > 1:
            return None
        grid = self._decode_grid(op, kernel)
        knots = grid.axes[1].knots
        known = [knot for knot in knots if isinstance(knot, int)]
        if knots[-1] <= 1 or len(known) < len(knots):
            return None
        # The least context is held at the first knot, twice the last one at the last.
        inner = [place for place, knot in enumerate(known) if knot > 1]
        asked = [1, *(known[place] for place in inner), 2 * known[-1]]
        found = grid.across(kernel.dims[0], [0, *inner, inner[-1]])
        sources = [
            source if known[0] <= context <= known[-1] else "extrapolated"
            for context, (_, source) in zip(asked, found, strict=True)
        ]
        return DecodeKnots(asked, [alpha for alpha, _ in found], sources)

    def _curve(self, op: OpCalibration, kernel: Kernel) -> Grid:
        key = (op.op, kernel.dims, kernel.dtype)
        found = self._grids.get(key)
        if found is None:
            varying = _VARYING.get(op.op, "tokens")
            others = [name for name in AXES[op.op] if name not in (varying, "dtype_bytes")]
            fixed = dict(zip(others, map(float, kernel.dims), strict=True))
            fixed["dtype_bytes"] = float(DTYPE_BYTES[kernel.dtype])
            knots = ROW_KNOTS if op.op == "gemm" else SIZE_KNOTS
            found = self._grids[key] = self._grid(op, {varying: knots}, fixed)
        return found

    def prefill_alphas(self, dims: tuple[int, ...], chunks: Chunks) -> tuple[tuple[float, ...], Source]:
        """``alphas`` of a prefill attention of these dimensions."""
        op = self._ops.get("attention_prefill")
        return (self._defaults["attention"], "roofline") if op is None else self._prefill(op, dims, chunks)

    def _prefill(self, op: OpCalibration, dims: tuple[int, ...], chunks: Chunks) -> tuple[tuple[float, ...], Source]:
        prefixed = op.prefixed
        if prefixed or len(chunks) > 1:
            alphas, source = self._prefill_grid(op, dims).alphas(_typical(chunks, prefixed))
            outside = not prefixed and sum([cached for _, cached in chunks]) > 0
            return alphas, "extrapolated" if outside else source
        # One sequence without a measured prefix, the usual launch, needs one line of the grid.
        line = self._lines.get(dims)
        if line is None:
            line = self._lines[dims] = self._prefill_grid(op, dims).line(1.0)
        new, cached = chunks[0]
        if not cached:
            return line.alphas((new,))
        return line.alphas((math.sqrt(new * new + 2.0 * new * cached),))[0], "extrapolated"

    def _prefill_grid(self, op: OpCalibration, dims: tuple[int, ...]) -> Grid:
        key = (op.op, dims)
        found = self._grids.get(key)
        if found is None:
            axes: dict[str, Sequence[float]] = {"sequences": _powers(op, "sequences")}
            axes["new_tokens"] = _powers(op, "new_tokens")
            axes["prefix"] = PREFIX_KNOTS if op.prefixed else (0.0,)
            found = self._grids[key] = self._grid(op, axes, _heads(dims))
        return found

    def _decode_grid(self, op: OpCalibration, kernel: Kernel) -> Grid:
        key = (op.op, kernel.dims[1:])
        found = self._grids.get(key)
        if found is None:
            names = ("decode_requests", "decode_context_tokens")
            axes = {name: _powers(op, name) for name in names}
            found = self._grids[key] = self._grid(op, axes, _heads(kernel.dims[1:]))
        return found

    def _grid(self, op: OpCalibration, axes: Mapping[str, Sequence[float]], fixed: dict[str, float]) -> Grid:
        """The trees' answers on all combinations of knots, measured values among them where points are kept."""
        axes = {name: _with_measured(op, name, knots, fixed) for name, knots in axes.items()}
        columns = np.array(list(product(*axes.values())), dtype=np.float64).T
        shapes: dict[str, Floats] = dict(zip(axes, columns, strict=True))
        if "prefix" in shapes:
            shapes["cached_tokens"] = np.round(shapes.pop("prefix") * shapes["new_tokens"])
        count = columns.shape[1]
        shapes |= {name: np.full(count, value) for name, value in fixed.items() if name in AXES[op.op]}
        values = op.log_alpha(shapes, self._clock)
        rows = [tuple(row) for row in values.tolist()]
        return Grid([Axis(knots) for knots in axes.values()], rows, _sources(op, shapes))


def _sources(op: OpCalibration, shapes: Shapes) -> list[Source]:
    answer: list[Source] = []
    for inside, known in zip(op.inside(shapes).tolist(), op.known(shapes).tolist(), strict=True):
        answer.append("measured" if known else "interpolated" if inside else "extrapolated")
    return answer


def _powers(op: OpCalibration, name: str) -> list[float]:
    """Powers of two over the measured range of an axis, its ends included."""
    least, greatest = op.ranges[name]
    inner = [2.0**power for power in range(32) if least < 2**power < greatest]
    return [*dict.fromkeys((max(1.0, least), *inner, greatest))]


def _with_measured(op: OpCalibration, name: str, knots: Sequence[float], fixed: dict[str, float]) -> list[float]:
    """Knots and, where points are kept, the sizes that were measured with the other axes as here."""
    if op.points is None:
        return list(knots)
    names = AXES[op.op]
    shapes = dict(zip(names, op.points.shapes.T, strict=True))
    here = np.ones(len(op.points.shapes), dtype=bool)
    for other, value in fixed.items():
        if other in shapes:
            here &= shapes[other] == value
    measured = shapes["cached_tokens"] / shapes["new_tokens"] if name == "prefix" else shapes[name]
    return sorted({*knots, *measured[here].tolist()})


def _heads(dims: tuple[int, ...]) -> dict[str, float]:
    return dict(zip(("heads", "kv_heads", "head_dim", "dtype_bytes"), map(float, dims), strict=True))


def _typical(chunks: Chunks, prefixed: bool) -> tuple[float, float, float]:
    """(sequences, new tokens, cached over new) of equal sequences that have the tokens and FLOPs of these.

    A prefix that was not measured counts as part of an unprefixed sequence of equal FLOPs.
    """
    if prefixed:
        tokens = float(sum(new for new, _ in chunks))
        squares = float(sum(new * new for new, _ in chunks))
        crossed = float(sum(new * cached for new, cached in chunks))
        return tokens * tokens / squares, squares / tokens, crossed / squares
    equal = [math.sqrt(new * new + 2.0 * new * cached) for new, cached in chunks]
    tokens, squares = sum(equal), sum(length * length for length in equal)
    return tokens * tokens / squares, squares / tokens, 0.0
