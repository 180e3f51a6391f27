"""The model of a run against an independent implementation, transformers', however its work is cut and mixed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from profiler.measure.attention import Segments, Sequenced
from profiler.measure.numerics import LLAMA3, LinearScaling, Llama3Scaling, Numerics
from profiler.measure.transformer import KVCache, Scratch, Transformer, Weights
from profiler.specs import ModelSpec
from real.model import open_model
from tests.reference_model import Reference, one_thread

CPU, FP32 = torch.device("cpu"), torch.float32
SPEC = ModelSpec(
    name="twin",
    layers=4,
    hidden=64,
    intermediate=96,
    heads=8,
    kv_heads=2,
    head_dim=16,
    vocab=199,
    max_context=160,
)
NUMERICS = Numerics(norm_eps=1e-3, rope_theta=1000.0)
COUNT = 64
SLOTS = 4


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with one_thread(), torch.inference_mode():
        yield


def weights_of(spec: ModelSpec, seed: int) -> Weights:
    """Random ones with norms that are not 1, and large enough that texts wander: they depend on every token before."""
    weights = Weights.random(spec, CPU, FP32, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    norms = [weights.final_norm]
    for layer in weights.layers:
        norms += [layer.attention_norm, layer.mlp_norm]
        norms += [norm for norm in (layer.query_norm, layer.key_norm) if norm is not None]
    for norm in norms:
        norm.uniform_(0.5, 3, generator=generator)
    return weights


def prompts_of(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(SPEC.vocab, (length,), generator=generator).tolist() for length in lengths]


WEIGHTS = weights_of(SPEC, 1)
PROMPTS = prompts_of((1, 2, 17, 40, 63, 90))


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(SPEC, WEIGHTS, NUMERICS)


@pytest.fixture(scope="module")
def expected(reference: Reference) -> list[list[int]]:
    tokens = [reference.greedy(prompt, COUNT) for prompt in PROMPTS]
    # Not a few that come again and again, which wrong attention might give as well.
    assert all(len(set(some)) > 30 for some in tokens)
    return tokens


@dataclass
class Held:
    """A sequence in a slot: its tokens known so far, and how many of them are in the cache."""

    slot: int
    tokens: list[int]
    cached: int = 0
    prompt: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt :]

    @property
    def left(self) -> int:
        return len(self.tokens) - self.cached


def cache_of(spec: ModelSpec = SPEC) -> KVCache:
    return KVCache.of(spec, SLOTS, spec.max_context, CPU, FP32)


def lane(
    cache: KVCache, weights: Weights = WEIGHTS, spec: ModelSpec = SPEC, numerics: Numerics = NUMERICS
) -> Transformer:
    scratch = Scratch(spec, SLOTS * spec.max_context, SLOTS, CPU, FP32)
    return Transformer(spec, weights, cache, scratch, numerics=numerics)


def launch(model: Transformer, parts: Sequence[tuple[Held, int]], group: int) -> Iterator[None]:
    """New tokens of sequences through the model, ``group`` layers at each turn."""
    segments = Segments.of([Sequenced(one.slot, new, one.cached) for one, new in parts], SPEC.max_context, CPU)
    model.begin(torch.tensor([token for one, new in parts for token in one.tokens[one.cached : one.cached + new]]))
    for first in range(0, SPEC.layers, group):
        yield
        model.layers(segments, first, min(first + group, SPEC.layers))
    for (one, new), token in zip(parts, model.next_tokens(segments).tolist(), strict=True):
        one.cached += new
        if not one.left:
            one.tokens.append(token)


def run(model: Transformer, parts: Sequence[tuple[Held, int]], group: int = SPEC.layers) -> None:
    deque(launch(model, parts, group), maxlen=0)


def decode(model: Transformer, held: Sequence[Held], count: int = COUNT) -> list[list[int]]:
    """Decodes whichever of them still lack some of ``count`` tokens, together."""
    while short := [one for one in held if len(one.generated) < count]:
        run(model, [(one, one.left) for one in short])
    return [one.generated for one in held]


def test_logits_after_every_beginning_of_a_prompt(reference: Reference) -> None:
    model, prompt = lane(cache_of()), PROMPTS[-1]
    found = []
    for length in range(1, len(prompt) + 1):
        run(model, [(Held(2, prompt[:length]), length)])
        found.append(model.scratch.logits[0].clone())
    close(torch.stack(found), reference.logits(prompt))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("number", range(len(PROMPTS)))
def test_alone(expected: list[list[int]], number: int) -> None:
    model = lane(cache_of())
    assert decode(model, [Held(1, list(PROMPTS[number]))]) == [expected[number]]


def test_batched_together_in_slots_in_any_order(expected: list[list[int]]) -> None:
    model = lane(cache_of())
    held = [Held(slot, list(prompt)) for slot, prompt in zip((2, 0, 3, 1), PROMPTS[2:], strict=True)]
    assert decode(model, held) == expected[2:]


@pytest.mark.parametrize("chunk", [1, 7, 32, 64])
def test_prompts_in_chunks_over_a_cached_prefix(expected: list[list[int]], chunk: int) -> None:
    model = lane(cache_of())
    held = [Held(slot, list(prompt)) for slot, prompt in enumerate(PROMPTS[2:])]
    for one in held:
        while not one.generated:
            run(model, [(one, min(chunk, one.left))])
    assert decode(model, held, 16) == [tokens[:16] for tokens in expected[2:]]


@pytest.mark.parametrize("group", [1, 2, 3])
def test_prefill_by_layer_groups_between_the_decode_steps_of_another_lane(
    expected: list[list[int]], group: int
) -> None:
    cache = cache_of()
    prefill, decoding = lane(cache), lane(cache)
    first, *others = (Held(slot, list(prompt)) for slot, prompt in enumerate(PROMPTS[1:5]))
    run(prefill, [(first, first.left)])
    running = [first]
    for other in others:
        for _ in launch(prefill, [(other, other.left)], group):
            run(decoding, [(one, 1) for one in running])
        running.insert(0, other)
    decode(decoding, running)
    assert [one.generated[:COUNT] for one in (first, *others)] == expected[1:5]


def test_a_slot_serves_again_and_chunks_are_launched_with_decodes(expected: list[list[int]]) -> None:
    """Chunked prefill: every launch holds the decode steps of all that run, and a chunk of the next prompt."""
    model, chunk = lane(cache_of()), 13
    waiting, free = deque(enumerate(PROMPTS)), deque(range(SLOTS))
    running: dict[int, Held] = {}
    found: dict[int, list[int]] = {}
    while waiting or running:
        if waiting and free:
            number, prompt = waiting.popleft()
            running[number] = Held(free.popleft(), list(prompt))
        run(model, [(one, min(chunk, one.left)) for one in running.values()])
        for number in [number for number, one in running.items() if len(one.generated) == COUNT]:
            found[number] = running[number].generated
            free.append(running.pop(number).slot)
    assert [found[number] for number in range(len(PROMPTS))] == expected


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_any_interleaving(expected: list[list[int]], seed: int) -> None:
    """Two lanes over one cache, each with any mix of chunks and decodes, going on group by group in any order."""
    random = Random(seed)
    cache, count = cache_of(), 12
    lanes = [lane(cache), lane(cache)]
    numbers = random.sample(range(len(PROMPTS)), SLOTS)
    held = [Held(slot, list(PROMPTS[number])) for slot, number in enumerate(numbers)]
    busy: dict[int, tuple[Iterator[None], list[Held]]] = {}
    while True:
        taken = [one for _, some in busy.values() for one in some]
        free = [one for one in held if all(one is not other for other in taken) and len(one.generated) < count]
        if not free and not busy:
            break
        number = random.randrange(2)
        if number in busy:
            if next(busy[number][0], "done") == "done":
                del busy[number]
        elif free:
            some = random.sample(free, random.randint(1, len(free)))
            parts = [(one, random.choice((one.left, random.randint(1, one.left)))) for one in some]
            busy[number] = launch(lanes[number], parts, random.randint(1, SPEC.layers)), some
    assert [one.generated for one in held] == [expected[number][:count] for number in numbers]


LONGER = Llama3Scaling(factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=40)


@pytest.mark.parametrize(
    ("spec", "numerics"),
    [
        (replace(SPEC, qk_norm=True), NUMERICS),
        (replace(SPEC, tied_embeddings=True), LLAMA3),
        (replace(SPEC, kv_heads=8), replace(NUMERICS, rope_scaling=LONGER)),
        (replace(SPEC, qk_norm=True, tied_embeddings=True), replace(NUMERICS, rope_scaling=LinearScaling(factor=3.0))),
    ],
    ids=["Qwen3", "tied embeddings", "llama3 scaling and no GQA", "Qwen3, tied, linear scaling"],
)
def test_other_arithmetic_there_and_back(spec: ModelSpec, numerics: Numerics, tmp_path: Path) -> None:
    """Our weights saved by transformers, read again, and tokens as transformers' own beyond the original context."""
    weights = weights_of(spec, 5)
    reference = Reference(spec, weights, numerics)
    opened = open_model(str(reference.save(tmp_path / "twin")), seed=0)
    assert replace(opened.spec, source="") == spec
    assert opened.numerics == numerics
    model = lane(cache_of(spec), opened.weights(CPU, FP32), opened.spec, opened.numerics)
    prompt = prompts_of((90,), seed=6)[0]
    assert decode(model, [Held(3, list(prompt))], 16) == [reference.greedy(prompt, 16)]
    close(model.scratch.logits[0], reference.logits([*prompt, *reference.greedy(prompt, 15)])[-1])
    plain = lane(cache_of(spec), weights, spec, replace(LLAMA3, norm_eps=0.1))
    decode(plain, [Held(3, list(prompt))], 1)
    assert (plain.scratch.logits[0] - reference.logits(prompt)[-1]).abs().max() > 1e-2


