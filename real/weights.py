"""The weights of a Hugging Face folder: safetensors files, read tensor by tensor into the buffers that kernels take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from profiler.measure.transformer import LayerWeights, Weights
from profiler.specs import ModelSpec

Shape = tuple[int, ...]

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
_DTYPES = ("F32", "F16", "BF16")
_EMBEDDING, _NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where each tensor of a model lies. Names, shapes and dtypes have been checked, contents have not been read."""

    spec: ModelSpec
    shapes: dict[str, Shape]
    files: dict[str, Path]

    @classmethod
    def of(cls, folder: Path, spec: ModelSpec) -> Self:
        """Reads the headers of the folder's safetensors files.

        Raises ValueError, naming file and tensor, where one is missing, left over, or of another shape or dtype, and
        where a file is broken or there is none.
        """
        files, shapes = _files(folder), {}
        for name, shape in _shapes(spec):
            if name not in files:
                hint = ", or state tie_word_embeddings in config.json" if name == _HEAD else ""
                raise ValueError(f"{folder}: its safetensors files lack tensor {name}; get the whole checkpoint{hint}")
            shapes[name] = shape
        for name, file in files.items():
            if name not in shapes and not _unneeded(name, spec):
                what = "is a bias, which the kernels do not add" if name.endswith(".bias") else "is none of this model"
                raise ValueError(f"{file}: tensor {name} {what}; take a Llama, Mistral or Qwen3 without biases")
        for file in sorted(set(files.values())):
            with _opened(file) as tensors:
                for name in (name for name in shapes if files[name] == file):
                    _check(file, tensors, name, shapes[name])
        return cls(spec, shapes, files)

    def load(self, device: torch.device, dtype: torch.dtype) -> Weights:
        """All of them on ``device``, cast to ``dtype``. Besides these, one tensor at a time is held in memory."""
        with ExitStack() as stack:
            opened = {file: stack.enter_context(_opened(file)) for file in set(self.files.values())}

            def read(*names: str) -> Tensor:
                """The tensors one below the other."""
                rows = [self.shapes[name][0] for name in names]
                out = torch.empty(sum(rows), *self.shapes[names[0]][1:], device=device, dtype=dtype)
                for name, part in zip(names, torch.split(out, rows), strict=True):
                    part.copy_(opened[self.files[name]].get_tensor(name))
                return out

            embedding = read(_EMBEDDING)
            layers = (_layer(self.spec, index) for index in range(self.spec.layers))
            return Weights(
                embedding,
                tuple(LayerWeights(**{field: read(*shapes) for field, shapes in layer.items()}) for layer in layers),
                read(_NORM),
                embedding if self.spec.tied_embeddings else read(_HEAD),
            )


def _layer(spec: ModelSpec, index: int) -> dict[str, dict[str, Shape]]:
    """By field of LayerWeights, the tensors that it is made of, top to bottom, and their shapes."""
    query, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    fields: dict[str, dict[str, Shape]] = {
        "attention_norm": {"input_layernorm": (spec.hidden,)},
        "qkv": {
            "self_attn.q_proj": (query, spec.hidden),
            "self_attn.k_proj": (kv, spec.hidden),
            "self_attn.v_proj": (kv, spec.hidden),
        },
        "o": {"self_attn.o_proj": (spec.hidden, query)},
        "mlp_norm": {"post_attention_layernorm": (spec.hidden,)},
        "gate_up": {
            "mlp.gate_proj": (spec.intermediate, spec.hidden),
            "mlp.up_proj": (spec.intermediate, spec.hidden),
        },
        "down": {"mlp.down_proj": (spec.hidden, spec.intermediate)},
    }
    if spec.qk_norm:
        fields |= {
            "query_norm": {"self_attn.q_norm": (spec.head_dim,)},
            "key_norm": {"self_attn.k_norm": (spec.head_dim,)},
        }
    prefix = f"model.layers.{index}"
    return {
        field: {f"{prefix}.{name}.weight": shape for name, shape in parts.items()} for field, parts in fields.items()
    }


def _shapes(spec: ModelSpec) -> Iterator[tuple[str, Shape]]:
    """Name and shape of one tensor after the other: a config.json may claim more layers than could be listed."""
    table = (spec.vocab, spec.hidden)
    yield _EMBEDDING, table
    yield _NORM, (spec.hidden,)
    for index in range(spec.layers):
        for parts in _layer(spec, index).values():
            yield from parts.items()
    if not spec.tied_embeddings:
        yield _HEAD, table


def _unneeded(name: str, spec: ModelSpec) -> bool:
    """Tensors that some files hold although others give the same values."""
    return name.endswith(".rotary_emb.inv_freq") or (spec.tied_embeddings and name == _HEAD)


def _files(folder: Path) -> dict[str, Path]:
    """The file of every tensor: by the index, else in model.safetensors, else in whatever files there are."""
    if (folder / _INDEX).is_file():
        return _indexed(folder)
    whole = folder / _WHOLE
    found = [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
    if not found:
        raise ValueError(
            f"{folder}: no *.safetensors in it; get the weights, or give its config.json itself to run random ones"
        )
    files: dict[str, Path] = {}
    for file in found:
        with _opened(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118 - no mapping
                if name in files:
                    raise ValueError(f"{file}: tensor {name} is in {files[name].name} too; keep one of the files")
                files[name] = file
    return files


def _indexed(folder: Path) -> dict[str, Path]:
    index = folder / _INDEX
    try:
        listed = json.loads(index.read_bytes())["weight_map"]
        files = {str(name): folder / file for name, file in listed.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"{index}: no weight_map of tensors to files in it; get the file again") from None
    for file in sorted(set(files.values())):
        if not file.is_file():
            raise ValueError(f"{file}: no such file, and {_INDEX} names it; get the whole checkpoint")
    return files


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        opened = safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file}: no whole safetensors file ({error}); get the file again") from None
    with opened as tensors:
        yield tensors


def _check(file: Path, tensors: Any, name: str, shape: Shape) -> None:
    try:
        part = tensors.get_slice(name)
    except SafetensorError:
        raise ValueError(f"{file}: lacks tensor {name}, which {_INDEX} says is in it; get both again") from None
    if part.get_dtype() not in _DTYPES:
        raise ValueError(f"{file}: tensor {name} is {part.get_dtype()}; it must be one of {', '.join(_DTYPES)}")
    found = part.get_shape()
    if tuple(found) != shape:
        raise ValueError(f"{file}: tensor {name} is {found}; by its config.json it must be {list(shape)}")
