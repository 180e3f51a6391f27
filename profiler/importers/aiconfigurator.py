"""NVIDIA AIConfigurator's kernel tables (package aiconfigurator-core, Apache-2.0), whole devices, times in ms.

``*gemm_perf*``: gemm_dtype, m, n, k. ``*context_attention_perf*``: prefill of a whole batch of batch_size sequences
    of isl new tokens each, over step cached ones. ``*generation_attention_perf*``: one new token in each of
    batch_size sequences of isl + step tokens, the new one included (isl is 1).
``*custom_allreduce_perf*`` and ``*nccl_perf*``: message_size counts elements, not bytes. At equal sizes NCCL takes
    twice as long for half as for int8, and read as bytes the largest message would cross 8 H100s at 234 GB/s of
    their 450 each way; as elements of 2 bytes it is 469, with the switch summing. A framework's own all-reduce was
    timed in a CUDA graph and launched from the host; the latter takes 20 us at least and is not read, as launches
    are counted by themselves.

fp8 attention: dtype says what the cache holds, ``attn_dtype`` what is multiplied. Decode is read with a cache of
either, prefill in bf16 throughout. Other precisions, sliding windows, other collectives are left out and counted;
tables of other operators, and of whole models, are never opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

import pandas as pd

from profiler import presets
from profiler.importers import package
from profiler.importers.package import PACKAGE
from profiler.importers.tables import SUFFIXES, Gathered, Progress, Table, check_device, must_exist, untold
from profiler.profile import Profile

LICENCE = "Apache-2.0"

Fp8 = Literal["tensor", "block"]
"""Which fp8 products: one scale a tensor or row, or one a block of 128 x 128 weights."""

AllReduce = Literal["custom", "nccl"]
"""Whose all-reduces of an installed package: the framework's own, or NCCL's. A profile holds those of one."""

FP8, ALL_REDUCES = get_args(Fp8), get_args(AllReduce)

_BF16 = ("bfloat16", "bf16", "half", "float16")
_FP8 = {"tensor": "fp8", "block": "fp8_block"}
_HEADS = {"heads": "num_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim"}
_LATENCY = ("latency", "latency_ms")


def read_tables(
    paths: Sequence[Path],
    device: str,
    *,
    fp8: Fp8 = "tensor",
    skip_bad: bool = False,
    progress: Progress = untold,
) -> Profile:
    """A profile of the tables at ``paths``, or in the folders among them, which say what they hold by their names.

    Raises ValueError, in one line with the file's name, for what cannot be read or was measured on another device.
    """
    spec = presets.device(device)
    files = [file for path in paths for file in _files(path)]
    gathered = Gathered(spec, skip_bad, expected=len(files), progress=progress)
    return _read(gathered, files, fp8, f"AIConfigurator ({PACKAGE}, {LICENCE})")


def read_package(
    device: str,
    backend: str = "vllm",
    version: str | None = None,
    *,
    fp8: Fp8 = "tensor",
    all_reduce: AllReduce = "custom",
    skip_bad: bool = False,
    progress: Progress = untold,
) -> Profile:
    """A profile of the tables that the installed package holds of ``device`` under a serving framework.

    ``version``: of the framework, by default the newest of each table. All-reduces are of the named version or, where
    they were not measured under it, of the newest before it. Raises ValueError where the package is not installed or
    has no such tables.
    """
    spec = presets.device(device)
    installed = package.installed()
    files = package.tables(installed, spec.name, backend, version, nccl=all_reduce == "nccl")
    gathered = Gathered(spec, skip_bad, installed.data, len(files), progress)
    return _read(gathered, files, fp8, f"{PACKAGE} {installed.version} ({LICENCE})")


def _read(gathered: Gathered, files: Sequence[Path], fp8: Fp8, whence: str) -> Profile:
    names = [_name(file) for file in files]
    if {"custom_allreduce_perf", "nccl_perf"} <= set(names):
        raise ValueError(
            f"{files[names.index('nccl_perf')]}: a second kind of all-reduce; a profile holds one: leave one"
        )
    for file, name in zip(files, names, strict=True):
        _READERS[name][1](gathered, _opened(gathered, file, name), fp8)
    return gathered.profile(f"{whence}: {', '.join(gathered.files)}", fp8=fp8)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        must_exist(path)
        return [path]
    found = sorted(
        file for file in path.iterdir() if file.name.endswith(SUFFIXES) and any(name in file.name for name in _READERS)
    )
    if not found:
        raise ValueError(f"{path}: no table of AIConfigurator in this folder; known: {', '.join(_READERS)}")
    return found


def _name(path: Path) -> str:
    """Which of the tables a file is."""
    for name in _READERS:
        if name in path.name:
            return name
    raise ValueError(f"{path}: its name tells none of the tables that are read: {', '.join(_READERS)}")


def _opened(gathered: Gathered, path: Path, name: str) -> Table:
    """The table, its device checked and its latency under one name."""
    needed, _ = _READERS[name]
    optional = ("kernel_source", "attn_dtype", "kv_cache_dtype", "window_size", *_LATENCY)
    table = gathered.open(path, ("device", *needed), optional)
    latency = next((column for column in _LATENCY if column in table.frame), None)
    if latency is None:
        raise ValueError(f"{path}: column 'latency' is missing; the file has {', '.join(table.frame.columns)}")
    for found in sorted(table.texts("device").unique()):
        check_device(path, found, gathered.device)
    return Table(path, table.frame.rename(columns={latency: "latency"}))


def _gemm(gathered: Gathered, table: Table, fp8: Fp8) -> None:
    found = table.texts("gemm_dtype")
    dtypes = {**dict.fromkeys(_BF16, "bf16"), _FP8[fp8]: "fp8"}
    for other in sorted(set(found.unique()) - set(dtypes)):
        gathered.skip(f"gemm rows in {other}", int((found == other).sum()))
    kept = table.where(found.isin(list(dtypes)))
    shape = {"m": "m", "n": "n", "k": "k"}
    gathered.add(kept, "gemm", shape, "latency", 1e-3, dtype=kept.texts("gemm_dtype").map(dtypes))


def _context(gathered: Gathered, table: Table, fp8: Fp8) -> None:
    table = _full_attention(gathered, table, "prefill attention")
    kv = _dtypes(table, "kv_cache_dtype")
    table = gathered.keep(table, kv == "bf16", "prefill attention rows over a cache that is not bf16")
    shape = {"sequences": "batch_size", "new_tokens": "isl", "cached_tokens": "step", **_HEADS}
    gathered.add(table, "attention_prefill", shape, "latency", 1e-3, dtype="bf16")


def _generation(gathered: Gathered, table: Table, fp8: Fp8) -> None:
    table = _full_attention(gathered, table, "decode attention")
    kv = _dtypes(table, "kv_cache_dtype")
    table = gathered.keep(table, kv != "", "decode attention rows over a cache of neither bf16 nor fp8")
    context = table.numbers("isl") + table.numbers("step")
    table = Table(table.path, table.frame.assign(context=context))
    shape = {"decode_requests": "batch_size", "decode_context_tokens": "context", **_HEADS}
    gathered.add(table, "attention_decode", shape, "latency", 1e-3, dtype=_dtypes(table, "kv_cache_dtype"))


def _full_attention(gathered: Gathered, table: Table, what: str) -> Table:
    """Rows in bf16 without a sliding window; absent columns mean both."""
    if "window_size" in table.frame:
        table = gathered.keep(table, table.numbers("window_size").fillna(0) <= 0, f"{what} rows with a sliding window")
    return gathered.keep(table, _dtypes(table, "attn_dtype") == "bf16", f"{what} rows not multiplied in bf16")


def _dtypes(table: Table, column: str) -> pd.Series[str]:
    """Our names for a column's dtypes, "" for others; bf16 where there is no such column."""
    if column not in table.frame:
        return pd.Series("bf16", index=table.frame.index)
    known = {**dict.fromkeys(_BF16, "bf16"), "fp8": "fp8"}
    return table.texts(column).map(known).fillna("")


