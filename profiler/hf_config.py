"""A ModelSpec from a Hugging Face config.json: one reader for the many names that families give the same numbers.

What cannot be counted from the file raises; nothing is guessed in silence. Values that a family leaves to its class
defaults (KV heads, head size, tied embeddings) follow that family.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from profiler.specs import DType, ModelSpec

_PLAIN_MLP = frozenset(
    {"gpt2", "opt", "falcon", "bloom", "gpt_neox", "gptj", "gpt_neo", "gpt_bigcode", "phi", "mpt", "starcoder2"}
)
_LEARNED_POSITIONS = frozenset({"gpt2", "opt", "gpt_bigcode", "gpt_neo"})
_TIED_BY_DEFAULT = frozenset({"gpt2", "opt", "falcon", "bloom", "gpt_bigcode", "gpt_neo", "mpt", "cohere"})
_QK_NORM = ("qwen3", "gemma3", "olmo2")
_FOUR_TIMES_HIDDEN = frozenset({"gpt2", "falcon", "bloom", "gpt_bigcode", "gptj", "gpt_neo", "mpt"})
_DEFAULT_CONTEXT = {"falcon": 2048}

_UNSUPPORTED: dict[str, str] = {
    "kv_lora_rank": "multi-head latent attention, whose cache holds one compressed vector a token and no KV heads",
    "full_attention_interval": "linear attention in most layers, which keeps a state and no KV",
    "hybrid_override_pattern": "state-space layers, which keep a state and no KV",
    "layers_block_type": "state-space layers, which keep a state and no KV",
    "state_size": "state-space layers, which keep a state and no KV",
    "ssm_cfg": "state-space layers, which keep a state and no KV",
    "mamba_d_state": "state-space layers, which keep a state and no KV",
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
    layers: PositiveInt = _names("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    hidden: PositiveInt = _names("hidden_size", "n_embd", "d_model", "n_embed")
    heads: PositiveInt = _names("num_attention_heads", "n_head", "n_heads", "num_heads")
    vocab: PositiveInt = _names("vocab_size")
    max_context: PositiveInt | None = _optional(
        "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length"
    )
    intermediate: PositiveInt | None = _optional("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff")
    kv_heads: PositiveInt | None = _optional("num_key_value_heads", "num_kv_heads", "n_head_kv")
    head_dim: PositiveInt | None = None
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
    file nests them in ``text_config``. Sliding-window layers count as full attention and ``source`` says so.
    Raises OSError where there is no such file, ValueError naming file and field where it cannot be modelled.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    text = file.read_text(encoding="utf-8")
    try:
        return _spec(file, text)
    except ValidationError as error:
        raise ValueError(f"{file}: {_first_problem(error)}") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _spec(file: Path, text: str) -> ModelSpec:
    data = _flat(_object(text))
    config = _Config.model_validate(data)
    _check_supported(data, config)
    source = f"{file.name}, model_type {config.model_type or 'not stated'}"
    if _slides(config):
        source += "; sliding-window layers counted as full attention"
    head_dim = config.head_dim or config.hidden // config.heads
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
        head_dim=head_dim,
        vocab=config.vocab,
        max_context=max_context,
        tied_embeddings=_tied(config),
        qk_norm=config.use_qk_norm or config.model_type.startswith(_QK_NORM),
        gated_mlp=config.model_type not in _PLAIN_MLP,
        learned_positions=max_context if config.model_type in _LEARNED_POSITIONS else 0,
        dtype=_dtype(config.quantization_config),
        source=source,
        **_experts(config),
    )


def _object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(data, dict):
        raise ValueError(f"holds a {type(data).__name__}; a model's config.json is an object")
    return data


def _flat(data: dict[str, Any]) -> dict[str, Any]:
    """The language model's own fields; those that only the outer object has, such as quantization, are kept."""
    for name in ("text_config", "llm_config", "language_config"):
        inner = data.get(name)
        if isinstance(inner, dict):
            return {**data, **inner}
        if inner is not None:
            raise ValueError(f"{name} is {inner!r}; it must be an object")
    return data


def _check_supported(data: dict[str, Any], config: _Config) -> None:
    for name, reason in _UNSUPPORTED.items():
        if data.get(name) is not None:
            raise ValueError(f"{name} = {data[name]!r}: not supported, it means {reason}")
    if config.is_encoder_decoder:
        raise ValueError("is_encoder_decoder is true: not supported, only decoder-only models are")
    known = ("full_attention", "sliding_attention")
    for layer_type in config.layer_types or ():
        if layer_type not in known:
            raise ValueError(f"layer_types has {layer_type!r}: not supported; known: {', '.join(known)}")
    if config.head_dim is None and config.hidden % config.heads:
        raise ValueError(f"head_dim is absent and hidden size {config.hidden} is no multiple of {config.heads} heads")


def _slides(config: _Config) -> bool:
    return bool(config.sliding_window) and config.use_sliding_window


def _intermediate(config: _Config) -> int:
    """Width of a dense MLP; where every layer has experts it does not matter, and theirs stands in."""
    if config.intermediate is not None:
        return config.intermediate
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


def _dtype(quantization: dict[str, Any] | None) -> DType:
    """bf16 for any 16- or 32-bit checkpoint, as engines serve them; fp8 where weights are; others raise."""
    if quantization is None:
        return "bf16"
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
    return f"{name} is {problem['input']!r}: {problem['msg']}"
