"""Reading Hugging Face configs: families' own names, published sizes, and refusals that name file and field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import profiler
from profiler.hf_config import from_hf_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
    "torch_dtype": "bfloat16",
}
QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 94,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
FAMILIES: dict[str, tuple[dict[str, Any], float]] = {
    "mistral-7b": (
        {**LLAMA, "model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096},
        7.24e9,
    ),
    "mixtral-8x7b": (
        {**LLAMA, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2},
        46.7e9,
    ),
    "qwen2.5-7b": (
        {
            "model_type": "qwen2",
            "num_hidden_layers": 28,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
            "max_position_embeddings": 32768,
            "sliding_window": 131072,
            "use_sliding_window": False,
            "tie_word_embeddings": False,
        },
        7.61e9,
    ),
    "gpt2": (
        {
            "model_type": "gpt2",
            "n_layer": 12,
            "n_embd": 768,
            "n_head": 12,
            "n_positions": 1024,
            "n_ctx": 1024,
            "n_inner": None,
            "vocab_size": 50257,
        },
        0.1244e9,
    ),
    "opt-6.7b": (
        {
            "model_type": "opt",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "ffn_dim": 16384,
            "num_attention_heads": 32,
            "vocab_size": 50272,
            "max_position_embeddings": 2048,
        },
        6.66e9,
    ),
    "falcon-7b": (
        {
            "model_type": "falcon",
            "num_hidden_layers": 32,
            "hidden_size": 4544,
            "num_attention_heads": 71,
            "multi_query": True,
            "new_decoder_architecture": False,
            "vocab_size": 65024,
        },
        6.92e9,
    ),
    "gemma-2b": (
        {
            "model_type": "gemma",
            "num_hidden_layers": 18,
            "hidden_size": 2048,
            "intermediate_size": 16384,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "vocab_size": 256000,
            "max_position_embeddings": 8192,
        },
        2.51e9,
    ),
    "glm-4.5": (
        {
            "model_type": "glm4_moe",
            "num_hidden_layers": 92,
            "hidden_size": 5120,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "n_routed_experts": 160,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 3,
            "vocab_size": 151552,
            "max_position_embeddings": 131072,
        },
        353e9,
    ),
}


def write(folder: Path, data: object) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "config.json"
    file.write_text(json.dumps(data))
    return file


def test_llama_config_equals_the_preset(tmp_path: Path) -> None:
    spec = from_hf_config(write(tmp_path / "Llama-3.1-8B", LLAMA))
    preset = profiler.model("Llama-3.1-8B")
    assert spec.parameters == preset.parameters
    assert spec.kv_bytes_per_token == preset.kv_bytes_per_token
    assert (spec.name, spec.head_dim, spec.tied_embeddings) == ("Llama-3.1-8B", 128, False)


def test_moe_config_in_text_config_with_fp8_outside(tmp_path: Path) -> None:
    data = {"model_type": "outer", "text_config": QWEN3_MOE, "quantization_config": {"quant_method": "fp8"}}
    spec = from_hf_config(write(tmp_path / "m", data))
    preset = profiler.model("Qwen3-235B-A22B-FP8")
    assert (spec.parameters, spec.weight_bytes) == (preset.parameters, preset.weight_bytes)


@pytest.mark.parametrize("family", FAMILIES)
def test_published_sizes(family: str, tmp_path: Path) -> None:
    data, parameters = FAMILIES[family]
    spec = from_hf_config(write(tmp_path / family, data))
    assert spec.parameters == pytest.approx(parameters, rel=0.005)


def test_family_defaults(tmp_path: Path) -> None:
    falcon = from_hf_config(write(tmp_path / "falcon", FAMILIES["falcon-7b"][0]))
    assert (falcon.kv_heads, falcon.head_dim, falcon.gated_mlp, falcon.max_context) == (1, 64, False, 2048)
    gpt2 = from_hf_config(write(tmp_path / "gpt2", FAMILIES["gpt2"][0]))
    assert (gpt2.kv_heads, gpt2.intermediate, gpt2.tied_embeddings) == (12, 3072, True)
    glm = from_hf_config(write(tmp_path / "glm", FAMILIES["glm-4.5"][0]))
    assert (glm.dense_layers, glm.moe_layers, glm.shared_intermediate) == (3, 89, 1536)
    sparse = {**QWEN3_MOE, "decoder_sparse_step": 2, "mlp_only_layers": [1]}
    assert from_hf_config(write(tmp_path / "s", sparse)).dense_layers == 48


def test_sliding_window_is_noted_in_the_source(tmp_path: Path) -> None:
    mistral = from_hf_config(write(tmp_path / "a", FAMILIES["mistral-7b"][0]))
    qwen = from_hf_config(write(tmp_path / "b", FAMILIES["qwen2.5-7b"][0]))
    assert "sliding-window" in mistral.source
    assert "sliding-window" not in qwen.source


def test_model_reads_a_path_or_a_folder(tmp_path: Path) -> None:
    file = write(tmp_path / "mine", LLAMA)
    assert profiler.model(file) == profiler.model(str(file.parent)) == from_hf_config(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_lora_rank": 512}, "kv_lora_rank = 512: not supported.*latent attention"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder.*decoder-only"),
        ({"layer_types": ["linear_attention"]}, "linear_attention.*known: full_attention"),
        ({"mamba_d_state": 16}, "state-space"),
        ({"quantization_config": {"quant_method": "awq"}}, "'awq': not supported; known: fp8"),
        ({"hidden_size": None}, "num_hidden_layers|hidden_size"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers is 'many'"),
        ({"num_attention_heads": 31}, "head_dim is absent"),
        ({"num_local_experts": 8}, "num_experts_per_tok is absent"),
        ({"intermediate_size": None}, "intermediate_size is absent"),
        ({"max_position_embeddings": None}, "max_position_embeddings is absent"),
        ({"num_key_value_heads": 7}, "no multiple of its 7 kv_heads"),
        ({"text_config": 3}, "text_config is 3"),
        ({"torch_dtype": "foo"}, "torch_dtype is 'foo': not supported; known: bfloat16, float16"),
        ({"dtype": "int8", "torch_dtype": None}, "torch_dtype is 'int8'"),
        ({"model_type": "mamba"}, "model_type is 'mamba': not supported, it means state-space"),
        ({"model_type": "rwkv"}, "model_type is 'rwkv': not supported, it means state-space, linear or recurrent"),
        ({"model_type": "t5"}, "model_type is 't5': not supported, it means an encoder-decoder"),
        ({"model_type": "bert"}, "an encoder, which generates no text"),
        ({"model_type": "vit"}, "a vision or audio model"),
        ({"model_type": "deepseek_v3"}, "multi-head latent attention"),
        ({"architectures": ["MambaForCausalLM"]}, "architectures is 'MambaForCausalLM': not supported"),
        ({"model_type": "", "architectures": ["T5ForConditionalGeneration"]}, "an encoder-decoder"),
        ({"model_type": "outer", "text_config": {"model_type": "deepseek_v2"}}, "multi-head latent attention"),
        ({"model_type": "new", "num_decoder_layers": 6}, "num_decoder_layers = 6: .* an encoder-decoder"),
        ({"is_encoder_decoder": True, "text_config": {"is_encoder_decoder": False}}, "is_encoder_decoder"),
    ],
)
def test_refusals_name_the_field(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as error:
        from_hf_config(write(tmp_path / "m", {**LLAMA, **change}))
    assert "\n" not in str(error.value)


def test_refusals_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json: n_layer|config\.json: num_hidden_layers is absent"):
        from_hf_config(write(tmp_path / "m", {"model_type": "llama"}))
    file = write(tmp_path / "l", [1])
    with pytest.raises(ValueError, match=r"config\.json: holds a list"):
        from_hf_config(file)
    file.write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: not JSON"):
        from_hf_config(file)
    file.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"config\.json: not JSON"):
        from_hf_config(file)
    file.write_bytes(b"\x89PNG\xff\xfe\x00")
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: not text in UTF-8; give the config.json"):
        from_hf_config(file)
    with pytest.raises(OSError, match="config"):
        from_hf_config(tmp_path / "nowhere" / "config.json")


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        {"quant_method": "fbgemm_fp8"},
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
        },
    ],
)
def test_fp8_checkpoints(quantization: dict[str, Any], tmp_path: Path) -> None:
    spec = from_hf_config(write(tmp_path / "m", {**LLAMA, "quantization_config": quantization}))
    assert spec.dtype == "fp8"


def test_vision_models_are_refused_for_what_they_are(tmp_path: Path) -> None:
    data = {name: value for name, value in LLAMA.items() if name != "vocab_size"} | {
        "model_type": "x",
        "patch_size": 16,
    }
    with pytest.raises(ValueError, match="no vocab_size: not supported, it is no language model"):
        from_hf_config(write(tmp_path / "m", data))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"model_type": "foo"}, "unknown family foo read as a Llama-like decoder"),
        ({"architectures": ["FooForCausalLM"]}, "unknown family FooForCausalLM read as a Llama-like decoder"),
        ({"model_type": None}, "no model_type stated, read as a Llama-like decoder"),
        ({"model_type": ""}, "no model_type stated, read as a Llama-like decoder"),
        ({"model_type": "", "architectures": ["LlamaForCausalLM"]}, ""),
        ({"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"]}, ""),
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, ""),
        ({"model_type": "wrap", "architectures": ["WrapModel"], "text_config": {"model_type": "gemma3_text"}}, ""),
        ({"model_type": "wrap", "text_config": {"model_type": "foo"}}, "unknown family foo"),
        ({"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "text_config": {}}, ""),
    ],
)
def test_unknown_families_are_read_and_said_to_be(names: dict[str, Any], said: str, tmp_path: Path) -> None:
    spec = from_hf_config(write(tmp_path / "m", {**LLAMA, **names}))
    assert (said in spec.source) if said else ("read as" not in spec.source)


@pytest.mark.parametrize("family", FAMILIES)
def test_known_families_are_not_called_unknown(family: str, tmp_path: Path) -> None:
    assert "unknown" not in from_hf_config(write(tmp_path / "m", FAMILIES[family][0])).source


def test_gemma2_slides_and_has_its_own_head_size(tmp_path: Path) -> None:
    spec = from_hf_config(write(tmp_path / "m", {**LLAMA, "model_type": "gemma2", "sliding_window": 4096}))
    assert (spec.head_dim, spec.tied_embeddings) == (256, True)
    assert spec.source.endswith("sliding-window layers counted as full attention")
    layers = {**LLAMA, "layer_types": ["sliding_attention", "full_attention"]}
    assert "sliding-window" in from_hf_config(write(tmp_path / "l", layers)).source


@pytest.mark.parametrize(
    ("dtype", "counted", "said"),
    [
        ("bfloat16", "bf16", ""),
        ("float16", "bf16", ""),
        ("torch.float16", "bf16", ""),
        ("float32", "bf16", "; float32 weights counted as bf16, as engines serve them"),
        ("float8_e4m3fn", "fp8", ""),
    ],
)
def test_torch_dtypes(dtype: str, counted: str, said: str, tmp_path: Path) -> None:
    spec = from_hf_config(write(tmp_path / "m", {**LLAMA, "torch_dtype": dtype}))
    assert (spec.dtype, spec.source) == (counted, f"config.json, model_type llama{said}")
