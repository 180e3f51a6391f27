"""Layer tables of a vLLM engine, as LLMServingSim (casys-kaist, MIT) profiles and publishes them; times in us.

What the columns mean, from that profiler's source (profiler/core/hooks/batch.py, timings.py, extension.py):

- A request of a batch is (new tokens, history): ``num_computed_tokens`` = history, sequence = history + new. So
  ``kv_prefill`` is what was cached before the chunk, the chunk excluded, and ``kv_decode`` what each decoding
  sequence held before its new token: its context in our sense is ``kv_decode`` + 1.
- Times are CUDA time of a module over its invocations, the mean of three eager passes (no CUDA graphs) over a
  model of one layer, after one to warm up: one layer's, whatever the depth of the model.
- ``attention`` is vLLM's Attention module, in which K and V are also written to the cache; ``rotary_emb`` turns
  positions in place and writes nothing. Together they are what our ``rotary`` and ``attention_*`` are together.
- ``lm_head`` is vLLM's LogitsProcessor, one row a sequence; ``sampler`` samples greedily.
- ``layernorm`` is the mean over a layer's two, of which a one-layer model's first has no residual to add;
  ``final_layernorm`` adds one. Both are ``norm`` of one shape here, at the mean of the two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from profiler import presets
from profiler.importers.tables import Gathered, Progress, Table, check_device, untold
from profiler.kernels import Shard
from profiler.profile import Profile
from profiler.specs import ModelSpec

LICENCE = "MIT"
REPEATS = 3

_ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")


def read_tables(
    folder: Path, device: str, *, model: str | None = None, skip_bad: bool = False, progress: Progress = untold
) -> Profile:
    """The profile of a folder with (kernels_)dense.csv, per_sequence.csv and attention.csv, and meta.json or .yaml.

    ``model``: instead of the one that the meta file names. Raises ValueError, in one line with the file's name,
    where a file is missing or holds what cannot be, was measured on another device, or knows other layers.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no folder; give the one that holds dense.csv, per_sequence.csv and attention.csv")
    spec = presets.device(device)
    meta_path, meta = _meta(folder)
    name = model or meta.get("model")
    if not isinstance(name, str):
        raise ValueError(f"{folder}: no meta.json or meta.yaml names the model; give it with --model")
    found = _first(meta, ("hardware", "device_name"), ("gpu",))
    if found is not None:
        check_device(meta_path, str(found), spec)
    ways = _ways(folder, meta)
    shard = Shard(_model(meta_path, name), spec, ways)
    dtype = _dtype(meta_path, meta)
    gathered = Gathered(spec, skip_bad, expected=3, progress=progress)
    _layers(gathered, shard, _file(folder, "dense"), "tokens", dtype)
    _layers(gathered, shard, _file(folder, "per_sequence"), "sequences", dtype)
    _attention(gathered, shard, _file(folder, "attention"), dtype)
    version = meta.get("vllm_version", "unknown")
    origin = f"LLMServingSim ({LICENCE}), vLLM {version}: {folder.name}/{{{', '.join(gathered.files)}}}"
    return gathered.profile(origin, model=shard.model.name, tensor_parallel=ways, latency="mean of 3 passes")


def _model(path: Path, name: str) -> ModelSpec:
    """The model of a hub's name (``owner/NAME``), or of a path to its config.json."""
    try:
        return presets.model(name if Path(name).exists() else name.rpartition("/")[2])
    except ValueError as error:
        raise ValueError(f"{path}: {error}; name it with --model") from None


def _file(folder: Path, name: str) -> Path:
    named = folder / f"kernels_{name}.csv"
    return named if named.exists() else folder / f"{name}.csv"


def _meta(folder: Path) -> tuple[Path, dict[str, Any]]:
    """What the folder, or the one above it, says of the run; empty where neither does."""
    for path in (place / name for place in (folder, folder.parent) for name in ("meta.json", "meta.yaml")):
        if not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
            meta = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        except (UnicodeDecodeError, ValueError, yaml.YAMLError) as error:
            raise ValueError(f"{path}: not readable ({str(error).splitlines()[0]}); fetch it again") from None
        if not isinstance(meta, dict):
            raise ValueError(f"{path}: no settings of a run; fetch it again")
        return path, meta
    return folder, {}


