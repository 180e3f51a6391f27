"""The arithmetic of a Hugging Face checkpoint, read from its config.json: what the kernels take, and what they lack."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from profiler.hf_config import config_fields
from profiler.measure.numerics import LinearScaling, Llama3Scaling, Numerics

FAMILIES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""model_type, and class, of the families whose weights can be loaded."""

_Number = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Rope(BaseModel):
    """rope_parameters, or rope_scaling of older files. Defaults are those of the families' classes."""

    model_config = ConfigDict(extra="ignore")

    kind: str = Field(default="default", validation_alias=AliasChoices("rope_type", "type"))
    rope_theta: _Number = 10_000.0
    factor: _Number | None = None
    low_freq_factor: _Number | None = None
    high_freq_factor: _Number | None = None
    original_max_position_embeddings: Annotated[int, Field(gt=0)] | None = None


class _Norm(BaseModel):
    model_config = ConfigDict(extra="ignore")

    rms_norm_eps: _Number = 1e-6


def numerics_of(file: Path) -> Numerics:
    """Epsilon, rotary base and rotary scaling of a config.json.

    Raises ValueError naming file and field for a value that is no number above 0 and for a scaling that is unknown.
    """
    data = config_fields(file)
    try:
        rope = _Rope.model_validate(_rope_fields(data))
        eps = _Norm.model_validate(data).rms_norm_eps
        return Numerics(norm_eps=eps, rope_theta=rope.rope_theta, rope_scaling=_scaling(rope))
    except ValidationError as error:
        problem = error.errors()[0]
        raise ValueError(f"{file}: {problem['loc'][-1]} is {problem['input']!r}: {problem['msg']}") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _rope_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    name = "rope_scaling" if data.get("rope_scaling") else "rope_parameters"
    rope = data.get(name, {})
    if not isinstance(rope, dict):
        raise ValueError(f"{name} is {rope!r}; it must be an object")
    if any(isinstance(value, dict) for value in rope.values()):
        raise ValueError("rope_parameters differ by kind of layer, which cannot be run; take a Llama, Mistral or Qwen3")
    outer = ("rope_theta", "original_max_position_embeddings")
    return {name: data[name] for name in outer if name in data} | rope


def _scaling(rope: _Rope) -> LinearScaling | Llama3Scaling | None:
    if rope.kind == "default":
        return None
    if rope.kind == "linear":
        return LinearScaling(factor=_stated(rope, "factor"))
    if rope.kind == "llama3":
        return Llama3Scaling(
            factor=_stated(rope, "factor"),
            low_freq_factor=_stated(rope, "low_freq_factor"),
            high_freq_factor=_stated(rope, "high_freq_factor"),
            original_context=_stated(rope, "original_max_position_embeddings"),
        )
    raise ValueError(
        f"rope scaling of type {rope.kind!r} cannot be run; known: default, linear, llama3. In a copy of the file "
        f"without it, and with max_position_embeddings as before the scaling, the model runs"
    )


def _stated(rope: _Rope, name: str) -> Any:
    value = getattr(rope, name)
    if value is None:
        raise ValueError(f"rope scaling of type {rope.kind!r} lacks {name}")
    return value


def check_arithmetic(file: Path) -> None:
    """Raises ValueError where weights of this config.json would be used otherwise than they were trained.

    Random weights need no such check: nobody reads their text, and durations are the same.
    """
    data = config_fields(file)
    family = data.get("model_type") or next(iter(data.get("architectures") or ()), "not stated")
    if family not in {*FAMILIES, *FAMILIES.values()}:
        raise ValueError(
            f"{file}: model_type is {family!r}, whose weights cannot be loaded; known: {', '.join(FAMILIES)}. "
            f"With the config.json itself in place of its folder, random weights of its shapes run"
        )
    wrong = {
        "hidden_act": data.get("hidden_act", "silu") not in ("silu", "swish"),
        "attention_bias": bool(data.get("attention_bias")),
        "mlp_bias": bool(data.get("mlp_bias")),
        "partial_rotary_factor": data.get("partial_rotary_factor", 1) != 1,
        "sliding_window": _window(data, family) < int(data.get("max_position_embeddings", 0)),
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(f"{file}: {name} is {data.get(name)!r}, which the kernels do not have; {_REMEDIES[name]}")


_PLAIN = "take a checkpoint with SiLU, full rotary attention and no biases"
_REMEDIES = dict.fromkeys(("hidden_act", "attention_bias", "mlp_bias", "partial_rotary_factor"), _PLAIN) | {
    "sliding_window": "in a copy with max_position_embeddings of no more than the window it makes no difference"
}


def _window(data: Mapping[str, Any], family: str) -> float:
    """Tokens that some layer attends to; no limit where none slides."""
    # Qwen3 slides only where it says so, Mistral wherever a window is stated; Llama never does.
    slides = {"mistral": True, "qwen3": bool(data.get("use_sliding_window"))}
    window = data.get("sliding_window")
    named = next((name for name, title in FAMILIES.items() if family in (name, title)), "")
    return window if slides.get(named) and isinstance(window, int) else float("inf")
