"""The formats that :func:`traces.load` reads: one module a family, one entry here a format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from traces.formats import apex, azure, burstgpt, lengths, mooncake, own, servegen, sharegpt, vllm
from traces.formats.rows import ReadOptions, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a format reads; ``columns`` or ``keys`` are what a header or JSON line of it has.

    share: of the time until there is a trace, how much reading takes; the rest is for the rules of all formats.
    """

    read: Callable[[Path, ReadOptions], Rows]
    about: str
    columns: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    share: float = 0.7


FORMATS: dict[str, Format] = {
    "azure": Format(read=azure.read, about="Azure LLM inference 2023, 2024, 2025", columns=azure.NEEDED),
    "apex": Format(read=apex.read, about="APEX lengths and offsets in ns", columns=apex.NEEDED),
    "burstgpt": Format(read=burstgpt.read, about="BurstGPT 1 to 3", columns=burstgpt.NEEDED),
    "vidur": Format(read=lengths.read_vidur, about="Vidur and Sarathi files", columns=lengths.VIDUR),
    "sharegpt-lengths": Format(read=sharegpt.read_turns, about="ShareGPT message lengths", columns=sharegpt.TURNS),
    "sharegpt-sessions": Format(read=sharegpt.read_sessions, about="the same, all exchanges (only by --format)"),
    "exchanges": Format(
        read=lengths.read_exchanges, about="first exchanges of conversations", columns=lengths.EXCHANGES
    ),
    "csv": Format(read=own.read_csv, about="our own CSV", columns=own.NEEDED),
    "parquet": Format(read=own.read_parquet, about="our own Parquet"),
    "mooncake": Format(read=mooncake.read, about="Mooncake JSON lines", keys=mooncake.KEYS, share=0.95),
    "vllm": Format(read=vllm.read, about="request log of a vLLM run", keys=vllm.KEYS, share=0.95),
    "sharegpt": Format(read=sharegpt.read_text, about="ShareGPT conversations as text"),
    "servegen": Format(read=servegen.read, about="ServeGen folder of clients (generated)", share=0.95),
}
"""By name. A CSV is given to the first whose columns its header holds, so the more particular come first."""