def _custom_all_reduce(gathered: Gathered, table: Table, fp8: Fp8) -> None:
    if "kernel_source" in table.frame:
        eager = table.texts("kernel_source").str.endswith("_eager")
        table = gathered.keep(table, ~eager, "all-reduce rows launched from the host")
    _all_reduce(gathered, table, "allreduce_dtype")


def _nccl(gathered: Gathered, table: Table, fp8: Fp8) -> None:
    table = gathered.keep(table, table.texts("op_name") == "all_reduce", "NCCL rows of other collectives")
    _all_reduce(gathered, table, "nccl_dtype")


def _all_reduce(gathered: Gathered, table: Table, column: str) -> None:
    wanted = table.texts(column).isin(_BF16)
    table = gathered.keep(table, wanted, "all-reduce rows that are not 16-bit floats")
    table = Table(table.path, table.frame.assign(bytes=2 * table.numbers("message_size")))
    gathered.add(table, "all_reduce", {"bytes": "bytes", "devices": "num_gpus"}, "latency", 1e-3, dtype="bf16")


_ATTENTION = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim")
_READERS: dict[str, tuple[tuple[str, ...], Callable[[Gathered, Table, Fp8], None]]] = {
    "gemm_perf": (("gemm_dtype", "m", "n", "k"), _gemm),
    "context_attention_perf": (_ATTENTION, _context),
    "generation_attention_perf": (_ATTENTION, _generation),
    "custom_allreduce_perf": (("allreduce_dtype", "num_gpus", "message_size"), _custom_all_reduce),
    "nccl_perf": (("op_name", "nccl_dtype", "num_gpus", "message_size"), _nccl),
}
"""What a file's name tells, the columns that it needs and how it is read."""
