"""The torch kernels against plain formulas in fp32, on the CPU."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import profiler
from profiler.measure import kernels
from profiler.measure.attention import Segments, Sequenced, attention
from profiler.measure.grid import Target
from profiler.measure.models import check_model
from profiler.measure.numerics import NORM_EPS, ROPE_THETA
from profiler.measure.targets import Bench
from profiler.measure.transformer import KVCache, Scratch, Transformer, Weights

CPU = torch.device("cpu")
MODEL = replace(
    profiler.model("tiny"), layers=2, hidden=96, intermediate=80, heads=6, kv_heads=2, head_dim=16, vocab=50
)
SLOT = 24


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5)


def plain_norm(rows: Tensor, weight: Tensor) -> Tensor:
    return rows * torch.rsqrt((rows**2).mean(-1, keepdim=True) + NORM_EPS) * weight


def plain_rotary(rows: Tensor, first: int) -> Tensor:
    """Pairs (i, i + d/2) turned by position / theta^(2i/d), one element at a time."""
    tokens, _, width = rows.shape
    turned = rows.clone()
    for token in range(tokens):
        for i in range(width // 2):
            angle = (first + token) * ROPE_THETA ** (-2 * i / width)
            a, b = rows[token, :, i], rows[token, :, i + width // 2]
            turned[token, :, i] = a * math.cos(angle) - b * math.sin(angle)
            turned[token, :, i + width // 2] = b * math.cos(angle) + a * math.sin(angle)
    return turned


def plain_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal, ``query`` being the last tokens of the sequence; heads repeated as often as needed."""
    new, heads, width = query.shape
    used, repeats = len(key), heads // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(width)
    unseen = torch.arange(used)[None, :] > torch.arange(used - new, used)[:, None]
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(unseen, -math.inf).softmax(-1), value)


def plain_logits(weights: Weights, tokens: Tensor) -> Tensor:
    """Logits of the last token of a whole sequence."""
    heads, kv_heads, count = MODEL.heads, MODEL.kv_heads, len(tokens)
    state = weights.embedding[tokens]
    for layer in weights.layers:
        qkv = (plain_norm(state, layer.attention_norm) @ layer.qkv.T).view(count, -1, MODEL.head_dim)
        query, key, value = qkv.split([heads, kv_heads, kv_heads], dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = plain_norm(query, layer.query_norm), plain_norm(key, layer.key_norm)
        attended = plain_attention(plain_rotary(query, 0), plain_rotary(key, 0), value)
        state = state + attended.reshape(count, -1) @ layer.o.T
        gate, up = (plain_norm(state, layer.mlp_norm) @ layer.gate_up.T).chunk(2, -1)
        state = state + (gate / (1 + torch.exp(-gate)) * up) @ layer.down.T
    return plain_norm(state[-1], weights.final_norm) @ weights.lm_head.T


@pytest.fixture(scope="module")
def weights() -> Weights:
    return Weights.random(MODEL, CPU, torch.float32, seed=3)


def lane(weights: Weights, model: profiler.ModelSpec = MODEL, slots: int = 5) -> Transformer:
    cache = KVCache.of(model, slots, SLOT, CPU, torch.float32)
    return Transformer(model, weights, cache, Scratch(model, 64, 8, CPU, torch.float32))


def run(model: Transformer, tokens: Tensor, *sequences: Sequenced) -> Tensor:
    segments = Segments.of(sequences, SLOT, CPU)
    model.begin(tokens)
    model.layers(segments, 0, 1)
    model.layers(segments, 1)
    return model.finish(segments).clone()


@pytest.mark.parametrize("chunks", [(20,), (7, 13), (1, 18, 1), (16, 4), (5, 5, 5, 5)])
def test_chunks_over_a_prefix_give_what_the_whole_prompt_gives(weights: Weights, chunks: tuple[int, ...]) -> None:
    tokens = torch.randint(MODEL.vocab, (20,), generator=torch.Generator().manual_seed(1))
    model, cached = lane(weights), 0
    for new in chunks:
        logits = run(model, tokens[cached : cached + new], Sequenced(3, new, cached))
        cached += new
    close(logits[0], plain_logits(weights, tokens))


def test_query_and_key_norms() -> None:
    model = replace(MODEL, qk_norm=True)
    weights = Weights.random(model, CPU, torch.float32)
    tokens = torch.arange(9)
    close(run(lane(weights, model), tokens, Sequenced(0, 9, 0))[0], plain_logits(weights, tokens))


def test_a_batch_decodes_from_slots_in_any_order_beside_a_prefill(weights: Weights) -> None:
    prompts = [torch.randint(MODEL.vocab, (length,)) for length in (3, 11, 6, 8)]
    slots = [4, 0, 3, 1]
    model = lane(weights)
    for prompt, slot in zip(prompts[:3], slots[:3], strict=True):
        run(model, prompt[:-1], Sequenced(slot, len(prompt) - 1, 0))
    mixed = [Sequenced(slot, 1, len(prompt) - 1) for prompt, slot in zip(prompts[:3], slots[:3], strict=True)]
    tokens = torch.cat([*(prompt[-1:] for prompt in prompts[:3]), prompts[3]])
    logits = run(model, tokens, *mixed, Sequenced(slots[3], 8, 0))
    for row, prompt in zip(logits, prompts, strict=True):
        close(row, plain_logits(weights, prompt))


def test_a_step_gives_the_likeliest_tokens_and_draws_at_a_temperature(weights: Weights) -> None:
    model, tokens = lane(weights), torch.arange(6)
    segments = Segments.of([Sequenced(0, 2, 0), Sequenced(1, 4, 0)], SLOT, CPU)
    likeliest = model.step(tokens, segments).tolist()
    assert likeliest == [int(plain_logits(weights, part).argmax()) for part in (tokens[:2], tokens[2:])]
    assert model.step(tokens, segments, torch.zeros(2, 1)).tolist() == likeliest


def test_draws_follow_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -5.0])
    draws = torch.empty(20_000, dtype=torch.int64)
    generator = torch.Generator().manual_seed(5)
    kernels.sample(logits.expand(len(draws), -1), torch.full((len(draws), 1), 0.7), draws, generator)
    shares = torch.bincount(draws, minlength=4) / len(draws)
    torch.testing.assert_close(shares, (logits / 0.7).softmax(0), rtol=0, atol=0.015)


