"""What a GPU's lanes refuse, what fails on it, and the parts they are made of: inputs in one copy, and its clock."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from profiler.measure import shares_cuda
from profiler.measure.attention import Segments, Sequenced
from profiler.measure.transformer import KVCache, Transformer
from real import cuda_memory
from real.cuda_clock import DeviceClock, seconds
from real.cuda_inputs import Inputs, Layout
from real.lanes import Batch, Copy, DeviceError, Job
from tests.fake_cuda import SLOT, SPEC, FakeEvent, LaneRuntime, Opener, lane_opener, prompt_of, run, step_of
from tests.test_measure_cuda import FakeDriver

CPU = torch.device("cpu")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    with lane_opener(monkeypatch) as make:
        yield make


def test_inputs_are_those_that_segments_make() -> None:
    runtime, dice = LaneRuntime(), random.Random(1)
    inputs = Inputs(runtime, 40, 7, SLOT)
    for _ in range(30):
        sequences = []
        for slot in dice.sample(range(9), dice.randint(1, 7)):
            new = dice.choice((1, 1, dice.randint(1, 5)))
            sequences.append(Sequenced(slot, new, dice.randint(0, SLOT - new)))
        tokens = [dice.randrange(64) for _ in range(sum(sequence.new for sequence in sequences))]
        inputs.write(sequences, tokens)
        inputs.send()
        found, expected = inputs.segments(), Segments.of(sequences, SLOT, CPU)
        for name in ("positions", "rows", "query_starts", "key_starts", "used", "last"):
            part = getattr(found, name)
            assert torch.equal(part, getattr(expected, name)), name
            assert part.dtype == getattr(expected, name).dtype
            # Kernels are compiled for pointers of this alignment, counted from a buffer that has it.
            assert (part.data_ptr() - inputs._device.data_ptr()) % 16 == 0
        assert (found.longest_query, found.longest_key) == (expected.longest_query, expected.longest_key)
        assert found.sequences == expected.sequences
        assert inputs.tokens().tolist() == tokens
    with pytest.raises(ValueError, match="does not fit a slot of 48"):
        inputs.write([Sequenced(0, 2, SLOT - 1)], [1, 2])


def test_parts_of_inputs_do_not_overlap() -> None:
    assert Layout.of(3, 2) == (0, 4, 8, 12, 14, 16, 18, 20)
    assert Layout.of(1, 1) == (0, 2, 4, 6, 8, 10, 12, 14)


class Hands:
    """A clock that is moved by hand, and a runtime whose events take ``lag_s`` of it to be seen; None never are."""

    def __init__(self, lag_s: float | None, step_s: float = 1e-6) -> None:
        self.now_s, self.lag_s, self.step_s, self.events = 100.0, lag_s, step_s, 0

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s

    def stream(self) -> Any:
        return None

    def event(self) -> Any:
        self.events += 1
        event = FakeEvent()
        event.record = lambda stream: setattr(event, "at_s", self.now_s)  # type: ignore[method-assign]
        event.query = lambda: self.lag_s is not None and self.now_s >= event.at_s + self.lag_s  # type: ignore[method-assign]
        return event


def test_the_devices_clock_is_set_by_the_hosts_now_and_then() -> None:
    hands = Hands(4e-6)
    clock = DeviceClock(hands, hands)
    first = clock.anchor()
    event = hands.event()
    event.at_s = first.event.at_s + 0.125
    # An event of the device's clock an eighth of a second on is one of the host's, but for what is in doubt.
    assert seconds(first, event) == pytest.approx(first.event.at_s + 0.125, abs=first.doubt_s)
    assert first.doubt_s < 10e-6
    made = hands.events
    assert clock.anchor() is first
    assert hands.events == made
    hands.now_s += 0.3
    second = clock.anchor()
    assert second.at_s == pytest.approx(hands.now_s, abs=1e-4)
    # A busy device answers late: what is known is better, until it has grown too old.
    hands.lag_s = 120e-6
    hands.now_s += 0.3
    assert clock.anchor() is second
    hands.now_s += 10.0
    assert clock.anchor() is not second
    hands.lag_s = None
    hands.now_s += 10.0
    assert not math.isinf(clock.anchor().doubt_s)
    with pytest.raises(DeviceError, match="the GPU did nothing for 1 s"):
        DeviceClock(Hands(None), Hands(None, 0.1))


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (
            Job(1, 1, "decode", 32, step_of(0)),
            "no lane decode of instance 1; known: lane prefill of instance 0, lane dec",
        ),
        (Job(1, 0, "decode", 0, Copy(0, 1, 2, 3)), "lane decode of instance 0 runs layers and nothing else"),
        (Job(1, 0, "link", 32, step_of(0)), "lane link of instance 0 copies KV and nothing else"),
        (Job(1, 0, "link", 0, Copy(1, 1, 2, 3)), "a copy from instance 1; there are 1"),
        (Job(1, 0, "link", 0, Copy(0, 1, 6, 3)), "a copy from slot 1 to 6; there are 0 to 5"),
        (Job(1, 0, "link", 0, Copy(0, 1, 2, 49)), "a copy of 49 tokens; a slot holds 1 to 48"),
        (Job(1, 0, "decode", 32, step_of(6)), "a slot is not among the 6 of the KV cache, 0 to 5"),
        (Job(1, 0, "decode", 32, step_of(0, cached=48)), "48 cached and 1 new tokens does not fit a slot of 48"),
        (Job(1, 0, "decode", 32, step_of()), "a launch of 0 sequences and 0 tokens"),
        (Job(1, 0, "decode", 32, step_of(*range(6), 0)), "made for 1 to 6 sequences and up to 64 tokens"),
        (Job(1, 0, "decode", 32, step_of(0, last=5)), "layers 0 to 5; tiny has 0 to 4"),
        (Job(1, 0, "decode", 32, step_of(0, tokens=())), "0 token ids for 1 new tokens; each needs one"),
        (Job(1, 0, "decode", 32, step_of(0, tokens=(64,))), "token ids from 64 to 64; the vocabulary has 0 to 63"),
        (Job(1, 0, "decode", 32, step_of(0, tokens=(), first=1)), "a batch that the lane has not left there"),
    ],
)
def test_jobs_that_cannot_be_run_are_refused(opened: Opener, job: Job, message: str) -> None:
    lanes = opened(lanes=[("prefill", "decode", "link")], graphs={})
    with pytest.raises(ValueError, match=message):
        lanes.submit(job)
    # Nothing of it is left behind.
    assert run(lanes, Job(2, 0, "decode", 32, step_of(0))).sms == 32


def test_layers_of_another_batch_are_refused(opened: Opener) -> None:
    lanes = opened(graphs={})
    run(lanes, Job(1, 0, "prefill", 68, prompt_of(0, [1, 2], 0, 2)))
    for batch in (prompt_of(1, [1, 2], 2, 4), prompt_of(0, [1, 2], 1, 4), prompt_of(0, [1, 2], 3, 4)):
        with pytest.raises(ValueError, match="a batch that the lane has not left there"):
            lanes.submit(Job(2, 0, "prefill", 68, batch))
    assert len(run(lanes, Job(3, 0, "prefill", 68, prompt_of(0, [1, 2], 2, 4))).tokens) == 1


def test_what_fails_on_the_device_is_one_line(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = opened()
    lanes.submit(Job(1, 0, "prefill", 68, prompt_of(0, [1, 2])))
    monkeypatch.setattr(FakeEvent, "broken", "CUDA error: uncorrectable ECC error encountered\nCompile with")
    with pytest.raises(
        DeviceError, match=r"^lane prefill of instance 0: CUDA error: uncorrectable ECC error"
    ) as caught:
        lanes.wait(1)
    assert "\n" not in str(caught.value)

    def exhausted(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee")

    monkeypatch.setattr(Transformer, "begin", exhausted)
    with pytest.raises(DeviceError, match=r"^lane decode of instance 0: CUDA out of memory.* GiB. Lower slots"):
        lanes.submit(Job(2, 0, "decode", 132, Batch((Sequenced(0, 2, 0),), (1, 2), 0, 4)))


@pytest.mark.parametrize("step", ["weights", "warming", "capture"])
def test_memory_that_runs_out_while_lanes_are_made_is_given_back(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def exhausted(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    place = {"weights": (KVCache, "of"), "warming": (Transformer, "finish"), "capture": (LaneRuntime, "capture")}
    monkeypatch.setattr(*place[step], exhausted)
    driver = FakeDriver()
    with pytest.raises(DeviceError, match=r"^preparing lanes: CUDA out of memory.*Lower slots, slot_tokens"):
        opened(driver=driver)
    assert driver.alive == []


def test_what_does_not_fit_is_said_before_it_is_made(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_memory, "STREAM_BYTES", 0)
    monkeypatch.setattr(cuda_memory, "RESERVE_BYTES", 1 << 20)
    # fp32: a slot is 48 tokens of K and V of 2 heads of 8 in 4 layers, a sequence's buffers 48 and 64 numbers and its
    # token; and of three streams a lane each holds two outputs of 64 tokens of 48 numbers.
    slot, row, held = 4 * 48 * 2 * 2 * 8 * 4, 2 * (4 * (48 + 64) + 8), 6 * 2 * 64 * 48 * 4
    buffers = 2 * 4 * 64 * (3 * 48 + 80 + 48 + 80 + 40)
    free = (1 << 20) + held + buffers + 4 * SPEC.parameters + slot + 10 * (slot + row)
    opened(LaneRuntime(free=free), slots=10)
    with pytest.raises(
        DeviceError, match=r"NVIDIA H200 has 0.0 GiB free.* KV of 11 slots of 48 .* lower slots \(10 fit\) or"
    ):
        opened(LaneRuntime(free=free), slots=11)
    with pytest.raises(DeviceError, match=r"lower slots \(9 fit\) or"):
        opened(LaneRuntime(free=free - 1), slots=10)
    with pytest.raises(DeviceError, match="lower slot_tokens or the most tokens of a launch, take a smaller model"):
        opened(LaneRuntime(free=free - 10 * (slot + row)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lanes": [("a", "b", "c")]}, "GPU 0 has lanes a, b, c; it has shares for 2"),
        ({"lanes": [("a", "b"), ("c",)], "devices": (3, 3)}, "GPU 3 has lanes a, b, c"),
        ({"lanes": [("a", "a")]}, "names differ"),
        ({"lanes": [("link",)]}, "instance 0 has lanes link"),
        ({"lanes": []}, "0 instances on 0 GPUs"),
        ({"devices": (0, 1)}, "1 instances on 2 GPUs"),
    ],
)
def test_lanes_that_cannot_be_made(opened: Opener, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        opened(**settings)


def test_gpus_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="2 GPUs are needed, one for each instance, and torch finds 1; take fewer"):
        shares_cuda.cuda_runtime(1)


def test_closed_lanes_take_no_job(opened: Opener) -> None:
    lanes = opened()
    lanes.submit(Job(1, 0, "decode", 132, step_of(0)))
    lanes.close()
    assert lanes.wait(None) is None
    with pytest.raises(ValueError, match="known: none, they are closed"):
        lanes.submit(Job(2, 0, "decode", 132, step_of(0)))
