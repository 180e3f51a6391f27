"""Layer tables of a vLLM engine from a small folder of their form."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from profiler.importers import vllm_tables
from profiler.profile import Profile

LAYERS = (
    *("embedding", "layernorm", "final_layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj"),
    *("act_fn", "down_proj"),
)
DENSE = "layer,tokens,time_us\n" + "".join(f"{layer},64,{10 + i}\n" for i, layer in enumerate(LAYERS))
PER_SEQUENCE = "layer,sequences,time_us\nlm_head,4,1100\nsampler,4,25\n"
ATTENTION = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n16,32,0,0,9.5\n0,0,8,256,12\n128,0,2,64,20\n"
META: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "vllm_version": "0.19.0",
    "engine_kwargs": {"tensor_parallel_size": 1, "dtype": "bfloat16"},
    "hardware": {"device_name": "NVIDIA GeForce RTX 4090"},
}


def folder(path: Path, **changed: str | None) -> Path:
    texts = {
        "kernels_dense.csv": DENSE,
        "kernels_per_sequence.csv": PER_SEQUENCE,
        "kernels_attention.csv": ATTENTION,
        "meta.json": json.dumps(META),
    }
    renamed = {f"kernels_{name}.csv" if name != "meta" else "meta.json": text for name, text in changed.items()}
    for name, text in (texts | renamed).items():
        if text is not None:
            (path / name).write_text(text, encoding="utf-8")
    return path


def rows(profile: Profile, kernel: str, *columns: str) -> list[tuple[object, ...]]:
    return list(profile.select(kernel)[[*columns]].itertuples(index=False, name=None))


def test_layers_become_kernels_of_the_models_shapes(tmp_path: Path) -> None:
    profile = vllm_tables.read_tables(folder(tmp_path), "RTX-4090")
    assert rows(profile, "gemm", "m", "n", "k") == [
        (64, 6144, 4096),
        (64, 4096, 4096),
        (64, 28672, 4096),
        (64, 4096, 14336),
        (4, 128256, 4096),
    ]
    assert profile.select("gemm")["latency_s"].tolist() == pytest.approx([13e-6, 15e-6, 16e-6, 18e-6, 1100e-6])
    assert rows(profile, "embedding", "tokens", "width") == [(64, 4096)]
    assert rows(profile, "activation", "tokens", "width") == [(64, 14336)]
    assert rows(profile, "sampling", "tokens", "width") == [(4, 128256)]
    assert rows(profile, "rotary", "tokens", "heads", "kv_heads", "head_dim") == [(64, 32, 8, 128)]
    # Both norms have one shape, and are one row at their mean.
    assert rows(profile, "norm", "tokens", "width", "latency_s", "repeats") == [(64, 4096, pytest.approx(11.5e-6), 6)]
    assert set(profile.rows["sms"]) == {128}


def test_attention_is_of_a_chunk_after_a_prefix_and_of_contexts_with_the_new_token(tmp_path: Path) -> None:
    profile = vllm_tables.read_tables(folder(tmp_path), "RTX-4090")
    chunk, decode, heads = ("new_tokens", "cached_tokens"), ("decode_requests", "decode_context_tokens"), ("heads",)
    assert rows(profile, "attention_prefill", "sequences", *chunk, *heads) == [(1, 16, 32, 32)]
    assert rows(profile, "attention_decode", *decode, *heads, "latency_s") == [(8, 257, 32, pytest.approx(12e-6))]
    assert rows(profile, "attention_mixed", *chunk, *decode, *heads) == [(128, 0, 2, 65, 32)]


def test_provenance_names_model_and_engine(tmp_path: Path) -> None:
    provenance = vllm_tables.read_tables(folder(tmp_path), "RTX-4090").provenance
    assert (provenance.model, provenance.tensor_parallel) == ("Llama-3.1-8B", 1)
    assert provenance.origin.startswith("LLMServingSim (MIT), vLLM 0.19.0: ")


def test_a_folder_of_tp2_has_shapes_of_one_device(tmp_path: Path) -> None:
    """As LLMServingSim keeps them: meta.yaml above the folder, names without a prefix."""
    part = tmp_path / "tp2"
    part.mkdir()
    text = "model: meta-llama/Llama-3.1-8B\ngpu: NVIDIA H100 80GB HBM3\nvariant: bf16\nvllm_version: 0.19.0\n"
    (tmp_path / "meta.yaml").write_text(text, encoding="utf-8")
    for name, table in (("dense", DENSE), ("per_sequence", PER_SEQUENCE), ("attention", ATTENTION)):
        (part / f"{name}.csv").write_text(table, encoding="utf-8")
    profile = vllm_tables.read_tables(part, "H100")
    assert profile.provenance.tensor_parallel == 2
    assert rows(profile, "gemm", "n", "k")[:2] == [(3072, 4096), (4096, 2048)]
    assert rows(profile, "attention_decode", "heads", "kv_heads") == [(16, 4)]


def test_layers_of_no_kernel_are_counted(tmp_path: Path) -> None:
    profile = vllm_tables.read_tables(folder(tmp_path, dense=f"{DENSE}qk_norm,64,3\nqk_norm,96,3\n"), "RTX-4090")
    assert profile.provenance.settings["left_out"]["rows of layer qk_norm"] == 2


NO_MODEL = json.dumps({key: value for key, value in META.items() if key != "model"})
CASES: dict[str, tuple[dict[str, str | None], str, str]] = {
    "no table": ({"dense": None}, "RTX-4090", "dense.csv: no such file"),
    "empty": ({"attention": ""}, "RTX-4090", "kernels_attention.csv: the file is empty"),
    "header": ({"dense": "layer,n,time_us\nact_fn,1,2\n"}, "RTX-4090", "column 'tokens' is missing"),
    "zero": ({"dense": f"{DENSE}act_fn,65,0\n"}, "RTX-4090", "kernels_dense.csv: row 10: time_us is 0; wanted"),
    "neither": ({"attention": f"{ATTENTION}0,0,0,0,9\n"}, "RTX-4090", "row 4: prefill_chunk is 0; wanted"),
    "decodes": ({"attention": f"{ATTENTION}0,0,x,16,9\n"}, "RTX-4090", "row 4: prefill_chunk is 0; wanted"),
    "other device": ({}, "L40S", "meta.json: measured on 'NVIDIA GeForce RTX 4090', which is not the device L40S"),
    "no model": ({"meta": NO_MODEL}, "RTX-4090", "no meta.json or meta.yaml names the model; give it with --model"),
    "no JSON": ({"meta": "{"}, "RTX-4090", "meta.json: not readable"),
    "fp8 engine": (
        {"meta": json.dumps(META | {"engine_kwargs": {"dtype": "fp8"}})},
        "RTX-4090",
        "meta.json: dtype is 'fp8'; only tables of 16-bit engines are read",
    ),
    "unknown model": (
        {"meta": json.dumps(META | {"model": "org/Mine"})},
        "RTX-4090",
        "meta.json: unknown model 'Mine'; known: Llama-3.1-8B",
    ),
}


@pytest.mark.parametrize(("changed", "device", "message"), CASES.values(), ids=CASES)
def test_what_cannot_be_read_is_refused(
    tmp_path: Path, changed: dict[str, str | None], device: str, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        vllm_tables.read_tables(folder(tmp_path, **changed), device)
    assert "\n" not in str(refusal.value)


def test_a_model_can_be_named_and_bad_rows_left_out(tmp_path: Path) -> None:
    path = folder(tmp_path, meta=NO_MODEL, attention=f"{ATTENTION}0,0,4,16,nan\n")
    profile = vllm_tables.read_tables(path, "RTX-4090", model="Llama-3.1-70B", skip_bad=True)
    assert rows(profile, "attention_decode", "heads") == [(64,)]
    assert profile.provenance.settings["left_out"]["rows of kernels_attention.csv that cannot be"] == 1


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no folder; give the one that holds"):
        vllm_tables.read_tables(tmp_path / "none", "RTX-4090")