def _first(meta: dict[str, Any], *places: tuple[str, ...]) -> Any:
    """The value at the first of some nested places that has one."""
    for place in places:
        value: Any = meta
        for key in place:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None


def _ways(folder: Path, meta: dict[str, Any]) -> int:
    """GPUs that the model was split over: the folder's name (tp2) wins over the engine's settings."""
    named = re.fullmatch(r"tp(\d+)", folder.name)
    key = "tensor_parallel_size"
    return int(named[1] if named else _first(meta, ("engine_kwargs", key), ("engine_effective", key)) or 1)


def _dtype(path: Path, meta: dict[str, Any]) -> str:
    found = _first(meta, ("engine_kwargs", "dtype"), ("variant",)) or "bf16"
    if found not in ("bfloat16", "float16", "bf16", "fp16", "auto"):
        raise ValueError(f"{path}: dtype is {found!r}; only tables of 16-bit engines are read")
    return "bf16"


def _layers(gathered: Gathered, shard: Shard, path: Path, count: str, dtype: str) -> None:
    """Rows of layers whose time depends on a number of rows alone."""
    table = gathered.open(path, ("layer", count, "time_us"))
    layers = _known_layers(shard)
    found = table.texts("layer")
    for layer in found.unique():
        if layer not in layers:
            gathered.skip(f"rows of layer {layer}", int((found == layer).sum()))
            continue
        kernel, shape = layers[layer](count)
        part = table.where(found == layer)
        gathered.add(part, kernel, shape, "time_us", 1e-6, dtype=dtype, repeats=REPEATS)


def _known_layers(shard: Shard) -> dict[str, Callable[[str], tuple[str, dict[str, str | int | Any]]]]:
    """Kernel and shape of each layer, given the column that counts its rows; on one device of the instance."""
    model, ways = shard.model, shard.tensor_parallel
    query, kv = shard.heads * model.head_dim, shard.kv_heads * model.head_dim
    width, columns = model.intermediate // ways, -(-model.vocab // ways)

    def gemm(n: int, k: int) -> Callable[[str], tuple[str, dict[str, str | int | Any]]]:
        return lambda rows: ("gemm", {"m": rows, "n": n, "k": k})

    def memory(kernel: str, width: int) -> Callable[[str], tuple[str, dict[str, str | int | Any]]]:
        return lambda rows: (kernel, {"tokens": rows, "width": width})

    return {
        "embedding": memory("embedding", model.hidden),
        "layernorm": memory("norm", model.hidden),
        "final_layernorm": memory("norm", model.hidden),
        "qkv_proj": gemm(query + 2 * kv, model.hidden),
        "rotary_emb": lambda rows: ("rotary", {"tokens": rows, **_heads(shard)}),
        "o_proj": gemm(model.hidden, query),
        "gate_up_proj": gemm((model.mlp_matrices - 1) * width, model.hidden),
        "act_fn": memory("activation", width),
        "down_proj": gemm(model.hidden, width),
        "lm_head": gemm(columns, model.hidden),
        "sampler": memory("sampling", model.vocab),
    }


def _heads(shard: Shard) -> dict[str, str | int | Any]:
    return {"heads": shard.heads, "kv_heads": shard.kv_heads, "head_dim": shard.model.head_dim}


def _attention(gathered: Gathered, shard: Shard, path: Path, dtype: str) -> None:
    table = gathered.open(path, (*_ATTENTION, "time_us"))
    chunk, decodes = table.numbers("prefill_chunk"), table.numbers("n_decode")
    table = Table(table.path, table.frame.assign(context=table.numbers("kv_decode") + 1))
    prefill = {"new_tokens": "prefill_chunk", "cached_tokens": "kv_prefill", **_heads(shard)}
    decode = {"decode_requests": "n_decode", "decode_context_tokens": "context", **_heads(shard)}
    for kernel, rows, shape in (
        # A row with neither has a count that is no count, and is refused as one.
        ("attention_prefill", ~(decodes > 0), {"sequences": 1, **prefill}),
        ("attention_decode", (decodes > 0) & (chunk == 0), decode),
        ("attention_mixed", (decodes > 0) & (chunk != 0), {**prefill, **decode}),
    ):
        gathered.add(table.where(rows), kernel, shape, "time_us", 1e-6, dtype=dtype, repeats=REPEATS)
