"""A CPU's cores as lanes: real processes, the memory they share, and what is left when any of them is killed."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.api import LINK
from profiler.measure.attention import Sequenced
from profiler.measure.processes import Handle
from profiler.measure.transformer import KVCache
from real import cpu
from real.arena import available_bytes
from real.cpu import CpuLanes
from real.lanes import Batch, Copy, DeviceError, Done, Job
from real.layout import Layout, finished
from real.model import open_model
from real.residents import Residents
from real.serving import replay, serve
from real.worker import LaneWorker, Shared
from sim.config import load_config
from sim.rundir import load_run
from sim.simulate import Prepared, prepare
from tests.inline_lanes import NotingExecutor
from tests.reference_model import one_thread
from tests.test_real_model import NUMERICS, PROMPTS, SPEC, WEIGHTS
from tests.twins import SLOT_TOKENS, SLOTS, Rows, Twin

CORES = len(os.sched_getaffinity(0))
SHARED_FILES = Path("/dev/shm")
ROOT = Path(__file__).parents[1]

two_cores = pytest.mark.skipif(CORES < 2, reason="two lanes need two cores")

ROWS: Rows = tuple((0.03 * number, (17, 90, 39, 63)[number % 4], 32) for number in range(7))


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twin]:
    with one_thread():
        yield Twin.at(tmp_path_factory.mktemp("twin"), cores=min(2, CORES))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Neither processes nor shared memory outlive a test."""
    before = set(SHARED_FILES.iterdir()) if SHARED_FILES.is_dir() else set()
    yield
    assert multiprocessing.active_children() == []
    if SHARED_FILES.is_dir():
        assert [path for path in set(SHARED_FILES.iterdir()) - before if "bulletsim" in path.name] == []


def lanes_of(ready: Prepared, kind: type[CpuLanes] = CpuLanes, **changes: Any) -> CpuLanes:
    roles = ready.policy.roles(ready.config.instances)
    sizes: dict[str, Any] = {"slots": SLOTS, "slot_tokens": SLOT_TOKENS, "launch_tokens": 1024}
    return kind(
        open_model(ready.config.model, 0),
        lanes=[ready.policy.lanes(role) for role in roles],
        cores_each=min(2, CORES) // len(roles),
        **(sizes | changes),
    )


def run(lanes: CpuLanes, job: Job) -> Done:
    lanes.submit(job)
    done = lanes.wait(60)
    assert done is not None
    assert done.job_id == job.job_id
    return done


def serve_noted(ready: Prepared, lanes: CpuLanes) -> tuple[Any, NotingExecutor]:
    residents = Residents(instances=ready.config.instances, slots=lanes.slots, vocab=SPEC.vocab, seed=ready.config.seed)
    executor = NotingExecutor(lanes, residents, layers=SPEC.layers)
    return ready.loop(executor=executor).run(), executor


@two_cores
def test_two_lanes_of_one_instance(twin: Twin) -> None:
    ready = twin.prepared("bullet", ROWS)
    lanes = lanes_of(ready)
    try:
        by_hand(twin, lanes)
        result, executor = serve_noted(ready, lanes)
        assert executor.tokens == twin.expected(ROWS)
        steps, times = result.steps, executor.times
        assert len(steps) == len(times)
        for row, one in enumerate(times):
            assert steps.start_s[row] <= one.begin_s < one.finish_s <= steps.end_s[row]
            assert one.granted_sms == steps.sms[row]
            assert one.processor_s > 0
        both = overlapping(result, times)
        assert both > 0, "no moment at which both lanes were busy"
    finally:
        lanes.close()
        lanes.close()


def by_hand(twin: Twin, lanes: CpuLanes) -> None:
    """Each layer of a prompt in another process, on other cores; then decode in the other lane's processes."""
    assert [lanes.granted(0, "prefill", sms) for sms in (0, 1, 2, 3)] == [1, 1, 2, 2]
    assert lanes.wait(0) is None
    prompt, found = PROMPTS[3], []
    sequence = (Sequenced(5, len(prompt), 0),)
    for layer in range(SPEC.layers):
        batch = Batch(sequence, () if layer else tuple(prompt), layer, layer + 1)
        done = run(lanes, Job(layer, 0, "prefill", 1 + layer % 2, batch))
        assert done.sms == 1 + layer % 2
        assert len(done.tokens) == (layer == SPEC.layers - 1)
    found += done.tokens
    for step in range(15):
        batch = Batch((Sequenced(5, 1, len(prompt) + step),), (found[-1],), 0, SPEC.layers)
        found += run(lanes, Job(9, 0, "decode", 2 - step % 2, batch)).tokens
    assert found == twin.reference.greedy(prompt, 16)


