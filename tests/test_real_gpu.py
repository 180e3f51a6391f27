"""Lanes on a GPU: tokens, shares, overlap, graphs, copies, times. Skipped where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

import profiler
from profiler.measure.attention import Segments, Sequenced
from profiler.measure.numerics import LLAMA3
from profiler.measure.transformer import KVCache, Scratch, Transformer
from real.cuda import CudaLanes
from real.lanes import Batch, Copy, DeviceError, Done, Job
from real.model import RunnableModel
from real.power import PowerSampler
from tests.test_measure_gpu import error, on_cpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU"),
]

CPU = torch.device("cpu")
SMALL = RunnableModel(replace(profiler.model("tiny"), layers=4), LLAMA3, seed=1)
LARGE = RunnableModel(replace(profiler.model("Llama-3.1-8B"), layers=4, vocab=8192), LLAMA3, seed=1)
"""Of kernels that take longer than their launches."""

SLOT = 1024
ALL = 1 << 20
"""More SMs than there are: all of them."""


@pytest.fixture
def opened() -> Iterator[Callable[..., CudaLanes]]:
    made: list[CudaLanes] = []

    def make(model: RunnableModel = SMALL, **settings: Any) -> CudaLanes:
        chosen = {"lanes": [("prefill", "decode")], "slots": 12, "slot_tokens": SLOT, "launch_tokens": 4096, **settings}
        made.append(CudaLanes(model, **chosen))
        return made[-1]

    yield make
    for lanes in made:
        lanes.close()


def run(lanes: CudaLanes, lane: str, sms: int, task: Batch | Copy, instance: int = 0) -> Done:
    lanes.submit(Job(1, instance, lane, sms, task))
    done = lanes.wait(60)
    assert done is not None
    return done


def steps(slots: dict[int, int], last: dict[int, int]) -> Batch:
    """A decode step of slots, with the tokens cached in each and the last one that it gave."""
    sequences = tuple(Sequenced(slot, 1, cached) for slot, cached in slots.items())
    return Batch(sequences, tuple(last[slot] for slot in slots), 0, 4)


def shares(lanes: CudaLanes, lane: int) -> list[int]:
    return [share.sms for share in lanes._instances[0].lanes[lane].shares.all]


def generated(lanes: CudaLanes, prompts: dict[int, list[int]], count: int) -> dict[int, list[int]]:
    """Prompts by slot, prefilled a layer at a time on one share after the other, and decoded on others."""
    sequences = tuple(Sequenced(slot, len(ids), 0) for slot, ids in prompts.items())
    ids = tuple(token for prompt in prompts.values() for token in prompt)
    sides = shares(lanes, 0)
    for layer in range(4):
        batch = Batch(sequences, () if layer else ids, layer, layer + 1)
        done = run(lanes, "prefill", sides[layer % len(sides)], batch)
    answers = {slot: [token] for slot, token in zip(prompts, done.tokens, strict=True)}
    sides = shares(lanes, 1)
    for turn in range(count - 1):
        cached = {slot: len(prompts[slot]) + turn for slot in prompts}
        step = steps(cached, {slot: answer[-1] for slot, answer in answers.items()})
        for slot, token in zip(prompts, run(lanes, "decode", sides[turn % len(sides)], step).tokens, strict=True):
            answers[slot].append(token)
    return answers


def test_tokens_are_as_likely_as_the_cpus(opened: Callable[..., CudaLanes]) -> None:
    lanes = opened()
    spec, dice = SMALL.spec, torch.Generator().manual_seed(3)
    lengths = {7: 300, 2: 1, 5: 64, 0: 513, 9: 127}
    prompts = {slot: torch.randint(spec.vocab, (length,), generator=dice).tolist() for slot, length in lengths.items()}
    answers = generated(lanes, prompts, 16)
    weights = on_cpu(lanes._instances[0].replica.weights)
    plain = Transformer(
        spec, weights, KVCache.of(spec, 1, SLOT, CPU, torch.float32), Scratch(spec, SLOT, 1, CPU, torch.float32)
    )
    for slot, prompt in prompts.items():
        ids, cached = prompt, 0
        for token in answers[slot]:
            with torch.inference_mode():
                segments = Segments.of([Sequenced(0, len(ids), cached)], SLOT, CPU)
                plain.begin(torch.tensor(ids))
                plain.layers(segments)
                (logits,) = plain.finish(segments)
            # Rounding to bf16 may swap tokens that are all but equally likely; any other lies some deviations lower.
            assert logits.max() - logits[token] < 0.25 * logits.std(), (slot, cached)
            ids, cached = [token], cached + len(ids)


def test_splits_are_disjoint_and_what_was_granted(
    opened: Callable[..., CudaLanes], record_property: Callable[[str, object], None]
) -> None:
    from profiler.measure.smid import sms_of

    lanes = opened(graphs={})
    assert lanes.settings["shares"] == "green contexts, SM numbers checked"
    first, second = (lane.shares for lane in lanes._instances[0].lanes)
    whole = first.whole.sms
    rests, groups = ({share.sms: sms_of(share.stream, whole) for share in side.parts} for side in (first, second))
    for group, rest in lanes.settings["splits"]:
        assert not groups[group] & rests[rest]
        for seen, granted in ((groups[group], group), (rests[rest], rest)):
            assert 0.9 * granted < len(seen) <= granted
        for other, taken in groups.items():
            record_property(f"SMs of a group of {other} in the rest of {group}", len(taken & rests[rest]))
    assert len(sms_of(first.whole.stream, whole)) == whole


def test_graphs_run_on_the_share_that_they_were_captured_on(opened: Callable[..., CudaLanes]) -> None:
    from profiler.measure import smid

    lanes = opened(graphs={})
    instance = lanes._instances[0]
    runtime, share = instance.replica.runtime, instance.lanes[1].shares.parts[0]
    blocks = 64 * instance.lanes[1].shares.whole.sms
    out = torch.full((blocks,), -1, dtype=torch.int32, device=runtime.device)

    def call(turn: int) -> object:
        return smid._record[(blocks,)](out, 2000, WIDTH=32)

    runtime.once(call, share.stream)
    captured = runtime.capture(call, 1, share.stream)
    out.fill_(-1)
    runtime.synchronize()
    with runtime.on(share.stream):
        captured.graph.replay()
    runtime.synchronize()
    assert set(out.tolist()) - {-1} == smid.sms_of(share.stream, instance.lanes[1].shares.whole.sms)


def test_graphs_give_what_launches_give(opened: Callable[..., CudaLanes]) -> None:
    lanes = opened()
    lane = lanes._instances[0].lanes[1]
    dice = torch.Generator().manual_seed(5)
    for count, longest in ((1, 40), (3, 500), (5, 600), (12, SLOT - 1)):
        slots = torch.randperm(12, generator=dice)[:count].tolist()
        cached = {slot: int(torch.randint(longest, (1,), generator=dice)) for slot in slots}
        cached[slots[0]] = longest
        step = steps(cached, dict.fromkeys(slots, 11))
        for sms in shares(lanes, 1):
            tokens = run(lanes, "decode", sms, step).tokens
            logits, graphs = lane._model.scratch.logits[:count].clone(), lane._graphs
            lane._graphs = {}
            lane._model.scratch.logits.fill_(torch.nan)
            again = run(lanes, "decode", sms, step).tokens
            lane._graphs = graphs
            assert error(logits, lane._model.scratch.logits[:count]) < 1e-2
            values = lane._model.scratch.logits[:count].float()
            for row, (token, other) in enumerate(zip(tokens, again, strict=True)):
                assert values[row, other] - values[row, token] < 0.1 * values[row].std()


@pytest.mark.parametrize("devices", [(0, 0), (0, 1)])
def test_kv_is_copied_as_it_is(opened: Callable[..., CudaLanes], devices: tuple[int, int]) -> None:
    if max(devices) >= torch.cuda.device_count():
        pytest.skip("it takes two GPUs")
    lanes = opened(lanes=[("prefill",), ("decode", "link")], devices=devices)
    prompt = tuple(range(200))
    token = run(lanes, "prefill", ALL, Batch((Sequenced(8, 200, 0),), prompt, 0, 4)).tokens[0]
    run(lanes, "link", 0, Copy(0, 8, 3, 200), instance=1)
    source, target = (instance.replica.cache for instance in lanes._instances)
    for old, new in zip((*source.keys, *source.values), (*target.keys, *target.values), strict=True):
        assert torch.equal(old[8 * SLOT : 8 * SLOT + 200].cpu(), new[3 * SLOT : 3 * SLOT + 200].cpu())
        assert not torch.equal(old[8 * SLOT + 200 :][:50].cpu(), new[3 * SLOT + 200 :][:50].cpu())
    there = run(lanes, "decode", ALL, steps({3: 200}, {3: token}), instance=1)
    here = run(lanes, "prefill", ALL, steps({8: 200}, {8: token}))
    logits = [instance.lanes[0]._model.scratch.logits[:1] for instance in lanes._instances]
    assert error(logits[1], logits[0]) < 1e-2
    assert len(there.tokens) == len(here.tokens) == 1


def test_lanes_overlap(opened: Callable[..., CudaLanes]) -> None:
    lanes = opened(LARGE, slots=80, launch_tokens=8192, splits=[64], graphs={"decode": [64]})
    group, rest = lanes.settings["splits"][0]
    prefill = Batch(tuple(Sequenced(slot, SLOT, 0) for slot in range(8)), tuple(range(8192)), 0, 4)
    decode = steps(dict.fromkeys(range(8, 72), 900), dict.fromkeys(range(8, 72), 1))
    alone = [run(lanes, *job) for job in (("prefill", rest, prefill), ("decode", group, decode)) for _ in range(3)]
    prefill_s, decode_s = (min(done.finish_s - done.begin_s for done in part) for part in (alone[:3], alone[3:]))
    lanes.submit(Job(1, 0, "prefill", rest, prefill))
    beside: list[Done] = []
    ended: Done | None = None
    lanes.submit(Job(2, 0, "decode", group, decode))
    while ended is None or len(beside) < 3:
        done = lanes.wait(60)
        assert done is not None
        if done.job_id == 1:
            ended = done
        else:
            beside.append(done)
            lanes.submit(Job(2, 0, "decode", group, decode))
    lanes.wait(60)
    within = [done for done in beside if ended.begin_s < done.begin_s and done.finish_s < ended.finish_s]
    assert len(within) >= 3
    busy_s = ended.finish_s - ended.begin_s
    # Were they one after the other, prefill would have taken longer by all of these steps.
    assert busy_s < 0.8 * (prefill_s + len(within) * decode_s), (prefill_s, decode_s, busy_s, len(within))
    assert all(later.begin_s >= sooner.finish_s for sooner, later in pairwise(beside))


def test_times_are_the_hosts(opened: Callable[..., CudaLanes]) -> None:
    lanes = opened(LARGE, graphs={})
    clock = lanes._instances[0].replica.clock
    for _ in range(3):
        before = time.perf_counter()
        done = run(lanes, "prefill", ALL, Batch((Sequenced(0, SLOT, 0),), tuple(range(SLOT)), 0, 4))
        after = time.perf_counter()
        assert before < done.begin_s < done.finish_s < after
        # Launching it took some of the time, its kernels most.
        assert done.finish_s - done.begin_s > 0.3 * (after - before)
        assert clock.anchor().doubt_s < 50e-6
        time.sleep(0.25)


def test_power_is_read(opened: Callable[..., CudaLanes]) -> None:
    lanes = opened(LARGE, graphs={})
    (uuid,) = lanes.uuids
    with PowerSampler(uuid) as power:
        for _ in range(20):
            run(lanes, "prefill", ALL, Batch((Sequenced(0, SLOT, 0),), tuple(range(SLOT)), 0, 4))
    summary = power.summary()
    if summary is None:
        pytest.skip("NVML does not know the GPU")
    assert summary["power_mean_w"] is None or summary["power_mean_w"] > 10


def test_memory_is_given_back_and_asked_for_first(opened: Callable[..., CudaLanes]) -> None:
    before, _ = torch.cuda.mem_get_info()
    with pytest.raises(DeviceError, match=r"GiB free, and tiny takes .* lower slots \(\d+ fit\)"):
        opened(slots=1 << 26)
    lanes = opened(slots=1 << 10)
    during, _ = torch.cuda.mem_get_info()
    lanes.close()
    after, _ = torch.cuda.mem_get_info()
    assert before - during > 1 << 30
    # Work space of streams that are gone stays with the library.
    assert before - after < 1 << 30
