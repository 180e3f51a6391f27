"""A ModelSpec from a Hugging Face config.json: one reader for the many names that families give the same numbers.

What cannot be counted from the file raises; nothing is guessed in silence: a family that is not known is read as a
Llama-like decoder if it has the fields of one, and the spec's ``source`` says so. Values that a family leaves to its
class defaults (KV heads, head size, tied embeddings) follow that family.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from profiler.families import check_family
from profiler.specs import DType, ModelSpec

_PLAIN_MLP = frozenset(
    {"gpt2", "opt", "falcon", "bloom", "gpt_neox", "gptj", "gpt_neo", "gpt_bigcode", "phi", "mpt", "starcoder2"}
    | {"nemotron", "codegen", "persimmon"}
)
_LEARNED_POSITIONS = frozenset({"gpt2", "opt", "gpt_bigcode", "gpt_neo"})
_TIED_BY_DEFAULT = frozenset({"gpt2", "opt", "falcon", "bloom", "gpt_bigcode", "gpt_neo", "mpt", "cohere"})
_QK_NORM = ("qwen3", "gemma3", "olmo2")
_FOUR_TIMES_HIDDEN = frozenset({"gpt2", "falcon", "bloom", "gpt_bigcode", "gptj", "gpt_neo", "mpt"})
_DEFAULT_CONTEXT = {"falcon": 2048}
_DEFAULT_HEAD_DIM = {
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), 256),
    **dict.fromkeys(("qwen3", "glm", "glm4"), 128),
    "gpt_oss": 64,
}
_SLIDES_BY_DEFAULT = frozenset({"gemma2", "gemma3", "gemma3_text", "gpt_oss", "cohere2"})

_TORCH_DTYPES: dict[str, tuple[DType, str]] = {
    "bfloat16": ("bf16", ""),
    "float16": ("bf16", ""),
    "half": ("bf16", ""),
    "float32": ("bf16", "; float32 weights counted as bf16, as engines serve them"),
    "float": ("bf16", "; float32 weights counted as bf16, as engines serve them"),
    "float8_e4m3fn": ("fp8", ""),
    "float8_e5m2": ("fp8", ""),
}
"""By torch_dtype: what the weights count as, and what ``source`` says of it. float16 has the size and peak of bf16."""

_UNSUPPORTED: dict[str, str] = {
    "kv_lora_rank": "multi-head latent attention, whose cache holds one compressed vector a token and no KV heads",
    "full_attention_interval": "linear attention in most layers, which keeps a state and no KV",
    "hybrid_override_pattern": "state-space layers, which keep a state and no KV",
    "layers_block_type": "state-space layers, which keep a state and no KV",
    "state_size": "state-space layers, which keep a state and no KV",
    "ssm_state_size": "state-space layers, which keep a state and no KV",
    "ssm_cfg": "state-space layers, which keep a state and no KV",
    "mamba_d_state": "state-space layers, which keep a state and no KV",
    "linear_attn_config": "linear attention in some layers, which keeps a state and no KV",
    "lru_width": "recurrent layers, which keep a state and no KV",
    "block_configs": "layers of different shapes",
    "cross_attention_layers": "layers that attend to images",
    "num_kv_shared_layers": "layers that share keys and values",
    "encoder_layers": "an encoder-decoder, and only decoder-only models are supported",
    "num_encoder_layers": "an encoder-decoder, and only decoder-only models are supported",
    "num_decoder_layers": "an encoder-decoder, and only decoder-only models are supported",
    "attention_chunk_size": "attention within chunks, with layers of different kinds",
}


def _names(*names: str) -> Any:
    return Field(validation_alias=AliasChoices(*names))


def _optional(*names: str) -> Any:
    return Field(default=None, validation_alias=AliasChoices(*names))


class _Config(BaseModel):
    """The fields read, under every name that a family gives them. None: the family leaves it out."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model_type: str = ""
    architectures: list[str] | None = None
    torch_dtype: str | None = _optional("torch_dtype", "dtype")
    layers: PositiveInt = _names("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    hidden: PositiveInt = _names("hidden_size", "n_embd", "d_model", "n_embed")
    heads: PositiveInt = _names("num_attention_heads", "n_head", "n_heads", "num_heads")
    vocab: PositiveInt = _names("vocab_size", "padded_vocab_size")
    max_context: PositiveInt | None = _optional(
        "max_position_embeddings",
        "n_positions",
        "n_ctx",
        "max_seq_len",
        "max_sequence_length",
        "seq_length",
        "model_max_length",
    )
    intermediate: PositiveInt | None = _optional("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff")
    kv_heads: PositiveInt | None = _optional(
        "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"
    )
    head_dim: PositiveInt | None = _optional("head_dim", "kv_channels")
    multi_query: bool = False
    new_decoder_architecture: bool = False
    tie_word_embeddings: bool | None = None
    use_qk_norm: bool = False
    sliding_window: int | None = None
    use_sliding_window: bool = True
    layer_types: list[str] | None = None
    is_encoder_decoder: bool = False
    quantization_config: dict[str, Any] | None = None
    experts: int | None = _optional("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    experts_per_token: PositiveInt | None = _optional(
        "num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_k"
    )
    moe_intermediate: PositiveInt | None = _optional("moe_intermediate_size", "expert_intermediate_size")
    shared_experts: int | None = _optional("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    shared_intermediate: int | None = _optional("shared_expert_intermediate_size")
    first_dense: int = Field(default=0, validation_alias=AliasChoices("first_k_dense_replace"))
    mlp_only_layers: list[int] | None = None
    decoder_sparse_step: PositiveInt = 1


class _Experts(TypedDict, total=False):
    """The fields of a ModelSpec that only a mixture of experts has."""

    experts: int
    experts_per_token: int
    moe_intermediate: int
    shared_intermediate: int
    dense_layers: int


def from_hf_config(path: str | Path) -> ModelSpec:
    """Read a config.json, or the one in a folder; the model is named after the folder.

    Reads decoder-only models with multi-head, grouped-query or multi-query attention, dense or mixture of experts:
    Llama, Mistral, Mixtral, Qwen 2 and 3, Gemma, Phi, GPT-2, OPT, Falcon and their like, also where a multimodal
    file nests them in ``text_config``. Sliding-window layers count as full attention, float32 weights as bf16, and
    ``source`` says so.
    Raises OSError where there is no such file, ValueError naming file and field where it cannot be modelled.
    """
    file = config_file(path)
    try:
        return _spec(file, config_fields(file))
    except ValidationError as error:
        raise ValueError(f"{file}: {_first_problem(error)}") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def config_file(path: str | Path) -> Path:
    """The config.json that ``path`` is, or that lies in it."""
    file = Path(path)
    return file / "config.json" if file.is_dir() else file


def config_fields(file: Path) -> dict[str, Any]:
    """The language model's own fields of a config.json.

    Raises OSError where there is no such file, ValueError, without its name, where it is no config.
    """
    # null is absence: it must not hide the same value under another name.
    return {name: value for name, value in _flat(_object(file.read_bytes())).items() if value is not None}


def _spec(file: Path, data: dict[str, Any]) -> ModelSpec:
    unknown = _unknown_family(data)
    config = _Config.model_validate(data)
    _check_supported(config)
    dtype, widened = _dtype(config)
    source = f"{file.name}, model_type {config.model_type or 'not stated'}"
    if unknown is not None:
        source += f"; {unknown}"
    if _slides(config):
        source += "; sliding-window layers counted as full attention"
    max_context = config.max_context or _DEFAULT_CONTEXT.get(config.model_type)
    if max_context is None:
        raise ValueError("max_position_embeddings is absent and nothing stands in for it")
    return ModelSpec(
        name=file.resolve().parent.name,
        layers=config.layers,
        hidden=config.hidden,
        intermediate=_intermediate(config),
        heads=config.heads,
        kv_heads=_kv_heads(config),
        head_dim=_head_dim(config),
        vocab=config.vocab,
        max_context=max_context,
        tied_embeddings=_tied(config),
        qk_norm=config.use_qk_norm or config.model_type.startswith(_QK_NORM),
        gated_mlp=config.model_type not in _PLAIN_MLP,
        learned_positions=max_context if config.model_type in _LEARNED_POSITIONS else 0,
        dtype=dtype,
        source=source + widened,
        **_experts(config),
    )


def _object(content: bytes) -> dict[str, Any]:
    try:
        data = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("not text in UTF-8; give the config.json of a Hugging Face model") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(data, dict):
        raise ValueError(f"holds a {type(data).__name__}; a model's config.json is an object")
    return data


def _flat(data: dict[str, Any]) -> dict[str, Any]:
    """The language model's own fields; those that only the outer object has, such as quantization, are kept.

    Of the family's names only the inner ones are, if there are any: the outer ones are those of the whole.
    """
    for name in ("text_config", "llm_config", "language_config"):
        inner = data.get(name)
        if isinstance(inner, dict):
            flat = {**data, **inner}
            if inner.get("model_type") or inner.get("architectures"):
                flat |= {key: inner.get(key) or empty for key, empty in (("model_type", ""), ("architectures", []))}
            flat["is_encoder_decoder"] = bool(data.get("is_encoder_decoder") or inner.get("is_encoder_decoder"))
            return flat
        if inner is not None:
            raise ValueError(f"{name} is {repr(inner)[:80]}; it must be an object")
    return data


def _unknown_family(data: dict[str, Any]) -> str | None:
    """What ``source`` says of a family that is not known. Raises for what is no decoder, before fields are missed."""
    for name, reason in _UNSUPPORTED.items():
        if data.get(name):
            raise ValueError(f"{name} = {str(data[name])[:80]}: not supported, it means {reason}")
    if data.get("is_encoder_decoder"):
        raise ValueError("is_encoder_decoder is true: not supported, only decoder-only models are")
    architectures, model_type = data.get("architectures"), data.get("model_type")
    names = [name for name in architectures if isinstance(name, str)] if isinstance(architectures, list) else []
    unknown = check_family(model_type if isinstance(model_type, str) else "", names)
    if ("patch_size" in data or "image_size" in data) and not ("vocab_size" in data or "padded_vocab_size" in data):
        raise ValueError("has patch_size or image_size and no vocab_size: not supported, it is no language model")
    return unknown


def _check_supported(config: _Config) -> None:
    known = ("full_attention", "sliding_attention")
    for layer_type in config.layer_types or ():
        if layer_type not in known:
            raise ValueError(f"layer_types has {layer_type!r}: not supported; known: {', '.join(known)}")


def _head_dim(config: _Config) -> int:
    if config.head_dim is not None:
        return config.head_dim
    if config.model_type in _DEFAULT_HEAD_DIM:
        return _DEFAULT_HEAD_DIM[config.model_type]
    if config.hidden % config.heads:
        raise ValueError(f"head_dim is absent and hidden size {config.hidden} is no multiple of {config.heads} heads")
    return config.hidden // config.heads


def _slides(config: _Config) -> bool:
    if "sliding_attention" in (config.layer_types or ()) or config.model_type in _SLIDES_BY_DEFAULT:
        return True
    return bool(config.sliding_window) and config.use_sliding_window


def _intermediate(config: _Config) -> int:
    """Width of a dense MLP; where every layer has experts it does not matter, and theirs stands in."""
    if config.intermediate is not None:
        # The first Qwen counts its gate and up projections together.
        return config.intermediate // 2 if config.model_type == "qwen" else config.intermediate
    if config.model_type in _FOUR_TIMES_HIDDEN:
        return 4 * config.hidden
    if config.moe_intermediate is not None and not _dense_layers(config):
        return config.moe_intermediate
    raise ValueError("intermediate_size is absent and nothing stands in for it")


def _kv_heads(config: _Config) -> int:
    if config.multi_query and not config.new_decoder_architecture:
        return 1
    return config.kv_heads or config.heads


def _tied(config: _Config) -> bool:
    if config.tie_word_embeddings is not None:
        return config.tie_word_embeddings
    return config.model_type in _TIED_BY_DEFAULT or config.model_type.startswith("gemma")


def _experts(config: _Config) -> _Experts:
    if not config.experts or config.experts == 1:
        return {}
    if config.experts_per_token is None:
        raise ValueError(f"{config.experts} experts but num_experts_per_tok is absent")
    width = config.moe_intermediate or config.intermediate
    if width is None:
        raise ValueError(f"{config.experts} experts but neither moe_intermediate_size nor intermediate_size")
    return {
        "experts": config.experts,
        "experts_per_token": config.experts_per_token,
        "moe_intermediate": width,
        "shared_intermediate": config.shared_intermediate or width * (config.shared_experts or 0),
        "dense_layers": _dense_layers(config),
    }


def _dense_layers(config: _Config) -> int:
    dense = set(config.mlp_only_layers or ()) | set(range(config.first_dense))
    step = config.decoder_sparse_step
    dense |= {layer for layer in range(config.layers) if (layer + 1) % step}
    return len(dense)


def _dtype(config: _Config) -> tuple[DType, str]:
    """What weights count as, and what ``source`` says of it: quantization decides, else torch_dtype, else bf16."""
    stated = (config.torch_dtype or "bfloat16").removeprefix("torch.")
    if stated not in _TORCH_DTYPES:
        raise ValueError(
            f"torch_dtype is {config.torch_dtype!r}: not supported; known: {', '.join(_TORCH_DTYPES)}, or leave it out"
        )
    if config.quantization_config is not None:
        return _quantized(config.quantization_config), ""
    return _TORCH_DTYPES[stated]


def _quantized(quantization: dict[str, Any]) -> DType:
    """fp8 where weights are; others raise."""
    method = str(quantization.get("quant_method", "")).lower()
    if method in ("fp8", "fbgemm_fp8"):
        return "fp8"
    if method == "modelopt" and str(quantization.get("quant_algo", "")).upper() == "FP8":
        return "fp8"
    groups = quantization.get("config_groups")
    if method == "compressed-tensors" and isinstance(groups, dict) and groups:
        weights = [group.get("weights") or {} for group in groups.values() if isinstance(group, dict)]
        if all(part.get("num_bits") == 8 and part.get("type") == "float" for part in weights):
            return "fp8"
    raise ValueError(
        f"quantization_config quant_method {method!r}: not supported; known: fp8, fbgemm_fp8, modelopt FP8 and "
        f"compressed-tensors with 8-bit float weights. Take the unquantized model's config instead",
    )


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"{name} is absent and nothing stands in for it"
    return f"{name} is {repr(problem['input'])[:80]}: {problem['msg']}"