def assert_same(found: Weights, expected: Weights) -> None:
    for name in ("embedding", "final_norm", "lm_head"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    for one, other in zip(found.layers, expected.layers, strict=True):
        for name in ("attention_norm", "qkv", "o", "mlp_norm", "gate_up", "down"):
            assert torch.equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "100KB"}], ids=["one file", "shards"])
def test_weights_come_back_as_they_were(reference: Reference, tmp_path: Path, options: dict[str, str]) -> None:
    folder = reference.save(tmp_path, **options)
    assert len(list(folder.glob("*.safetensors"))) == (9 if options else 1)
    assert_same(open_model(str(folder), seed=0).weights(CPU, FP32), WEIGHTS)


def test_the_same_seed_gives_the_same_random_weights(reference: Reference, tmp_path: Path) -> None:
    file = reference.save(tmp_path) / "config.json"
    model = open_model(str(file), seed=9)
    assert model.checkpoint is None
    assert model.numerics == NUMERICS
    assert_same(model.weights(CPU, FP32), Weights.random(SPEC, CPU, FP32, seed=9))
    assert not torch.equal(open_model(str(file), seed=8).weights(CPU, FP32).lm_head, model.weights(CPU, FP32).lm_head)


def test_a_built_in_model_has_the_arithmetic_of_llama_3() -> None:
    model = open_model("Llama-3.1-8B", seed=0)
    assert (model.spec.layers, model.numerics) == (32, Numerics(norm_eps=1e-5, rope_theta=500_000.0))


def test_draws_repeat_by_generator_and_cool_down_to_the_likeliest() -> None:
    model = lane(cache_of())
    segments = Segments.of([Sequenced(slot, 2, 0) for slot in range(SLOTS)], SPEC.max_context, CPU)
    tokens = torch.arange(2 * SLOTS)

    def drawn(seed: int, temperature: Tensor | float) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        steps = (model.step(tokens, segments, temperature, generator).tolist() for _ in range(8))
        return [token for step in steps for token in step]

    assert drawn(1, 0.8) == drawn(1, torch.full((SLOTS, 1), 0.8))
    assert drawn(1, 0.8) != drawn(2, 0.8)
    assert len(set(drawn(1, 0.8)[::SLOTS])) > 3
    assert drawn(1, 1e-4) == drawn(2, 0.0)
