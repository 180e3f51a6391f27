"""Devices and models: published totals, look-up by name, and errors that name field, value and remedy."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

import profiler
from profiler import DEVICES, MODELS, Shard


@pytest.mark.parametrize(
    ("name", "parameters", "active"),
    [
        ("Llama-3.1-8B", 8.03e9, 8.03e9),
        ("Llama-3.1-70B", 70.6e9, 70.6e9),
        ("Qwen3-32B", 32.8e9, 32.8e9),
        ("Qwen3-235B-A22B", 235e9, 22e9),
        ("Qwen3-235B-A22B-FP8", 235e9, 22e9),
    ],
)
def test_published_parameter_counts(name: str, parameters: float, active: float) -> None:
    spec = profiler.model(name)
    assert spec.parameters == pytest.approx(parameters, rel=0.003)
    assert spec.active_parameters == pytest.approx(active, rel=0.01)


def test_llama_8b_exactly() -> None:
    spec = profiler.model("Llama-3.1-8B")
    assert spec.parameters == 8_030_261_248
    assert spec.weight_bytes == 16_060_522_496
    assert spec.kv_bytes_per_token == 131_072


def test_fp8_halves_the_linear_layers_only() -> None:
    bf16, fp8 = profiler.model("Qwen3-235B-A22B"), profiler.model("Qwen3-235B-A22B-FP8")
    embeddings = 2 * 2 * bf16.vocab * bf16.hidden
    assert bf16.weight_bytes / 2 < fp8.weight_bytes < bf16.weight_bytes / 2 + embeddings


@pytest.mark.parametrize("spelling", ["A100-80G", "a100-80g", "a100 80g", "A100_80G"])
def test_device_names_ignore_case_and_punctuation(spelling: str) -> None:
    assert profiler.device(spelling).sms == 108


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown device 'B300'; known: A100-80G, H100, H200, H20, L40S, RTX-4090"):
        profiler.device("B300")
    with pytest.raises(ValueError, match=r"unknown model 'gpt-9'; known: Llama-3\.1-8B, .*config\.json"):
        profiler.model("gpt-9")


@pytest.mark.parametrize("spec", DEVICES, ids=lambda spec: spec.name)
def test_every_number_of_a_device_has_a_source(spec: profiler.DeviceSpec) -> None:
    sourced = {name for names, _ in spec.sources for name in names.split(", ")}
    assert sourced == set(spec.__slots__) - {"name", "sources", "tiled", "in_step"}


@pytest.mark.parametrize("spec", MODELS, ids=lambda spec: spec.name)
def test_every_model_has_a_source(spec: profiler.ModelSpec) -> None:
    assert spec.source


def test_fp8_is_never_derived() -> None:
    with pytest.raises(ValueError, match="A100-80G has no fp8 tensor cores"):
        profiler.device("A100-80G").peak_flops("fp8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sms": 0}, "sms is 0; it must be above 0"),
        ({"dram_bytes_per_s": -1.0}, "dram_bytes_per_s is -1.0"),
        ({"fp8_flops": 0.0}, "fp8_flops is 0.0"),
        ({"bandwidth_knee_sms": 200}, "above its 108 SMs"),
        ({"contention_ceiling": float("nan")}, "contention_ceiling is nan"),
    ],
)
def test_bad_devices(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"'A100-80G'.*{message}"):
        replace(profiler.device("A100-80G"), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers is 0"),
        ({"kv_heads": 3}, "8 heads are no multiple of its 3 kv_heads"),
        ({"dtype": "int4"}, "dtype is 'int4'; known: bf16, fp8"),
        ({"experts_per_token": 2}, "experts is 0 but other MoE fields are set"),
        ({"experts": 4, "experts_per_token": 8, "moe_intermediate": 64}, "above its 4 experts"),
        ({"experts": 4, "experts_per_token": 2}, "moe_intermediate is 0"),
        ({"experts": 4, "experts_per_token": 2, "moe_intermediate": 64, "dense_layers": 8}, "must be 0 to 7"),
    ],
)
def test_bad_models(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"'tiny'.*{message}"):
        replace(profiler.model("tiny"), **change)  # type: ignore[arg-type]


def test_tensor_parallel_must_divide() -> None:
    model, device = profiler.model("Llama-3.1-8B"), profiler.device("H100")
    with pytest.raises(ValueError, match="tensor_parallel 3 does not divide heads = 32 of Llama"):
        Shard(model, device, 3)
    with pytest.raises(ValueError, match="tensor_parallel is 0"):
        Shard(model, device, 0)


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    assert Shard(profiler.model("Llama-3.1-8B"), profiler.device("H100"), 16).kv_heads == 1


def test_importing_profiler_is_light() -> None:
    heavy = ["pandas", "scipy", "sklearn", "matplotlib", "torch", "pydantic", "numpy"]
    code = f"import sys, profiler; sys.exit(', '.join(n for n in {heavy} if n in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
