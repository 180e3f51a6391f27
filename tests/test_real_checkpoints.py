"""Folders of Hugging Face files: what is read from them, and what is refused by one line that says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from profiler.measure.numerics import LinearScaling, Llama3Scaling, Numerics
from profiler.measure.transformer import Weights
from profiler.specs import ModelSpec
from real.model import open_model
from tests.reference_model import state_of

CPU = torch.device("cpu")
SPEC = ModelSpec(
    name="toy", layers=2, hidden=24, intermediate=40, heads=4, kv_heads=2, head_dim=8, vocab=30, max_context=64
)
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 30,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
WEIGHTS = Weights.random(SPEC, CPU, torch.float32, seed=1)
K_PROJ = "model.layers.1.self_attn.k_proj.weight"


def folder_of(path: Path, *, dtype: torch.dtype = torch.float32, **fields: Any) -> Path:
    """A whole checkpoint, with ``fields`` in its config; None takes one out."""
    path.mkdir(exist_ok=True)
    config = {name: value for name, value in (CONFIG | fields).items() if value is not None}
    (path / "config.json").write_text(json.dumps(config))
    state = {name: tensor.to(dtype).contiguous() for name, tensor in state_of(SPEC, WEIGHTS).items()}
    save_file(state, path / "model.safetensors")
    return path


def changed(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    file = folder / "model.safetensors"
    # Copies, since the file that is mapped is written again.
    state = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(state)
    save_file(state, file)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_weights_are_cast(tmp_path: Path, dtype: torch.dtype) -> None:
    model = open_model(str(folder_of(tmp_path / "toy", dtype=dtype)), seed=0)
    assert replace(model.spec, source="") == SPEC
    for wanted in (torch.float32, torch.bfloat16):
        weights = model.weights(CPU, wanted)
        assert torch.equal(weights.layers[1].qkv, WEIGHTS.layers[1].qkv.to(dtype).to(wanted))
        assert weights.layers[0].gate_up.dtype == wanted


def test_a_tied_model_may_bring_a_head_and_tables_of_angles(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, tie_word_embeddings=True)
    changed(folder, lambda state: state.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    weights = open_model(str(folder), seed=0).weights(CPU, torch.float32)
    assert weights.lm_head is weights.embedding
    assert torch.equal(weights.embedding, WEIGHTS.embedding)


LLAMA3 = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("fields", "numerics"),
    [
        ({}, Numerics(norm_eps=1e-6, rope_theta=1e4)),
        ({"rms_norm_eps": 1e-5, "rope_theta": 5e5, "rope_scaling": None}, Numerics(norm_eps=1e-5, rope_theta=5e5)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7}}, Numerics(norm_eps=1e-6, rope_theta=7)),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            Numerics(
                norm_eps=1e-6,
                rope_theta=5e5,
                rope_scaling=Llama3Scaling(factor=8, low_freq_factor=1, high_freq_factor=4, original_context=8192),
            ),
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.5}},
            Numerics(norm_eps=1e-6, rope_theta=1e4, rope_scaling=LinearScaling(factor=2.5)),
        ),
    ],
    ids=["of the class", "stated", "new form", "llama3", "linear, old form"],
)
def test_numerics_in_every_form_that_files_have(tmp_path: Path, fields: dict[str, Any], numerics: Numerics) -> None:
    folder = folder_of(tmp_path, **fields)
    assert open_model(str(folder), seed=0).numerics == numerics
    assert open_model(str(folder / "config.json"), seed=0).numerics == numerics


def test_frequencies_of_llama_3_1_by_hand() -> None:
    """2 pi / 8192 and 4 times as much: slower ones are divided by 8, faster ones are kept, and a blend between."""
    scaling = Llama3Scaling(factor=8, low_freq_factor=1, high_freq_factor=4, original_context=8192)
    slow, middle, fast = 2 * torch.pi / 8192 * torch.tensor([0.5, 2.5, 4.5])
    found = scaling.scaled(torch.stack([slow, middle, fast]))
    torch.testing.assert_close(found, torch.stack([slow / 8, (middle / 8 + middle) / 2, fast]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope scaling of type 'yarn' cannot be run; known: default"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "factor": None}}, "type 'llama3' lacks factor"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1}}, "must be above low_freq_factor 1"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "factor is -1: Input should be greater than 0"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope_parameters differ by kind of layer"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn'; it must be an object"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0: Input should be greater than 0"),
        ({"rope_theta": "big"}, "rope_theta is 'big': Input should be a valid number"),
        ({"model_type": "granite"}, "model_type is 'granite', whose weights cannot be loaded; known: llama, mistral"),
        ({"model_type": None, "architectures": ["Olmo2ForCausalLM"]}, "'Olmo2ForCausalLM', whose weights cannot be"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', which the kernels do not have"),
        ({"attention_bias": True}, "attention_bias is True, which the kernels do not have"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, which the kernels do not have"),
        ({"model_type": "mistral", "sliding_window": 32}, "sliding_window is 32, .* max_position_embeddings of no"),
        ({"num_key_value_heads": 3}, "4 heads are no multiple of its 3 kv_heads"),
        ({"head_dim": 7}, "an odd head size, which cannot be run here"),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    folder = folder_of(tmp_path / "toy", **fields)
    with pytest.raises(ValueError, match=message) as error:
        open_model(str(folder), seed=0)
    assert "\n" not in str(error.value)
    assert str(folder / "config.json") in str(error.value) or "model toy has" in str(error.value)


def test_windows_that_no_sequence_outgrows_are_taken(tmp_path: Path) -> None:
    open_model(str(folder_of(tmp_path, model_type="mistral", sliding_window=64)), seed=0)
    open_model(str(folder_of(tmp_path, model_type="llama", sliding_window=32)), seed=0)


def test_more_layers_than_could_be_listed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, num_hidden_layers=1 << 50)
    with pytest.raises(ValueError, match=r"lack tensor model\.layers\.2\."):
        open_model(str(folder), seed=0)


def put(name: str, tensor: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda state: state.update({name: tensor})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop(K_PROJ), rf"lack tensor {K_PROJ}; get the whole checkpoint$"),
        (lambda state: state.pop("lm_head.weight"), "lack tensor lm_head.weight; .* state tie_word_embeddings"),
        (put(K_PROJ, torch.ones(32, 24)), rf"{K_PROJ} is \[32, 24\]; by its config.json it must be \[16, 24\]"),
        (put(K_PROJ, torch.ones(16, 24, dtype=torch.int8)), f"{K_PROJ} is I8; it must be one of F32, F16, BF16"),
        (put("model.layers.0.self_attn.q_proj.bias", torch.ones(32)), "q_proj.bias is a bias, which the kernels do"),
        (put("model.layers.2.mlp.up_proj.weight", torch.ones(40, 24)), "layers.2.mlp.up_proj.weight is none of this"),
        (put("model.layers.0.self_attn.q_norm.weight", torch.ones(8)), "q_norm.weight is none of this model"),
    ],
    ids=["missing", "no head", "heads", "quantized", "bias", "more layers", "norm"],
)
def test_tensors_that_do_not_fit(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    folder = folder_of(tmp_path / "toy")
    changed(folder, change)
    with pytest.raises(ValueError, match=message) as error:
        open_model(str(folder), seed=0)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kept", [0, 4, 100, 0.5, -1], ids=str)
def test_files_that_end_early(tmp_path: Path, kept: float) -> None:
    folder = folder_of(tmp_path)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    with pytest.raises(
        ValueError, match=r"model\.safetensors: no whole safetensors file .*get the file again"
    ) as error:
        open_model(str(folder), seed=0)
    assert "\n" not in str(error.value)


def test_folders_without_weights(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(
        ValueError, match=r"no \*\.safetensors in it; .* give its config\.json itself to run random ones"
    ):
        open_model(str(folder), seed=0)
    assert open_model(str(folder / "config.json"), seed=0).checkpoint is None


def in_shards(folder: Path) -> Path:
    whole = folder / "model.safetensors"
    state = {name: tensor.clone() for name, tensor in load_file(whole).items()}
    whole.unlink()
    names = {name: f"part-{number % 3}.safetensors" for number, name in enumerate(sorted(state))}
    for file in set(names.values()):
        save_file({name: state[name] for name, place in names.items() if place == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return folder


def test_shards_with_an_index_and_without(tmp_path: Path) -> None:
    folder = in_shards(folder_of(tmp_path))
    with_index = open_model(str(folder), seed=0).weights(CPU, torch.float32)
    (folder / "model.safetensors.index.json").unlink()
    without = open_model(str(folder), seed=0).weights(CPU, torch.float32)
    for weights in (with_index, without):
        assert torch.equal(weights.layers[1].qkv, WEIGHTS.layers[1].qkv)
        assert torch.equal(weights.layers[0].gate_up, WEIGHTS.layers[0].gate_up)
    save_file({K_PROJ: torch.ones(16, 24)}, folder / "copy.safetensors")
    with pytest.raises(ValueError, match=rf"tensor {K_PROJ} is in copy.safetensors too; keep one of the files"):
        open_model(str(folder), seed=0)


def test_an_index_that_does_not_hold(tmp_path: Path) -> None:
    folder = in_shards(folder_of(tmp_path))
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    other = next(name for name in listed["weight_map"].values() if name != listed["weight_map"][K_PROJ])
    listed["weight_map"][K_PROJ] = other
    index.write_text(json.dumps(listed))
    with pytest.raises(ValueError, match=rf"{other}: lacks tensor {K_PROJ}, which .*index.json says is in it"):
        open_model(str(folder), seed=0)
    (folder / other).unlink()
    with pytest.raises(ValueError, match=rf"{other}: no such file, and model.safetensors.index.json names it"):
        open_model(str(folder), seed=0)
    for content in ("{", "[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}'):
        index.write_text(content)
        with pytest.raises(ValueError, match=r"index\.json: no weight_map of tensors to files in it"):
            open_model(str(folder), seed=0)
