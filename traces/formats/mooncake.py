"""Mooncake traces (Apache-2.0): JSON lines with timestamp in milliseconds and hashed prefix blocks of 512 tokens.

``hash_ids`` is a chain: equal ids mean an equal prefix up to and with that block; the last block is
nearly always partial. Arrivals are binned (about 3 s in the conversation trace).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from traces.formats.rows import ReadOptions, Rows
from traces.jsonl import Line, read_lines

KEYS = ("timestamp", "input_length", "output_length")
BLOCK_TOKENS = 512


def read(path: Path, options: ReadOptions) -> Rows:
    """The requests of a Mooncake file, with hashed blocks where it has them. Raises TraceError naming file and line."""
    lines = read_lines(path)
    hashed = "hash_ids" in lines[0].values
    return Rows(
        prompt_tokens=np.array([line.tokens("input_length") for line in lines], np.int64),
        output_tokens=np.array([line.tokens("output_length") for line in lines], np.int64),
        arrival_s=np.array([line.time("timestamp", unit_s=1e-3) for line in lines]) / 1e3,
        block_hashes=[_blocks(line) for line in lines] if hashed else None,
        block_tokens=BLOCK_TOKENS if hashed else None,
    )


def _blocks(line: Line) -> tuple[int, ...]:
    blocks = line.integers("hash_ids")
    needed = -(-line.tokens("input_length") // BLOCK_TOKENS)
    if len(blocks) != needed:
        raise line.refusal("hash_ids", f"{needed} ids, one for each {BLOCK_TOKENS} tokens of input_length")
    return blocks