def overlapping(result: Any, times: Sequence[Any]) -> int:
    """Pairs of launches of the two lanes that the cores were at in one moment."""
    names = [result.steps.lane_names[lane] for lane in result.steps.lane]
    spans = {
        lane: [(one.begin_s, one.finish_s) for one, name in zip(times, names, strict=True) if name == lane]
        for lane in ("prefill", "decode")
    }
    return sum(begin < end and start < finish for begin, finish in spans["prefill"] for start, end in spans["decode"])


@two_cores
def test_two_instances_and_copies_between_their_caches(twin: Twin) -> None:
    ready = twin.prepared("disaggregation", ROWS[:4], instance_sms=1)
    lanes = lanes_of(ready)
    try:
        assert lanes.granted(1, LINK, 0) == 0
        assert lanes.granted(0, "prefill", 2) == lanes.granted(1, "decode", 2) == 1
        _, executor = serve_noted(ready, lanes)
        assert executor.tokens == twin.expected(ROWS[:4])
        copies = [one for one in executor.times if one.granted_sms == 0]
        assert len(copies) == 4
        assert all(one.processor_s >= 0 and one.tokens == () for one in copies)
    finally:
        lanes.close()


class Killing(CpuLanes):
    """Kills a process of its own as it sends job number ``last``."""

    last = 25

    def submit(self, job: Job) -> None:
        super().submit(job)
        if job.job_id == self.last:
            for process in multiprocessing.active_children():
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)


def test_a_failed_job_and_a_killed_process_are_one_line_each(twin: Twin, tmp_path: Path) -> None:
    ready = twin.prepared("chunked", ROWS[:3])
    lanes = lanes_of(ready, Killing, launch_tokens=64)
    try:
        long = Batch((Sequenced(0, 65, 0),), (1,) * 65, 0, SPEC.layers)
        lanes.submit(Job(0, 0, "main", 1, long))
        message = (
            "^lane main of instance 0 failed: a launch of 65 tokens; lanes were made for 64; let the policy batch fewer"
        )
        with pytest.raises(DeviceError, match=message):
            lanes.wait(60)
        lanes.submit(Job(0, 0, "main", 1, Batch((Sequenced(0, 1, SLOT_TOKENS),), (1,), 0, SPEC.layers)))
        with pytest.raises(DeviceError, match="does not fit a slot of 160"):
            lanes.wait(60)
        # It goes on after both.
        assert run(lanes, Job(1, 0, "main", 1, Batch((Sequenced(0, 1, 0),), (1,), 0, SPEC.layers))).tokens

        message = r"^the process on cores [\d, ]+ died with exit code -9; if memory is short, serve with fewer --slots"
        with pytest.raises(DeviceError, match=message) as caught:
            serve(ready, lanes, tmp_path / "run", facts={"device": lanes.settings})
        assert "\n" not in str(caught.value)
        with pytest.raises(DeviceError, match="died with exit code -9"):
            lanes.submit(Job(2, 0, "main", 1, Batch((Sequenced(0, 1, 0),), (1,), 0, SPEC.layers)))
    finally:
        lanes.close()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not finished(tmp_path / "run")
    # The last may have ended before it was killed.
    assert len(load_run(tmp_path / "run").steps) - Killing.last in (0, 1)
    assert replay(tmp_path / "run" / "answers.jsonl").decisions == Killing.last + 1


class Doomed(CpuLanes):
    """Tells which processes there are, and kills this one as it sends job number 25."""

    def submit(self, job: Job) -> None:
        super().submit(job)
        if job.job_id == 25:
            sys.stdout.write(json.dumps([process.pid for process in multiprocessing.active_children()]))
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)


def serve_and_die(config: str, target: str) -> None:
    """What the next test runs in a process of its own."""
    ready = prepare(load_config(Path(config)))
    serve(ready, lanes_of(ready, Doomed), Path(target), facts={})


