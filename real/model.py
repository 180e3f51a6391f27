"""The model of a run: its shapes, its arithmetic, and weights, random or of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from profiler.measure.models import check_model
from profiler.measure.numerics import LLAMA3, Numerics
from profiler.measure.transformer import Weights
from profiler.presets import MODELS, model
from profiler.specs import ModelSpec

if TYPE_CHECKING:
    from real.weights import Checkpoint


@dataclass(frozen=True, slots=True)
class RunnableModel:
    """A model that the kernels can run. ``checkpoint`` is None where weights are random, by ``seed``."""

    spec: ModelSpec
    numerics: Numerics
    seed: int
    checkpoint: Checkpoint | None = None

    def weights(self, device: torch.device, dtype: torch.dtype) -> Weights:
        """Made or read anew at each call. The same seed gives the same ones on the same kind of device."""
        if self.checkpoint is None:
            return Weights.random(self.spec, device, dtype, seed=self.seed)
        return self.checkpoint.load(device, dtype)


def open_model(name: str, seed: int) -> RunnableModel:
    """The model that ``name`` says: a built-in one, a config.json, or a folder of Hugging Face files.

    Weights are random, by ``seed``, for the first two, and those of the folder's safetensors files for the third,
    whose headers are checked here; Llama, Mistral and Qwen3 can be loaded. A built-in model has Llama-3's arithmetic.
    Raises OSError where there is no such file, ValueError, naming file and field or tensor, for a model that cannot be
    run and for weights that do not fit its config.json.
    """
    spec = model(name)
    check_model(spec)
    if spec in MODELS:
        return RunnableModel(spec, LLAMA3, seed)
    # Built-in models need neither pydantic nor safetensors.
    from profiler.hf_config import config_file
    from real.numerics import check_arithmetic, numerics_of

    file = config_file(name)
    numerics = numerics_of(file)
    if not Path(name).is_dir():
        return RunnableModel(spec, numerics, seed)
    from real.weights import Checkpoint

    check_arithmetic(file)
    return RunnableModel(spec, numerics, seed, Checkpoint.of(Path(name), spec))
