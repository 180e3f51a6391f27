"""Lanes of a GPU without one: streams that run at once on the CPU give the tokens of plain passes, in any order."""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from profiler.measure.attention import Segments, Sequenced
from profiler.measure.transformer import KVCache, Scratch, Transformer
from real import cuda_graphs
from real.cuda import CudaLanes
from real.cuda_graphs import ROWS, Bucket, Graph, buckets, chosen
from real.lanes import Batch, Copy, Job
from real.model import RunnableModel
from tests.fake_cuda import MODEL, SLOT, SPEC, LaneRuntime, Opener, lane_opener, prompt_of, run, step_of
from tests.reference_model import one_thread
from tests.test_measure_cuda import FakeDriver

CPU = torch.device("cpu")
PROMPTS = ((5, 1, 60, 8), (9,) * 17, tuple(range(3, 30)), (0, 63), (11, 12, 13, 14, 15, 16))
STEPS = 6


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    with lane_opener(monkeypatch) as make:
        yield make


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """Greedy tokens after each prompt, by plain passes of one sequence at a time."""
    answers = []
    weights = MODEL.weights(CPU, torch.float32)
    for prompt in PROMPTS:
        cache = KVCache.of(SPEC, 1, SLOT, CPU, torch.float32)
        plain = Transformer(SPEC, weights, cache, Scratch(SPEC, SLOT, 1, CPU, torch.float32))
        ids, cached, answer = list(prompt), 0, []
        with one_thread(), torch.inference_mode():
            for _ in range(STEPS):
                segments = Segments.of([Sequenced(0, len(ids), cached)], SLOT, CPU)
                cached += len(ids)
                ids = plain.step(torch.tensor(ids), segments).tolist()
                answer += ids
        answers.append(answer)
    return answers


class Server:
    """Prefill by layer groups on one lane and decode on the other, at random splits; slots in any order."""

    def __init__(self, lanes: CudaLanes, seed: int) -> None:
        self.lanes, self.random = lanes, random.Random(seed)
        self.slots = self.random.sample(range(lanes.slots), len(PROMPTS))
        self.answers: list[list[int]] = [[] for _ in PROMPTS]
        self.batches = [[0, 3], [1], [4, 2]]
        self.layer, self.jobs, self.flying = 0, 0, {}  # type: ignore[var-annotated]

    def serve(self) -> list[list[int]]:
        while True:
            if self.batches and "prefill" not in self.flying:
                self.prefill()
            if "decode" not in self.flying:
                self.decode()
            if not self.flying:
                return self.answers
            done = self.lanes.wait(None)
            assert done is not None
            lane = next(lane for lane, (number, _) in self.flying.items() if number == done.job_id)
            for request, token in zip(self.flying.pop(lane)[1], done.tokens, strict=bool(done.tokens)):
                self.answers[request].append(token)

    def start(self, lane: str, requests: list[int], batch: Batch) -> None:
        self.jobs += 1
        self.flying[lane] = self.jobs, requests
        self.lanes.submit(Job(self.jobs, 0, lane, self.random.choice((16, 32, 64, 68, 100, 132)), batch))

    def prefill(self) -> None:
        requests, first = self.batches[0], self.layer
        last = self.layer = min(SPEC.layers, first + self.random.randint(1, 3))
        sequences = tuple(Sequenced(self.slots[r], len(PROMPTS[r]), 0) for r in requests)
        ids = tuple(token for r in requests for token in PROMPTS[r])
        if last == SPEC.layers:
            self.layer = 0
            self.batches.pop(0)
        self.start(
            "prefill", requests if last == SPEC.layers else [], Batch(sequences, () if first else ids, first, last)
        )

    def decode(self) -> None:
        going = [r for r, answer in enumerate(self.answers) if 0 < len(answer) < STEPS]
        self.random.shuffle(going)
        if going:
            lengths = [len(PROMPTS[r]) + len(self.answers[r]) - 1 for r in going]
            sequences = tuple(Sequenced(self.slots[r], 1, cached) for r, cached in zip(going, lengths, strict=True))
            self.start("decode", going, Batch(sequences, tuple(self.answers[r][-1] for r in going), 0, SPEC.layers))


