"""Mooncake traces (Apache-2.0): JSON lines with timestamp in milliseconds and hashed prefix blocks of 512 tokens.

``hash_ids`` is a chain: equal ids mean an equal prefix up to and with that block; the last block is
nearly always partial. Arrivals are binned (about 3 s in the conversation trace).
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np

from traces.formats.rows import ReadOptions, Rows
from traces.jsonl import Line, read_lines

KEYS = ("timestamp", "input_length", "output_length")
BLOCK_TOKENS = 512


def read(path: Path, options: ReadOptions) -> Rows:
    """The requests of a Mooncake file, with hashed blocks where it has them. Raises TraceError naming file and line."""
    lines = read_lines(path, options.progress)
    first = next(lines)
    hashed = "hash_ids" in first.values
    found = [(*_request(line), _blocks(line) if hashed else ()) for line in chain((first,), lines)]
    arrivals, prompts, outputs, blocks = zip(*found, strict=True)
    return Rows(
        prompt_tokens=np.array(prompts, np.int64),
        output_tokens=np.array(outputs, np.int64),
        arrival_s=np.array(arrivals) / 1e3,
        block_hashes=blocks if hashed else None,
        block_tokens=BLOCK_TOKENS if hashed else None,
    )


def _request(line: Line) -> tuple[float, int, int]:
    """Arrival in milliseconds, prompt and output tokens."""
    return line.time("timestamp", unit_s=1e-3), line.tokens("input_length"), line.tokens("output_length")


def _blocks(line: Line) -> tuple[int, ...]:
    blocks = line.integers("hash_ids")
    needed = -(-line.tokens("input_length") // BLOCK_TOKENS)
    if len(blocks) != needed:
        raise line.refusal("hash_ids", f"{needed} ids, one for each {BLOCK_TOKENS} tokens of input_length")
    return blocks
