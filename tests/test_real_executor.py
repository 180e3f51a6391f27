"""The executor of device runs: transformers' tokens under every policy, slots given back, the loop the simulator's."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import policies
from policies.api import RequestProgress
from real import serving
from real.lanes import Batch, Copy, DeviceError
from real.recording import Recorder, Replayer
from real.residents import Residents
from sim import RunResult, ServingLoop
from sim.launch import Executor, KVHolder
from sim.ledger import BlockLedger
from sim.metrics import summarise
from sim.simulate import Prepared, prepare
from sim.state import RequestState
from tests.inline_lanes import NotingExecutor, drawn_seconds, served_by_its_clock
from tests.reference_model import one_thread
from tests.test_real_model import SPEC
from tests.twins import POLICIES, SLOTS, Rows, Twin, lanes_for, prompt_of

ROWS: Rows = (
    (0.0, 17, 64),
    (0.01, 90, 70),
    (0.02, 1, 65),
    (0.02, 63, 64),
    (0.3, 40, 66),
    (0.31, 2, 64),
)


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twin]:
    with one_thread():
        yield Twin.at(tmp_path_factory.mktemp("twin"))


class Run:
    """A run on lanes in this process, from its beginning to its end."""

    def __init__(self, ready: Prepared, seed: int, slots: int = SLOTS) -> None:
        config = ready.config
        self.lanes = lanes_for(ready, drawn_seconds(Random(seed)), seed, slots)
        self.residents = Residents(
            instances=config.instances, slots=slots, vocab=ready.latency.model.vocab, seed=config.seed
        )
        self.executor = NotingExecutor(self.lanes, self.residents, layers=SPEC.layers, clock=self.lanes.clock)
        loop = ServingLoop(
            policy=ready.policy,
            arrivals=ready.arrivals.source(ready.trace, config.seed),
            latency=ready.estimator,
            executor=self.executor,
            instances=config.instances,
            slo=config.slo.value(),
            limits=ready.limits,
            check_every_step=True,
        )
        self.result: RunResult = loop.run()
        self.free_blocks = loop.free_blocks()
        self.total_blocks = ready.limits.total_blocks
        self.instances = config.instances

    def check(self, expected: dict[int, list[int]]) -> None:
        """The tokens are the expected ones, everybody has all of them, and nothing is held any more."""
        assert dict(self.executor.tokens) == expected
        records = self.result.records
        assert set(records.state.tolist()) == {0}
        assert records.generated_tokens.tolist() == records.output_tokens.tolist()
        assert records.generated_tokens.tolist() == [len(expected[number]) for number in range(len(records))]
        assert [self.residents.held(instance) for instance in range(self.instances)] == [0] * self.instances
        assert self.free_blocks == (self.total_blocks,) * self.instances

    def batches(self) -> list[Batch]:
        return [job.task for job in self.lanes.jobs if isinstance(job.task, Batch)]


def test_every_built_in_policy_is_among_those_served_here() -> None:
    known = {name: policies.load(name) for name in policies.POLICIES}
    served = {name for name, one in known.items() if not policies.simulated_only(one) and not one.needs_truth}
    assert {name for name, _ in POLICIES.values()} == served


@pytest.mark.parametrize("label", POLICIES)
def test_tokens_are_those_of_transformers(twin: Twin, label: str) -> None:
    run = Run(twin.prepared(label, ROWS), seed=1)
    run.check(twin.expected(ROWS))
    check_shape(label, run)


def check_shape(label: str, run: Run) -> None:
    """The launches that the policy is here for did occur."""
    batches = run.batches()
    copies = [job for job in run.lanes.jobs if isinstance(job.task, Copy)]
    sizes = [sorted(one.new for one in batch.sequences) for batch in batches]
    if label == "chunked":
        assert any(one.cached and one.new > 1 for batch in batches for one in batch.sequences), "a chunk over a prefix"
        assert any(some[0] == 1 < some[-1] for some in sizes), "chunks and decodes in one launch"
    if "disaggregation" in label:
        assert len(copies) == len(ROWS)
        assert {job.task.tokens for job in copies if isinstance(job.task, Copy)} == {row[1] for row in ROWS}
    else:
        assert copies == []
    if label == "bullet":
        groups = [job for job in run.lanes.jobs if isinstance(job.task, Batch) and job.task.last - job.task.first == 1]
        assert Counter(job.task.first for job in groups if isinstance(job.task, Batch))[3] >= 3
        assert len({job.sms for job in groups}) > 1, "shares of prefill change"
    if len({(job.instance, job.lane) for job in run.lanes.jobs}) > 1:
        assert _overlap(run), "two lanes at once"


def _overlap(run: Run) -> bool:
    times = sorted((one.begin_s, one.finish_s) for one in run.executor.times)
    return any(begin_s < finish_s for (_, finish_s), (begin_s, _) in pairwise(times))


@pytest.mark.parametrize("label", POLICIES)
def test_tokens_do_not_change_where_kv_is_short_and_requests_give_way(twin: Twin, label: str) -> None:
    run = Run(twin.prepared(label, ROWS, kv_blocks=14), seed=2)
    assert run.result.records.preemptions.sum() > 0
    run.check(twin.expected(ROWS))


LENGTHS = (1, 5, 16, 33)
ANSWERS = (1, 2, 7, 18)


@st.composite
def traffic(draw: st.DrawFn) -> list[tuple[float, int, int]]:
    count = draw(st.integers(1, 6))
    arrivals = sorted(draw(st.lists(st.sampled_from((0.0, 0.01, 0.1, 0.5)), min_size=count, max_size=count)))
    return [(at, draw(st.sampled_from(LENGTHS)), draw(st.sampled_from(ANSWERS))) for at in arrivals]


@settings(max_examples=30, deadline=None)
@given(rows=traffic(), label=st.sampled_from(sorted(POLICIES)), seed=st.integers(0, 1 << 16), blocks=st.integers(4, 20))
def test_nothing_is_lost_or_shared_whatever_comes_when(
    twin: Twin, rows: Rows, label: str, seed: int, blocks: int
) -> None:
    run = Run(twin.prepared(label, rows, kv_blocks=blocks), seed)
    run.check(twin.expected(rows))


def test_a_slot_is_taken_again_before_one_that_nobody_has_touched(twin: Twin) -> None:
    rows = [(0.0, 17, 2), (50.0, 17, 2), (100.0, 17, 2)]
    run = Run(twin.prepared("chunked", rows), seed=0)
    assert {one.slot for batch in run.batches() for one in batch.sequences} == {0}


def test_launches_tell_when_the_device_was_at_them(twin: Twin) -> None:
    run = Run(twin.prepared("bullet", ROWS[:3]), seed=4)
    steps, times = run.result.steps, run.executor.times
    assert len(times) == len(steps)
    for row, one in enumerate(times):
        assert steps.start_s[row] < one.begin_s < one.finish_s < steps.end_s[row]
        assert one.granted_sms == steps.sms[row]
    taken = sum(one.finish_s - one.begin_s for one in times)
    assert taken == pytest.approx(sum(run.lanes.busy_s.values()))


def test_more_requests_than_slots_is_one_line(twin: Twin) -> None:
    with pytest.raises(DeviceError, match=r"^instance 0 holds 2 requests.*max_resident, or give more --slots$"):
        Run(twin.prepared("chunked", [(0.0, 5, 18)] * 3), seed=0, slots=2)
    Run(twin.prepared("chunked", [(0.0, 5, 18)] * 2), seed=0, slots=2)


def state(index: int, prompt_tokens: int = 4) -> RequestProgress:
    return RequestState(index=index, request_id=str(index), arrival_s=0.0, prompt_tokens=prompt_tokens)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5), st.booleans()), max_size=40))
def test_residents_share_no_slot(moves: list[tuple[int, int, bool]]) -> None:
    slots = 3
    residents = Residents(instances=2, slots=slots, vocab=10, seed=0)
    held: dict[tuple[int, int], int] = {}
    for instance, request, takes in moves:
        mine = [slot for (where, _), slot in held.items() if where == instance]
        if not takes:
            # Also one that never began, and one that has gone already.
            residents.release(instance, request)
            residents.release(instance, request)
            held.pop((instance, request), None)
        elif (instance, request) not in held and len(mine) == slots:
            with pytest.raises(DeviceError, match=f"instance {instance} holds 3 requests"):
                residents.slot(instance, request)
        else:
            slot = residents.slot(instance, request)
            assert held.setdefault((instance, request), slot) == slot
            assert 0 <= slot < slots
            assert mine.count(slot) <= ((instance, request) in held and slot in mine)
        for where in range(2):
            taken = [slot for (place, _), slot in held.items() if place == where]
            assert len(set(taken)) == len(taken) == residents.held(where)


def test_prompts_are_drawn_by_seed_and_number() -> None:
    residents = Residents(instances=1, slots=1, vocab=SPEC.vocab, seed=3)
    assert residents.tokens(state(2, 17)) == prompt_of(2, 17)
    assert residents.tokens(state(1, 17)) != prompt_of(2, 17)
    residents.tokens(state(2, 17)).append(5)
    assert residents.tokens(state(2, 17)) == [*prompt_of(2, 17), 5]


ROOT = Path(serving.__file__).parents[1]
THEIRS = ("policies", "sim")


def trees(room: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / room).rglob("*.py")):
        yield path.name, ast.parse(path.read_text(encoding="utf-8"))


def functions(room: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for file, tree in trees(room):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                yield f"{file}: {node.name}", node


def body(function: ast.FunctionDef) -> str:
    """What it does, whatever it is called and says of itself; empty for a line or two."""
    done = [part for part in function.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
    lines = sum(1 for part in done for node in ast.walk(part) if isinstance(node, ast.stmt))
    return "\n".join(map(ast.dump, done)) if lines > 2 else ""


def test_no_policy_code_exists_twice() -> None:
    """real/ decides nothing: it loads policies by name, has none of their code, and hands the loop an executor."""
    theirs = {text: place for room in THEIRS for place, function in functions(room) if (text := body(function))}
    assert len(theirs) > 100
    classes = {node.name for _, tree in trees("policies") for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    assert {"Bullet", "ChunkedPrefill", "Decision", "Relief"} <= classes
    for place, function in functions("real"):
        assert function.name not in ("decide", "relieve", "fill"), place
        assert body(function) not in theirs, f"{place} is {theirs.get(body(function))}"
    for file, tree in trees("real"):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                assert node.name not in classes, file
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("policies"):
                assert node.module == "policies.api", file


def test_a_device_run_is_a_run_of_the_simulators_loop(
    twin: Twin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[ServingLoop, dict[str, Any]]] = []
    whole = ServingLoop.__init__

    def noting(self: ServingLoop, **settings: Any) -> None:
        whole(self, **settings)
        made.append((self, settings))

    monkeypatch.setattr(ServingLoop, "__init__", noting)
    ready = twin.prepared("bullet", ROWS[:2])
    lanes = lanes_for(ready, drawn_seconds(Random(0)))
    with served_by_its_clock(lanes):
        serving.serve(ready, lanes, tmp_path / "run", facts={})
    assert [type(loop) for loop, _ in made] == [ServingLoop, ServingLoop]
    (real, settings), (_, replayed) = made
    assert type(settings["executor"]) is Recorder
    assert type(replayed["executor"]) is Replayer
    assert isinstance(settings["executor"], KVHolder)
    for one in (settings, replayed):
        assert type(one["policy"]) is policies.POLICIES["bullet"]
    assert all(type(instance.ledger) is BlockLedger for instance in real._instances)
    assert (serving.summarise, serving.prepare) == (summarise, prepare)


def test_the_executor_is_one() -> None:
    executor: Executor = NotingExecutor(None, None, layers=1)
    assert isinstance(executor, KVHolder)
    assert executor.next(None) is None
