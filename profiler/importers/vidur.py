"""Vidur's profiles (microsoft/vidur, MIT): mlp.csv, attention.csv and all_reduce.csv, 16-bit floats, times in ms.

What the columns mean, from that profiler's source (vidur/profiling/mlp/mlp_impl.py, attention/attention_wrapper.py,
collectives/collectives_wrapper.py):

- ``time_stats.OP.median`` and ``.std`` are over the timed launches of one operator. Our spread is the median absolute
  deviation over the median, taken as 0.6745 std / median: what it is for normal deviates.
- mlp.csv: one layer on ``num_tokens`` tokens as one of ``num_tensor_parallel_workers`` devices runs it. Norms and the
  residual sum are separate kernels there; ``norm`` here is a norm and the ``add`` of the same row.
- attention.csv: ``kv_cache_size`` tokens are cached, the ones computed excluded: a decoding sequence holds one more.
  A row is one sequence of ``prefill_chunk_size`` tokens, or a decode batch where that is 0. Where K and V are written
  to the cache by a kernel of its own (``attn_kv_cache_save``), its time is added: they belong to attention here, and
  ``attn_rope`` turns positions in place only.
- all_reduce.csv: ``size`` is in bytes. Rows of workers on several servers are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from profiler import presets
from profiler.importers.tables import Gathered, Progress, Table, must_exist, untold
from profiler.profile import Profile
from profiler.specs import DeviceSpec

LICENCE = "MIT"
MAD_OF_STD = 0.6745
"""Median absolute deviation of normal deviates of standard deviation 1."""

_MLP = (
    *("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "use_gated_mlp"),
    *("num_tokens", "num_tensor_parallel_workers"),
)
_ATTENTION = (
    *("n_embd", "n_q_head", "n_kv_head", "num_tensor_parallel_workers"),
    *("batch_size", "prefill_chunk_size", "kv_cache_size"),
)
_ALL_REDUCE = ("num_workers", "size", "collective", "devices_per_node")
_GEMMS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
_SINGLE = ("mlp_act", "add", "input_layernorm")
_NOT_ALL = ("emb", "attn_rope", "post_attention_layernorm")
"""Of models that have them."""
_SKUS = re.compile(r"(a100|a40|h100|v100)(_|$)")


def read_tables(paths: Sequence[Path], device: str, *, skip_bad: bool = False, progress: Progress = untold) -> Profile:
    """A profile of the tables at ``paths``, or in the folders among them.

    Raises ValueError, in one line with the file's name, for what cannot be read, and for a path that names another
    device than ``device``.
    """
    spec = presets.device(device)
    files = [file for path in paths for file in _files(path)]
    gathered = Gathered(spec, skip_bad, expected=len(files), progress=progress)
    for file in files:
        _check_sku(file, gathered.device)
        columns, timed, others, read = _READERS[file.name]
        needed = [*columns, *map(_median, timed)]
        optional = [*(f"time_stats.{name}.std" for name in (*timed, *others)), *map(_median, others)]
        read(gathered, gathered.open(file, needed, optional))
    names = ", ".join("/".join(file.parts[-3:]) for file in files)
    return gathered.profile(f"Vidur ({LICENCE}): {names}", spread="0.6745 std / median")


def _files(path: Path) -> list[Path]:
    known = ", ".join(_READERS)
    if path.is_dir():
        found = [path / name for name in _READERS if (path / name).is_file()]
        if not found:
            raise ValueError(f"{path}: no table of Vidur in this folder; known: {known}")
        return found
    must_exist(path)
    if path.name not in _READERS:
        raise ValueError(f"{path}: its name tells none of the tables that are read: {known}")
    return [path]


def _check_sku(path: Path, device: DeviceSpec) -> None:
    """Tables say nothing of their device but in the folders that Vidur keeps them in."""
    named = next(filter(None, map(_SKUS.match, reversed(path.resolve().parts[:-1]))), None)
    if named and named[1] != device.name.casefold().split("-")[0]:
        raise ValueError(
            f"{path}: its folder says {named.string}, which is not the device {device.name}; name that device"
        )


def _timed(table: Table, *operators: str) -> tuple[Table, str, pd.Series[float]]:
    """The rows that have times of all of these; the column of their summed medians, and its spread."""
    medians = [_median(name) for name in operators]
    if not set(medians) <= set(table.frame.columns):
        return table.where(pd.Series(False, index=table.frame.index)), "", pd.Series(dtype="float64")
    empty = pd.concat([table.texts(name) == "" for name in medians], axis=1).any(axis=1)
    table = table.where(~empty)
    latency = sum((table.numbers(name) for name in medians), pd.Series(0.0, index=table.frame.index))
    deviations = [f"time_stats.{name}.std" for name in operators]
    variance = pd.Series(np.nan, index=table.frame.index)
    if set(deviations) <= set(table.frame.columns):
        variance = sum((table.numbers(name) ** 2 for name in deviations), pd.Series(0.0, index=table.frame.index))
    named = " + ".join(medians)
    if len(medians) > 1:
        table = Table(table.path, table.frame.assign(**{named: latency}))
    return table, named, MAD_OF_STD * variance**0.5 / latency


def _median(operator: str) -> str:
    return f"time_stats.{operator}.median"


def _mlp(gathered: Gathered, table: Table) -> None:
    """Shapes of one device: of its share of heads, columns and rows."""
    ways, embedding, heads = (table.numbers(name) for name in ("num_tensor_parallel_workers", "n_embd", "n_head"))
    head_dim, kv_heads, width = embedding / heads, table.numbers("n_kv_head"), table.numbers("n_expanded_embd") / ways
    gated = table.texts("use_gated_mlp").str.casefold() == "true"
    columns = {
        "query": heads * head_dim / ways,
        "qkv": (heads + 2 * kv_heads) * head_dim / ways,
        "up": width * np.where(gated, 2, 1),
        "width": width,
        "heads": heads / ways,
        "kv_heads": kv_heads / ways,
        "head_dim": head_dim,
    }
    table = Table(table.path, table.frame.assign(**columns))
    tokens = "num_tokens"
    for operator, n, k in zip(
        _GEMMS, ("qkv", "n_embd", "up", "n_embd"), ("n_embd", "query", "n_embd", "width"), strict=True
    ):
        _add(gathered, table, "gemm", {"m": tokens, "n": n, "k": k}, operator)
    _add(gathered, table, "embedding", {"tokens": tokens, "width": "n_embd"}, "emb")
    _add(gathered, table, "activation", {"tokens": tokens, "width": "width"}, "mlp_act")
    heads_of = {name: name for name in ("heads", "kv_heads", "head_dim")}
    _add(gathered, table, "rotary", {"tokens": tokens, **heads_of}, "attn_rope")
    for norm in ("input_layernorm", "post_attention_layernorm"):
        _add(gathered, table, "norm", {"tokens": tokens, "width": "n_embd"}, norm, "add")


def _attention(gathered: Gathered, table: Table) -> None:
    ways, heads = table.numbers("num_tensor_parallel_workers"), table.numbers("n_q_head")
    columns = {
        "heads": heads / ways,
        "kv_heads": np.maximum(1, table.numbers("n_kv_head") / ways),
        "head_dim": table.numbers("n_embd") / heads,
        "context": table.numbers("kv_cache_size") + 1,
    }
    table = Table(table.path, table.frame.assign(**columns))
    write = ("attn_kv_cache_save",) if "time_stats.attn_kv_cache_save.median" in table.frame else ()
    heads_of = {name: name for name in ("heads", "kv_heads", "head_dim")}
    decodes = table.numbers("prefill_chunk_size") == 0
    prefill = {"new_tokens": "prefill_chunk_size", "cached_tokens": "kv_cache_size", **heads_of}
    _add(
        gathered,
        table.where(~decodes),
        "attention_prefill",
        {"sequences": "batch_size", **prefill},
        "attn_prefill",
        *write,
    )
    decode = {"decode_requests": "batch_size", "decode_context_tokens": "context", **heads_of}
    _add(gathered, table.where(decodes), "attention_decode", decode, "attn_decode", *write)


def _all_reduce(gathered: Gathered, table: Table) -> None:
    table = gathered.keep(table, table.texts("collective") == "all_reduce", "rows of other collectives")
    one_server = table.numbers("num_workers") == table.numbers("devices_per_node")
    table = gathered.keep(table, one_server, "all-reduce rows over several servers")
    _add(gathered, table, "all_reduce", {"bytes": "size", "devices": "num_workers"}, "all_reduce")


def _add(gathered: Gathered, table: Table, kernel: str, shape: dict[str, str], *operators: str) -> None:
    timed, latency, spread = _timed(table, *operators)
    gathered.skip(f"{kernel} rows without a time of {' and '.join(operators)}", len(table.frame) - len(timed.frame))
    gathered.add(timed, kernel, shape, latency, 1e-3, dtype="bf16", spread=spread)


_READERS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], Callable[[Gathered, Table], None]]] = {
    "mlp.csv": (_MLP, (*_GEMMS, *_SINGLE), _NOT_ALL, _mlp),
    "attention.csv": (_ATTENTION, (), ("attn_prefill", "attn_decode", "attn_kv_cache_save"), _attention),
    "all_reduce.csv": (_ALL_REDUCE, ("all_reduce",), (), _all_reduce),
}
"""By the name of a file: columns needed, operators whose times are, those that need not be there, and the reader."""
