"""An independent implementation of a model, transformers', with our weights: what tests compare tokens with."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from profiler.measure.numerics import LLAMA3, LinearScaling, Llama3Scaling, Numerics
from profiler.measure.transformer import Weights
from profiler.specs import ModelSpec

CLEAR = 5e-4
"""Of logits between -10 and 10 in fp32: those further apart than this keep their order, however sums are rounded."""


class Reference:
    """LlamaForCausalLM, or Qwen3ForCausalLM where queries and keys are normed, in fp32 on the CPU.

    Its attention is written out, and every token is computed from the whole sequence, without a KV cache.
    ``network`` is the transformers model; ``save`` writes it as a Hugging Face folder.
    """

    def __init__(self, spec: ModelSpec, weights: Weights, numerics: Numerics = LLAMA3) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.network = _network(spec, numerics)
        state = state_of(spec, weights)
        missing, unexpected = self.network.load_state_dict(state, strict=False)
        assert unexpected == []
        assert missing == (["lm_head.weight"] if spec.tied_embeddings else [])
        self.network.tie_weights()
        self._greedy: dict[tuple[int, ...], list[int]] = {}

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """[tokens, vocab]."""
        with torch.inference_mode(), one_thread():
            answer: Tensor = self.network(torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return answer

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The ``count`` likeliest tokens after a prompt; kept, so that it may be asked again and again.

        Asserts that at each the second likeliest was clearly less likely: otherwise rounding may decide, and a test
        should take another prompt.
        """
        known = self._greedy.setdefault(tuple(prompt), [])
        while len(known) < count:
            best = self.logits([*prompt, *known])[-1].topk(2)
            assert float(best.values[0] - best.values[1]) > CLEAR, f"a tie after {len(known)} tokens of {prompt}"
            known.append(int(best.indices[0]))
        return known[:count]

    def save(self, folder: Path, **options: Any) -> Path:
        """Writes config.json and safetensors; ``options`` are those of save_pretrained."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.network.save_pretrained(folder, **options)
        return folder


@contextmanager
def one_thread() -> Iterator[None]:
    """Small kernels on one core: threads on cores that others use too would wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _network(spec: ModelSpec, numerics: Numerics) -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    kinds = {
        False: (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        True: (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }
    config, network = kinds[spec.qk_norm]
    return network(
        config(
            vocab_size=spec.vocab,
            hidden_size=spec.hidden,
            intermediate_size=spec.intermediate,
            num_hidden_layers=spec.layers,
            num_attention_heads=spec.heads,
            num_key_value_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            max_position_embeddings=spec.max_context,
            rms_norm_eps=numerics.norm_eps,
            rope_parameters=_rope(numerics),
            tie_word_embeddings=spec.tied_embeddings,
            attn_implementation="eager",
        )
    ).eval()


def _rope(numerics: Numerics) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": numerics.rope_theta}
    match numerics.rope_scaling:
        case LinearScaling(factor=factor):
            return rope | {"rope_type": "linear", "factor": factor}
        case Llama3Scaling() as scaling:
            return rope | {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_context,
            }
    return rope


def state_of(spec: ModelSpec, weights: Weights) -> dict[str, Tensor]:
    """Our weights under the names of transformers, fused matrices taken apart."""
    query, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    state = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.final_norm}
    if not spec.tied_embeddings:
        state["lm_head.weight"] = weights.lm_head
    for index, layer in enumerate(weights.layers):
        parts = {
            "input_layernorm": layer.attention_norm,
            "post_attention_layernorm": layer.mlp_norm,
            "self_attn.o_proj": layer.o,
            "mlp.down_proj": layer.down,
        }
        names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
        parts |= zip(names, (*layer.qkv.split([query, kv, kv]), *layer.gate_up.chunk(2)), strict=True)
        if layer.query_norm is not None and layer.key_norm is not None:
            parts |= {"self_attn.q_norm": layer.query_norm, "self_attn.k_norm": layer.key_norm}
        state |= {f"model.layers.{index}.{name}.weight": tensor for name, tensor in parts.items()}
    return {name: tensor.float() for name, tensor in state.items()}