def test_norm_activation_embedding_copy() -> None:
    update, residual, weight = torch.randn(7, 32), torch.randn(7, 32), torch.rand(32)
    out, expected = torch.full((7, 32), math.nan), residual + update
    kernels.residual_norm(update, residual, weight, out)
    close(residual, expected)
    close(out, plain_norm(expected, weight))
    kernels.rms_norm(out, weight, out)
    close(out, plain_norm(plain_norm(expected, weight), weight))
    activated = torch.full((7, 16), math.nan)
    kernels.activation(update, activated)
    close(activated, update[:, :16] * torch.sigmoid(update[:, :16]) * update[:, 16:])
    kernels.embed(residual, torch.tensor([6, 0, 6]), rows := torch.full((3, 32), math.nan))
    close(rows, residual[[6, 0, 6]])
    kernels.copy(residual, out)
    close(out, residual)


def test_rotary_writes_keys_and_values_where_it_is_told() -> None:
    qkv, rows = torch.randn(3, 5, 8), torch.tensor([6, 2, 4])
    before = qkv.clone()
    keys, values = torch.full((9, 1, 8), 7.0), torch.full((9, 1, 8), 7.0)
    kernels.rotary_and_write(qkv, kernels.rope_tables(20, 8, CPU), torch.arange(10, 13), rows, keys, values)
    close(qkv[:, :4], plain_rotary(before[:, :4], 10))
    close(qkv[:, 4:], before[:, 4:])
    close(keys[rows], qkv[:, 3:4])
    close(values[rows], before[:, 4:])
    assert (keys[[0, 1, 3, 5, 7, 8]] == 7).all()


def test_attention_of_several_sequences() -> None:
    keys, values = torch.randn(4 * SLOT, 2, 16), torch.randn(4 * SLOT, 2, 16)
    sequences = [Sequenced(2, 5, 9), Sequenced(0, 1, 20), Sequenced(3, 4, 0), Sequenced(1, 1, 0)]
    query = torch.randn(11, 10, 16)[:, :6]
    segments = Segments.of(sequences, SLOT, CPU)
    out = attention(query, keys, values, segments, torch.full((11, 6, 16), math.nan))
    first = 0
    for slot, new, cached in sequences:
        held = slice(slot * SLOT, slot * SLOT + cached + new)
        close(out[first : first + new], plain_attention(query[first : first + new], keys[held], values[held]))
        first += new
    assert segments.last.tolist() == [4, 5, 9, 10]
    assert segments.key_starts.tolist() == [48, 0, 72, 24, 48]