@pytest.mark.parametrize("refuse", ["", "cuGreenCtxCreate"], ids=["shares", "shared"])
@pytest.mark.parametrize("graphs", [None, {}, {"decode": [32]}], ids=["graphs", "eager", "one share"])
def test_greedy_tokens_are_those_of_plain_passes(
    opened: Opener,
    expected: list[list[int]],
    refuse: str,
    graphs: dict[str, list[int]] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Some answers grow out of one graph's context into the next one's.
    monkeypatch.setattr(cuda_graphs, "KEYS", 4)
    runtime = LaneRuntime()
    lanes = opened(runtime, FakeDriver(refuse=refuse), graphs=graphs)
    assert lanes.settings["shares"].startswith("shared streams" if refuse else "green contexts")
    runtime.replayed = 0
    for seed in range(4):
        assert Server(lanes, seed).serve() == expected
    assert (runtime.replayed > 0) == (graphs != {})


def test_chunks_over_a_prefix_and_decodes_mix_in_a_launch(opened: Opener, expected: list[list[int]]) -> None:
    lanes = opened(lanes=[("main",)], splits=None)
    assert lanes.settings["shares"] == "whole device"
    long, short = PROMPTS[2], PROMPTS[0]
    first = run(lanes, Job(1, 0, "main", 132, prompt_of(4, short)))
    assert first.tokens == (expected[0][0],)
    tokens, answers = list(first.tokens), []
    for cached in range(0, len(long), 9):
        sequences = Sequenced(1, 9, cached), Sequenced(4, 1, len(short) + len(tokens) - 1)
        batch = Batch(sequences, (*long[cached : cached + 9], tokens[-1]), 0, SPEC.layers)
        done = run(lanes, Job(2 + cached, 0, "main", 132, batch))
        answers.append(done.tokens[0])
        tokens.append(done.tokens[1])
    assert answers[-1] == expected[2][0]
    assert tokens == expected[0][:4]


def test_kv_is_copied_between_instances(opened: Opener, expected: list[list[int]]) -> None:
    lanes = opened(lanes=[("prefill",), ("decode", "link")], splits=None)
    cached = len(PROMPTS[1])
    tokens = list(run(lanes, Job(1, 0, "prefill", 132, prompt_of(5, PROMPTS[1]))).tokens)
    done = run(lanes, Job(2, 1, "link", 0, Copy(0, 5, 2, cached)))
    assert (done.tokens, done.sms) == ((), 0)
    for step in range(STEPS - 1):
        batch = Batch((Sequenced(2, 1, cached + step),), (tokens[-1],), 0, SPEC.layers)
        tokens += run(lanes, Job(3 + step, 1, "decode", 132, batch)).tokens
    assert tokens == expected[1]
    assert lanes.settings["gpus"] == 2


def test_jobs_get_the_nearest_share_of_their_side(opened: Opener) -> None:
    lanes = opened()
    assert lanes.settings["splits"] == [[32, 100], [64, 68]]
    # 48 is as near to 32 as to 64, and 84 to 68 as to 100: the smaller leaves the other lane its own.
    for lane, granted in (
        ("decode", {8: 32, 32: 32, 47: 32, 48: 32, 49: 64, 100: 64, 131: 64, 132: 132, 140: 132}),
        ("prefill", {8: 68, 84: 68, 85: 100, 100: 100, 131: 100, 132: 132}),
    ):
        assert {sms: lanes.granted(0, lane, sms) for sms in granted} == granted
    assert run(lanes, Job(1, 0, "prefill", 90, prompt_of(0, [1, 2]))).sms == 100
    assert run(lanes, Job(2, 0, "decode", 40, step_of(0, cached=2))).sms == 32


def test_the_two_sides_of_a_split_are_a_pair_of_the_drivers(opened: Opener) -> None:
    driver = FakeDriver()
    first, second = (lane.shares for lane in opened(driver=driver)._instances[0].lanes)
    created = [value for kind, value in driver.alive if kind == "stream"]
    assert [share.stream.address for share in second.parts] == created[0::2]
    assert [share.stream.address for share in first.parts] == created[1::2]
    assert first.whole.stream is not second.whole.stream


def test_without_shares_the_second_lane_comes_first(opened: Opener) -> None:
    lanes = opened(driver=FakeDriver(refuse="cuInit"))
    first, second = (lane.shares for lane in lanes._instances[0].lanes)
    assert (first.parts, first.whole.stream.priority, second.whole.stream.priority) == ((), 0, -1)
    assert lanes.granted(0, "decode", 32) == 132


def test_a_lone_lane_may_have_shares_too(opened: Opener) -> None:
    lanes = opened(lanes=[("main",)], splits=[32])
    assert [lanes.granted(0, "main", sms) for sms in (16, 90, 132)] == [32, 100, 132]


def test_layers_on_another_share_wait_for_those_before(opened: Opener, expected: list[list[int]]) -> None:
    lanes = opened()
    streams = {share.sms: share.stream for share in lanes._instances[0].lanes[0].shares.all}
    run(lanes, Job(1, 0, "prefill", 68, prompt_of(3, PROMPTS[0], 0, 1)))
    before = {sms: len(stream.waited) for sms, stream in streams.items()}
    run(lanes, Job(2, 0, "prefill", 68, prompt_of(3, PROMPTS[0], 1, 2)))
    done = run(lanes, Job(3, 0, "prefill", 100, prompt_of(3, PROMPTS[0], 2, 4)))
    assert {sms: len(stream.waited) - before[sms] for sms, stream in streams.items()} == {68: 0, 100: 1, 132: 0}
    assert done.tokens == (expected[0][0],)


def test_decode_steps_take_the_smallest_graph_on_their_share(opened: Opener) -> None:
    runtime = LaneRuntime()
    lanes = opened(runtime, graphs={"decode": [32]})
    assert lanes.settings["decode_graphs"] == 4
    assert len(runtime.pools) == 1
    runtime.replayed = 0
    for number, (sms, batch, replayed) in enumerate(
        [
            (32, step_of(0, 4, 2), True),
            (64, step_of(0, 4, 2), False),
            (32, step_of(0, temperature=0.5), False),
            (32, step_of(0, last=2), False),
            (32, Batch((Sequenced(1, 2, 0),), (1, 2), 0, 4), False),
        ]
    ):
        run(lanes, Job(number, 0, "decode", sms, batch))
        assert (runtime.replayed == 1) == replayed, number
        runtime.replayed = 0
    # In the largest a full batch fits, up to the last token of a slot.
    run(lanes, Job(9, 0, "decode", 32, step_of(*range(6), cached=SLOT - 1)))
    assert runtime.replayed == 1


def test_a_batch_takes_the_smallest_graph_that_holds_it() -> None:
    graphs = tuple(Graph(Bucket(rows, keys), None) for rows in (2, 4) for keys in (8, 16))  # type: ignore[arg-type]
    for slots, cached, bucket in (
        ((0,), 7, (2, 8)),
        ((0, 1), 8, (2, 16)),
        ((0, 1), 15, (2, 16)),
        ((0, 1, 2), 0, (4, 8)),
        (range(4), 15, (4, 16)),
    ):
        found = chosen(graphs, step_of(*slots, cached=cached), SPEC.layers, 0.0)
        assert found is not None
        assert found.bucket == bucket
    assert chosen(graphs, step_of(*range(5)), SPEC.layers, 0.0) is None
    assert chosen(graphs, step_of(0, cached=16), SPEC.layers, 0.0) is None


def test_every_share_is_warmed_up_with_launches_of_all_sizes(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, real = LaneRuntime(), Transformer.begin
    launched: defaultdict[Any, list[int]] = defaultdict(list)

    def begin(model: Transformer, tokens: torch.Tensor) -> None:
        launched[runtime.current].append(len(tokens))
        real(model, tokens)

    monkeypatch.setattr(Transformer, "begin", begin)
    lanes = opened(runtime, graphs={})
    streams = [share.stream for lane in lanes._instances[0].lanes for share in lane.shares.all]
    assert dict(launched) == {stream: [64, 32, 16, 8, 4, 2, 1] for stream in streams}


def test_sizes_of_graphs() -> None:
    assert buckets(3, 48, 8, 132) == ((1, 48), (2, 48), (3, 48))
    sizes = buckets(1000, 3000, 8, 132)
    assert [size.rows for size in sizes if size.keys == 3000] == list(ROWS)
    assert [size.keys for size in sizes if size.rows == 16] == [512, 1024, 2048, 3000]
    # 32 sequences of 8 KV heads are 256 blocks, and two an SM are 264.
    assert [size.keys for size in sizes if size.rows == 32] == [3000]
    assert sizes == tuple(sorted(sizes))


def test_sampled_decode_by_graph(opened: Opener) -> None:
    runtime = LaneRuntime()
    lanes = opened(runtime, temperature=50.0, graphs={"decode": [132]})
    runtime.replayed = 0
    torch.manual_seed(0)
    drawn = {run(lanes, Job(n, 0, "decode", 132, step_of(1, 2, temperature=50.0))).tokens for n in range(20)}
    # So hot, tokens are all but uniform: twenty pairs out of 4096 are the same with a probability below 1e-60.
    assert runtime.replayed == 20
    assert len(drawn) > 1
    assert run(lanes, Job(99, 0, "decode", 132, step_of(1, 2))).tokens == (
        run(lanes, Job(100, 0, "decode", 132, step_of(1, 2))).tokens
    )


def test_the_first_to_end_comes_first(opened: Opener) -> None:
    lanes = opened()
    prefill, decode = (lane.shares for lane in lanes._instances[0].lanes)
    prefill.nearest(100).stream.delay_s, decode.nearest(32).stream.delay_s = 0.08, 0.03
    for late in (False, True):
        lanes.submit(Job(1, 0, "prefill", 100, prompt_of(0, PROMPTS[0])))
        lanes.submit(Job(2, 0, "decode", 32, step_of(1)))
        with pytest.raises(ValueError, match="lane decode of instance 0 is busy"):
            lanes.submit(Job(3, 0, "decode", 32, step_of(1)))
        assert lanes.wait(0) is None
        assert lanes.wait(1e-3) is None
        if late:
            time.sleep(0.1)
        first, second = lanes.wait(None), lanes.wait(None)
        assert first is not None
        assert second is not None
        assert (first.job_id, second.job_id) == (2, 1)
        assert first.finish_s < second.finish_s
    assert lanes.wait(None) is None
    assert lanes.wait(2e-3) is None


def test_times_are_the_hosts(opened: Opener) -> None:
    lanes = opened()
    before, ended = time.perf_counter(), 0.0
    for number in range(5):
        done = run(lanes, Job(number, 0, "decode", 132, step_of(number)))
        assert max(before, ended) <= done.begin_s <= done.finish_s <= time.perf_counter()
        assert math.isnan(done.processor_s)
        ended = done.finish_s


def test_instances_on_one_gpu_share_their_weights(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    real = RunnableModel.weights
    monkeypatch.setattr(RunnableModel, "weights", lambda *arguments: made.append(real(*arguments)) or made[-1])
    first, second = opened(lanes=[("a",), ("b",)], devices=(0, 0))._instances
    assert len(made) == 1
    assert first.replica.weights is second.replica.weights
    assert first.replica.cache is not second.replica.cache


def test_two_instances_may_have_the_halves_of_one_gpu(opened: Opener, expected: list[list[int]]) -> None:
    halves: dict[str, Any] = {"lanes": [("prefill",), ("decode", "link")], "devices": (0, 0)}
    lanes = opened(splits=[64], **halves)
    assert lanes.settings["splits"] == [[64, 68]]
    done = run(lanes, Job(1, 0, "prefill", 66, prompt_of(5, PROMPTS[1])))
    assert (done.sms, done.tokens) == (68, (expected[1][0],))
    run(lanes, Job(2, 1, "link", 0, Copy(0, 5, 2, len(PROMPTS[1]))))
    done = run(lanes, Job(3, 1, "decode", 66, step_of(2, cached=len(PROMPTS[1]), tokens=done.tokens)))
    assert (done.sms, done.tokens) == (64, (expected[1][1],))
    first, second = (instance.lanes[0].shares.parts[0].stream for instance in lanes._instances)
    assert first.address != second.address
    assert opened(splits=None, **halves).settings["shares"] == "whole device"


def test_another_run_may_name_lanes_otherwise(opened: Opener, expected: list[list[int]]) -> None:
    runtime = LaneRuntime()
    lanes = opened(runtime)
    lanes.submit(Job(1, 0, "decode", 132, step_of(0)))
    with pytest.raises(ValueError, match="while a job is running"):
        lanes.rename([("main",)])
    lanes.wait(1)
    lanes.rename([("main",)])
    runtime.replayed = 0
    done = run(lanes, Job(2, 0, "main", 132, prompt_of(1, PROMPTS[3])))
    done = run(lanes, Job(3, 0, "main", 132, step_of(1, cached=2, tokens=done.tokens)))
    assert done.tokens == (expected[3][1],)
    # It is the lane that has the graphs.
    assert runtime.replayed == 1
    with pytest.raises(ValueError, match=r"known: lane main of instance 0$"):
        lanes.submit(Job(4, 0, "decode", 132, step_of(0)))
    for names in ([("a", "b", "c")], [("a",), ("b",)], [("link",)]):
        with pytest.raises(ValueError, match="make lanes anew"):
            lanes.rename(names)
