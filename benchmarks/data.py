"""Where the benchmarks look for public traces, and what they say when none is there."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "traces"
"""Beside the repository."""

NOTHING_CHECKED = 2
"""Exit status: a run that could check nothing has not passed."""


def nothing_there(folder: Path, files: Iterable[str]) -> int:
    """Says on stderr, in one line, what is missing and how to get it; the exit status."""
    print(
        f"error: {folder} has none of {', '.join(files)}; get them, such as by `bulletsim traces fetch azure-code-2023 "
        "--to DIR/azure-llm-2023` (and azure-conv-2023), and give DIR as the script's argument",
        file=sys.stderr,
    )
    return NOTHING_CHECKED
