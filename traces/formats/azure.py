"""Azure LLM inference traces of 2023, 2024 and 2025 (CC-BY-4.0).

TIMESTAMP, then token columns. 2023 stamps have no zone and seven decimals, 2024 ones "+00:00" and six or
no decimals; 2025 (multimodal) inserts NumImages, which counts images and not tokens. The prompt is the
sum of all columns named ...Tokens other than GeneratedTokens.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from traces.formats.rows import ReadOptions, Rows
from traces.table import read_table

NEEDED = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read(path: Path, options: ReadOptions) -> Rows:
    """The requests of an Azure file of any year. Raises TraceError naming file, row and column."""
    table = read_table(path, NEEDED, "azure", options.progress)
    prompts = [name for name in table.columns if name.endswith("Tokens") and name != "GeneratedTokens"]
    stamps, mixed = table.epoch_ns("TIMESTAMP")
    notes = [f"prompt = {' + '.join(prompts)}"] if len(prompts) > 1 else []
    if mixed:
        notes.append("stamps without a zone, among others with one, taken as UTC")
    return Rows(
        prompt_tokens=np.sum([table.tokens(name) for name in prompts], axis=0, dtype=np.int64),
        output_tokens=table.tokens("GeneratedTokens"),
        # Whole nanoseconds until the origin is gone: a float of 1970's seconds would keep only 0.2 us.
        arrival_s=(stamps - stamps.min()) / 1e9,
        notes=tuple(notes),
    )
