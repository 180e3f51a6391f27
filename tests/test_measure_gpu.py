"""The CUDA bodies of the kernels, real shares and a small profile. Skipped where there is no GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import profiler
from profiler.measure import kernels, shares_cuda
from profiler.measure.attention import Segments, Sequenced, attention
from profiler.measure.campaign import Settings, measure
from profiler.measure.grid import Group, Target, Variant
from profiler.measure.shares_cuda import CudaDevice
from profiler.measure.transformer import KVCache, LayerWeights, Scratch, Transformer, Weights
from tests.test_measure_campaign import SMALL

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU"),
]

CPU, BF16 = torch.device("cpu"), torch.bfloat16
MODEL = replace(profiler.model("tiny"), layers=2)
SLOT = 256


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm; NaN fails every comparison."""
    found, expected = found.float().cpu(), expected.float().cpu()
    return float((found - expected).norm() / expected.norm())


def on_cpu(weights: Weights) -> Weights:
    def moved(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.float().cpu()

    def layer(one: LayerWeights) -> LayerWeights:
        names = ("attention_norm", "qkv", "o", "mlp_norm", "gate_up", "down", "query_norm", "key_norm")
        return LayerWeights(*(moved(getattr(one, name)) for name in names))  # type: ignore[arg-type]

    tables = (moved(getattr(weights, name)) for name in ("embedding", "final_norm", "lm_head"))
    embedding, final_norm, lm_head = tables
    return Weights(embedding, tuple(map(layer, weights.layers)), final_norm, lm_head)  # type: ignore[arg-type]


@pytest.mark.parametrize("heads", [(8, 2), (4, 4), (32, 8)])
@pytest.mark.parametrize(
    "sequences",
    [
        [Sequenced(5, 1, 200), Sequenced(0, 1, 0), Sequenced(7, 1, 63), Sequenced(2, 1, 128)],
        [Sequenced(3, 100, 0), Sequenced(1, 17, 130)],
        [Sequenced(6, 1, 254), Sequenced(4, 64, 64), Sequenced(0, 1, 3)],
    ],
    ids=["decode", "prefill", "mixed"],
)
def test_attention_reads_slots_in_any_order(heads: tuple[int, int], sequences: list[Sequenced]) -> None:
    gpu, (query_heads, kv_heads), width = torch.device("cuda"), heads, 64
    keys, values = (torch.randn(8 * SLOT, kv_heads, width, device=gpu, dtype=BF16) for _ in range(2))
    tokens = sum(sequence.new for sequence in sequences)
    query = torch.randn(tokens, query_heads + 2 * kv_heads, width, device=gpu, dtype=BF16)[:, :query_heads]
    found = attention(query, keys, values, Segments.of(sequences, SLOT, gpu), torch.empty_like(query))
    plain = (query.float().cpu(), keys.float().cpu(), values.float().cpu())
    expected = attention(*plain, Segments.of(sequences, SLOT, CPU), torch.empty(tokens, query_heads, width))
    assert error(found, expected) < 1e-2


@pytest.mark.parametrize("tokens", [1, 33])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(32, 8, 128), (6, 2, 16), (5, 1, 64)])
def test_elementwise_kernels_agree_with_the_cpu(tokens: int, heads: int, kv_heads: int, width: int) -> None:
    total = heads + 2 * kv_heads
    update, residual, qkv = torch.randn(tokens, 352), torch.randn(tokens, 352), torch.randn(tokens, total, width)
    held = torch.zeros(2, 64, kv_heads, width)
    positions, rows = torch.arange(tokens) + 3, torch.randperm(64)[:tokens]
    found: list[list[torch.Tensor]] = []
    for device, dtype in (("cuda", BF16), ("cpu", torch.float32)):
        u, r, q, (k, v) = (part.to(BF16).to(device, dtype) for part in (update, residual, qkv, held))
        normed, activated = torch.full_like(r, torch.nan), torch.full_like(r[:, :176], torch.nan)
        kernels.residual_norm(u, r, torch.ones_like(r[0]), normed)
        kernels.activation(u, activated)
        rope = kernels.rope_tables(64, width, torch.device(device))
        kernels.rotary_and_write(q, rope, positions.to(device), rows.to(device), k, v)
        found.append([r, normed, activated, q, k, v])
    for ours, expected in zip(*found, strict=True):
        assert error(ours, expected) < 1e-2


def lane(weights: Weights, dtype: torch.dtype) -> Transformer:
    device = weights.embedding.device
    cache = KVCache.of(MODEL, 4, SLOT, device, dtype)
    return Transformer(MODEL, weights, cache, Scratch(MODEL, 128, 4, device, dtype))


def test_passes_agree_with_the_cpu_and_graphs_with_passes() -> None:
    gpu = torch.device("cuda")
    weights = Weights.random(MODEL, gpu, BF16)
    lanes = lane(weights, BF16), lane(on_cpu(weights), torch.float32)
    tokens = torch.randint(MODEL.vocab, (100,))
    prompts = [Sequenced(2, 60, 0), Sequenced(0, 40, 0)]
    steps = [[Sequenced(2, 1, 60 + i), Sequenced(0, 1, 40 + i)] for i in range(3)]
    logits = []
    for model in lanes:
        place = model.scratch.hidden.device
        with torch.inference_mode():
            segments = Segments.of(prompts, SLOT, place)
            model.begin(tokens.to(place))
            model.layers(segments)
            logits.append([model.finish(segments).clone()])
            for step in steps:
                segments = Segments.of(step, SLOT, place)
                model.begin(tokens[:2].to(place))
                model.layers(segments)
                logits[-1].append(model.finish(segments).clone())
    for found, expected in zip(*logits, strict=True):
        assert error(found, expected) < 3e-2
    # A graph captured at the longest step, given an earlier one again, finds the same logits.
    model = lanes[0]
    ids, captured = tokens[:2].to(gpu), Segments.of(steps[2], SLOT, gpu)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call,unused-ignore]
    torch.cuda.synchronize()
    with torch.inference_mode(), torch.cuda.stream(stream):
        model.step(ids, captured)
        stream.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        model.step(ids, captured)
        graph.capture_end()
        captured.refill(Segments.of(steps[0], SLOT, gpu))
        graph.replay()
    torch.cuda.synchronize()
    assert error(model.scratch.logits[:2], logits[0][1]) < 1e-2


def test_shares_are_disjoint_and_slower_than_the_whole() -> None:
    device = CudaDevice(MODEL)
    try:
        assert device.settings["shares"].startswith("green contexts"), device.settings["shares"]
        assert all(a + b <= device.shares.whole for a, b in device.shares.splits)
        sms = min(device.shares.all)
        target = Target("gemm", (2048, 4096, 4096))
        whole, part = device.measure(Group(target, (Variant(device.shares.whole), Variant(sms))), 3)
        assert min(part.seconds) > 1.5 * max(whole.seconds)
    finally:
        device.close()


def test_a_small_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares_cuda, "fitting", lambda model, memory: SMALL)
    outcome = measure(Settings("cuda", "tiny", tmp_path / "p", repeats=1))
    assert outcome.failed == ()
    assert outcome.measured == outcome.points