def test_a_killed_parent_leaves_no_process_and_what_had_finished(twin: Twin, tmp_path: Path) -> None:
    changes = {"instances": 2, "instance_sms": 1} if CORES > 1 else {}
    ready, layout = twin.prepared("chunked", ROWS[:3], **changes), Layout(tmp_path / "out")
    config, target = tmp_path / "config.json", layout.cell("chunked", None) / "real-1"
    config.write_text(ready.config.model_dump_json())
    script = "import sys; from tests.test_real_cpu import serve_and_die; serve_and_die(*sys.argv[1:])"
    command = [sys.executable, "-c", script, str(config), str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    pids = json.loads(done.stdout)
    assert len(pids) == ready.config.instances
    limit = time.monotonic() + 30
    while alive := [pid for pid in pids if running(pid)]:
        assert time.monotonic() < limit, f"{alive} are orphans"
        time.sleep(0.05)
    assert done.stderr == b""
    assert not target.exists()
    assert layout.rescue() == [target]
    assert not finished(target)
    assert 0 < len(load_run(target).steps) <= 25


def running(pid: int) -> bool:
    """A zombie, which waits for its parent alone, is none."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_what_does_not_fit_is_said_before_anything_starts(twin: Twin) -> None:
    ready = twin.prepared("chunked", ROWS[:1])
    slots = available_bytes() // (SLOT_TOKENS * 2 * 4 * SPEC.layers * SPEC.kv_heads * SPEC.head_dim) + 1
    message = rf"^twin does not fit: weights 0.0 GB, KV of 1 x {slots} slots of 160 tokens [\d.]+ GB.*fewer --slots"
    with pytest.raises(ValueError, match=message):
        lanes_of(ready, slots=slots)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("error", [RuntimeError("can't\n allocate memory"), MemoryError("can't allocate memory")])
def test_a_limit_that_the_machines_account_does_not_know(
    twin: Twin, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def short(*given: Any) -> None:
        raise error

    monkeypatch.setattr(CpuLanes, "_start", short)
    with pytest.raises(ValueError, match=r"^twin cannot be laid out: can't allocate memory; take fewer --slots"):
        lanes_of(twin.prepared("chunked", ROWS[:1]))


def test_more_cores_than_there_are_is_one_line(twin: Twin) -> None:
    model = open_model(str(twin.folder / "twin"), 0)
    message = (
        rf"^2 instances of {CORES} cores need {2 * CORES}, and this process may use {CORES}; take a policy of fewer"
    )
    with pytest.raises(ValueError, match=message):
        CpuLanes(model, lanes=[("main",), ("main",)], cores_each=CORES, slots=1, slot_tokens=16)


def test_processes_that_die_as_they_start_are_one_line(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(Handle):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.process.kill()

    monkeypatch.setattr(cpu, "Handle", Killed)
    with pytest.raises(ValueError, match=r"^the process on cores [\d, ]+ died with exit code -9; if memory is short"):
        lanes_of(twin.prepared("bullet" if CORES > 1 else "chunked", ROWS[:1]))


def worker(launch_tokens: int = 512, slots: int = 100) -> LaneWorker:
    """A lane in this process, over tensors of its own."""
    caches = tuple(KVCache.of(SPEC, slots, 16, torch.device("cpu"), torch.float32) for _ in range(2))
    state = [torch.zeros(launch_tokens, SPEC.hidden) for _ in range(2)]
    return LaneWorker(Shared(SPEC, NUMERICS, WEIGHTS, caches, *state), 1, torch.Generator())


def test_buffers_serve_many_tokens_and_many_sequences_in_turns(twin: Twin) -> None:
    lane = worker()
    many = Batch(tuple(Sequenced(slot, 1, 0) for slot in range(100)), (7,) * 100, 0, SPEC.layers)
    long = Batch(tuple(Sequenced(slot, 15, 0) for slot in range(20)), tuple(range(15)) * 20, 0, SPEC.layers)
    with torch.inference_mode():
        expected = (twin.reference.greedy([7], 1) * 100, twin.reference.greedy(range(15), 1) * 20)
        found = lane.compute(many)[0], lane.compute(long)[0]
        assert tuple(map(list, found)) == expected
        made = lane._transformer
        for batch in (many, long, many):
            lane.compute(batch)
            assert lane._transformer is made
        tokens, begin_s, finish_s, processor_s = lane.compute(many._replace(last=1))
    assert tokens == ()
    assert begin_s < finish_s
    assert processor_s > 0


def test_a_copy_takes_a_requests_tokens_and_no_others() -> None:
    lane = worker()
    here, there = lane.shared.caches[1], lane.shared.caches[0]
    before = here.keys[2].clone()
    answer = lane.copy(Copy(0, 3, 5, 7))
    assert answer[0] == ()
    assert torch.equal(here.keys[2][5 * 16 : 5 * 16 + 7], there.keys[2][3 * 16 : 3 * 16 + 7])
    assert torch.equal(here.values[0][5 * 16 : 5 * 16 + 7], there.values[0][3 * 16 : 3 * 16 + 7])
    assert torch.equal(here.keys[2][: 5 * 16], before[: 5 * 16])
    assert torch.equal(here.keys[2][5 * 16 + 7 :], before[5 * 16 + 7 :])


def test_sampled_tokens_are_drawn_by_the_lanes_generator() -> None:
    lane = worker()
    batch = Batch(tuple(Sequenced(slot, 1, 0) for slot in range(50)), (7,) * 50, 0, SPEC.layers, 1.0)
    with torch.inference_mode():
        draws = []
        for seed in (1, 1, 2):
            lane.generator = torch.Generator().manual_seed(seed)
            draws.append(lane.compute(batch)[0])
    assert draws[0] == draws[1] != draws[2]
    assert len(set(draws[0])) > 10