def test_segments_of_a_captured_step_take_the_next_one() -> None:
    captured = Segments.of([Sequenced(0, 1, 20), Sequenced(1, 1, 20)], SLOT, CPU)
    following = Segments.of([Sequenced(2, 1, 3), Sequenced(0, 1, 7)], SLOT, CPU)
    captured.refill(following)
    assert captured.rows.tolist() == [2 * SLOT + 3, 7]
    assert captured.used.tolist() == [4, 8]
    with pytest.raises(ValueError, match="captured for keys up to 21 cannot run 23"):
        captured.refill(Segments.of([Sequenced(0, 1, 22), Sequenced(1, 1, 1)], SLOT, CPU))


@pytest.mark.parametrize("sequence", [Sequenced(0, 0, 3), Sequenced(0, 2, SLOT - 1)])
def test_sequences_that_do_not_fit_are_refused(sequence: Sequenced) -> None:
    with pytest.raises(ValueError, match=f"does not fit a slot of {SLOT}"):
        Segments.of([sequence], SLOT, CPU)


@pytest.mark.parametrize(
    ("name", "lack"), [("Qwen3-235B-A22B", "a mixture of experts"), ("Qwen3-235B-A22B-FP8", "a mixture of experts")]
)
def test_models_that_these_kernels_lack(name: str, lack: str) -> None:
    with pytest.raises(ValueError, match=f"model {name} has {lack}.*such as Llama-3.1-8B"):
        check_model(profiler.model(name))
    check_model(profiler.model("Qwen3-32B"))


@pytest.mark.parametrize(
    "target",
    [
        Target("gemm", (3, 2 * MODEL.intermediate, MODEL.hidden)),
        Target("gemm", (3, MODEL.vocab, MODEL.hidden)),
        Target("gemm", (8, 8, 8)),
        Target("attention_prefill", (2, 3, 4, 6, 2, 16)),
        Target("attention_decode", (3, 9, 6, 2, 16)),
        Target("norm", (4, 96)),
        Target("rotary", (4, 6, 2, 16)),
        Target("activation", (4, 80)),
        Target("embedding", (4, 96)),
        Target("sampling", (4, 50)),
        Target("copy", (4096,)),
        Target("prefill_layers", (1, 5, 3, 2)),
        Target("decode_layers", (3, 9, 2)),
        Target("host_pass", (2,)),
        Target("host_launch", (2,)),
    ],
    ids=lambda target: target.kernel,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_target_can_be_called_over_and_over(target: Target, dtype: torch.dtype) -> None:
    with torch.inference_mode():
        call = Bench(MODEL, CPU, dtype, cache_bytes=1 << 14).call(target)
        for turn in range(3):
            call(turn)


def test_weights_come_from_where_a_pass_finds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers go on where the last ones ended, and between two runs of the LM head come as many bytes as all layers."""
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(Transformer, "layers", lambda self, segments, first, last: seen.append((first, last)))
    bench = Bench(replace(MODEL, layers=6), CPU, torch.float32, cache_bytes=1 << 30)
    call = bench.call(Target("decode_layers", (3, 9, 2)))
    for turn in range(bench.sets // 2 + 1):
        call(turn)
    assert seen == [(0, 2), (2, 4), (4, 6), (0, 2)]
    head, *more = bench.heads
    layer = bench.weights.layers[0]
    others = bench.sets * sum(part.nbytes for part in (layer.qkv, layer.o, layer.gate_up, layer.down))
    assert 0 <= len(more) * head.nbytes - others < head.nbytes
    assert len({each.data_ptr() for each in bench.heads}) == len(bench.heads)
    assert all(torch.equal(each, head) for each in more)
    assert len(Bench(MODEL, CPU, torch.float32, cache_bytes=1).heads) == 1, "a cache does not hold it anyway"


def test_targets_of_several_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="'all_reduce' cannot be measured on one device"):
        Bench(MODEL, CPU, torch.float32, 1 << 14).call(Target("all_reduce", (1024, 2)))
