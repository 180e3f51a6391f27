"""Thread blocks of a matrix product, and what waves of them waste (paper, section 2.2 and table 2).

The planner (cuBLAS, CUTLASS) plans for the whole device, also inside an SM share. So tile and split depend on the
device and never on the share, and a share only changes the number of waves.
"""

from __future__ import annotations

import math

TILES: tuple[tuple[int, int], ...] = (
    (128, 256),
    (128, 128),
    (64, 128),
    (64, 64),
    (32, 64),
    (16, 64),
)
"""(rows, columns) of output tiles, each half of the one before. With 128 x 256 first, table 2 comes out exactly."""

SPLIT_RATIO = 3
"""Products at least this much longer in k than wide in n are split along k, as the paper's MLP column implies."""

SPLIT_WAVES = 4
"""A split product gets at least this many waves of blocks on the whole device."""

MAX_SPLITS = 32


def waves(blocks: int, sms: int, blocks_per_sm: int = 1) -> int:
    """w = ceil(q / (b N))."""
    return -(-blocks // (blocks_per_sm * sms))


def idle_share(blocks: int, sms: int, blocks_per_sm: int = 1) -> float:
    """Share of SM time that a kernel of ``blocks`` blocks leaves idle: (N - tail) / (N w), 0 to 1."""
    count = waves(blocks, sms, blocks_per_sm)
    tail = -(-blocks // blocks_per_sm) - sms * (count - 1)
    return (sms - tail) / (sms * count)


def plan_gemm(rows: float, columns: int, depth: int, device_sms: int, groups: float = 1.0) -> tuple[int, float]:
    """(blocks, FLOPs that one block issues) of ``groups`` products (rows x depth) x (depth x columns).

    The largest tile is taken that is at most half empty of rows and still gives the whole device one wave; the
    smallest where none does. A long product is split along k: by the smallest power of two, up to 32, that gives
    four waves. Tiles and splits are nested, and coarser ones come with more rows only, so more rows are never
    faster on any number of SMs. ``groups`` and ``rows`` are expectations for grouped expert products.
    """
    largest_rows = max(TILES[-1][0], 1 << (math.ceil(rows) - 1).bit_length())
    for tile_rows, tile_columns in TILES:
        blocks = math.ceil(groups * math.ceil(rows / tile_rows) * math.ceil(columns / tile_columns))
        if tile_rows <= largest_rows and blocks >= device_sms:
            break
    splits = 1
    if depth >= SPLIT_RATIO * columns:
        while splits < MAX_SPLITS and blocks * splits < SPLIT_WAVES * device_sms:
            splits *= 2
    return blocks * splits, 2.0 * tile_rows * tile_columns * depth / splits
