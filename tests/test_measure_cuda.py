"""Shares and co-runs of a GPU without one: the driver and the few calls that need a device are stand-ins."""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import profiler
from profiler.measure import nvml, shares_cuda
from profiler.measure.device import Sample
from profiler.measure.green import GreenContexts, ShareError, Side, asked, misplaced
from profiler.measure.grid import GPU, Group, Target, Variant
from profiler.measure.shares_cuda import CudaDevice, Ready, device_name, fitting

TINY = profiler.model("tiny")


class Code(IntEnum):
    SUCCESS = 0
    REFUSED = 914


class FakeDriver:
    """Green contexts of a device that grants multiples of 8 SMs, and a record of what was asked of it."""

    class CUdevResourceType(IntEnum):
        CU_DEV_RESOURCE_TYPE_SM = 1

    class CUgreenCtxCreate_flags(IntEnum):
        CU_GREEN_CTX_DEFAULT_STREAM = 1

    class CUstream_flags(IntEnum):
        CU_STREAM_NON_BLOCKING = 1

    def __init__(self, whole: int = 132, refuse: str = "") -> None:
        self.whole, self.refuse = whole, refuse
        self.alive: list[Any] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and name == object.__getattribute__(self, "refuse"):

            def refused(*arguments: object) -> tuple[Code]:
                return (Code.REFUSED,)

            refused.__name__ = name
            return refused
        return object.__getattribute__(self, name)

    def cuInit(self, flags: int) -> tuple[Code]:
        return (Code.SUCCESS,)

    def cuDeviceGet(self, ordinal: int) -> tuple[Code, str]:
        return Code.SUCCESS, f"device {ordinal}"

    def cuDeviceGetDevResource(self, device: str, kind: int) -> tuple[Code, Any]:
        return Code.SUCCESS, resource(self.whole)

    def cuDevSmResourceSplitByCount(self, groups: int, whole: Any, flags: int, least: int) -> tuple[Any, ...]:
        granted = -(-least // 8) * 8
        return Code.SUCCESS, [resource(granted)], 1, resource(whole.sm.smCount - granted)

    def cuDevResourceGenerateDesc(self, resources: list[Any], count: int) -> tuple[Code, Any]:
        assert count == len(resources) == 1
        return Code.SUCCESS, resources[0]

    def cuGreenCtxCreate(self, descriptor: Any, device: str, flags: int) -> tuple[Code, Any]:
        self.alive.append(("context", descriptor))
        return Code.SUCCESS, descriptor

    def cuGreenCtxStreamCreate(self, context: Any, flags: int, priority: int) -> tuple[Code, int]:
        self.alive.append(("stream", 1000 + len(self.alive)))
        return Code.SUCCESS, self.alive[-1][1]

    def cuGreenCtxGetDevResource(self, context: Any, kind: int) -> tuple[Code, Any]:
        return Code.SUCCESS, context

    def cuStreamDestroy(self, stream: int) -> tuple[Code]:
        self.alive.remove(("stream", stream))
        return (Code.SUCCESS,)

    def cuGreenCtxDestroy(self, context: Any) -> tuple[Code]:
        assert self.alive[-1] == ("context", context), "its stream is destroyed first"
        self.alive.pop()
        return (Code.SUCCESS,)

    def cuGetErrorName(self, code: Code) -> tuple[Code, bytes]:
        return Code.SUCCESS, b"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"


def resource(sms: int) -> Any:
    return SimpleNamespace(sm=SimpleNamespace(smCount=sms))


class Graph(SimpleNamespace):
    """A captured call: ``sms`` it runs on, ``target`` what it is."""


class FakeRuntime:
    """A device on which a call takes a second over its SMs, and twice as long beside another."""

    def __init__(self, name: str = "NVIDIA H200", uncovered: int = 0) -> None:
        self.device = torch.device("cpu")
        self.properties = SimpleNamespace(
            name=name,
            multi_processor_count=132,
            L2_cache_size=60 << 20,
            total_memory=141 << 30,
            uuid="5f3c",
        )
        self.uncovered = uncovered
        self.events = ""
        self.log: list[tuple[Any, ...]] = []

    def stream(self, address: int | None = None) -> Any:
        return SimpleNamespace(address=address, number=len(self.log))

    def once(self, call: Any, stream: Any) -> float:
        with torch.inference_mode():
            call(0)
        return 1e-4

    def capture(self, call: Any, count: int, stream: Any) -> Any:
        self.log.append(("capture", stream.address, count))
        return Graph(calls=count, stream=stream, result=call)

    def seconds(self, graph: Any, replays: int, warm: bool) -> float:
        self.log.append(("alone", graph.stream.address))
        return 1e-4

    def seconds_beside(self, graph: Any, replays: int, warm: bool, beside: Any, others: int) -> tuple[float, bool]:
        self.log.append(("beside", graph.stream.address, beside.stream.address, others))
        self.uncovered -= 1
        return 2e-4, self.uncovered < 0

    def probe(self, first: Any, second: Any) -> None:
        if self.events == "refused":
            raise RuntimeError("CUDA error: invalid resource handle\nCompile with")

    def replay_and_read(self, graph: Any) -> float:
        return 1.0

    def launch(self, call: Any, stream: Any) -> float:
        return 0.5

    def forget(self) -> None:
        self.log.append(("forget",))


@pytest.fixture(autouse=True)
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares_cuda, "facts", lambda uuid: {"driver": "580", "uuid": uuid})


@pytest.fixture
def gpu() -> Iterator[CudaDevice]:
    driver = FakeDriver()
    device = CudaDevice(TINY, FakeRuntime(), driver)
    yield device
    device.close()
    assert driver.alive == []


def test_granted_counts_are_read_back_and_pairs_leave_nothing_out() -> None:
    contexts = GreenContexts(FakeDriver(), 0)
    a, b = contexts.split(60)
    assert (a.sms, b.sms) == (64, 68)
    assert a.stream != b.stream
    with pytest.raises(ShareError, match="a share of 132 of 132 SMs leaves no other"):
        contexts.split(132)


@pytest.mark.parametrize("call", ["cuInit", "cuDevSmResourceSplitByCount", "cuGreenCtxStreamCreate"])
def test_a_driver_that_refuses_is_named(call: str) -> None:
    with pytest.raises(ShareError, match=f"{call} answers CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"):
        GreenContexts(FakeDriver(refuse=call), 0).split(64)


def test_what_is_asked_for() -> None:
    assert asked(132) == [16, 32, 48, 64, 80, 96]
    assert asked(78) == [8, 16, 32, 40, 48, 56]
    assert all(0 < size < 108 for size in asked(108))


def test_shares_that_ran_elsewhere_are_found() -> None:
    pair = Side(2, 10), Side(3, 11)
    assert misplaced([pair], {10: {0, 1}, 11: {2, 3, 4}}) is None
    assert misplaced([pair], {10: {0}, 11: {2, 3}}) is None
    assert misplaced([pair], {10: {0, 1, 2}, 11: {3}}) == "a share of 2 SMs ran on 3"
    assert misplaced([pair], {10: {0, 1}, 11: {1, 2}}) == "shares of 2 and 3 SMs both ran on 1"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100-80G"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA H100 NVL", "NVIDIA H100 NVL"),
        ("NVIDIA GeForce RTX 3060", "NVIDIA GeForce RTX 3060"),
    ],
)
def test_devices_are_known_by_torchs_names(name: str, found: str) -> None:
    assert device_name(name) == found


def test_a_small_card_gets_small_decode_batches() -> None:
    llama = profiler.model("Llama-3.1-8B")
    assert fitting(llama, 141 << 30).kv_tokens == GPU.kv_tokens
    assert fitting(llama, 24 << 30).kv_tokens == 1 << 18


def test_shares_and_what_is_said_of_them(gpu: CudaDevice) -> None:
    assert gpu.shares[:2] == (132, ((16, 116), (32, 100), (48, 84), (64, 68), (80, 52), (96, 36)))
    assert gpu.name == "H200"
    assert gpu.settings["shares"].startswith("green contexts")
    assert gpu.settings["driver"] == "580"


def test_each_share_runs_on_its_own_stream_in_turns(gpu: CudaDevice) -> None:
    target = Target("norm", (4, 64))
    variants = Variant(132), Variant(64), Variant(68)
    samples = list(gpu.measure(Group(target, variants), 2))
    assert samples == [Sample(target, variant, (1e-4, 1e-4)) for variant in variants]
    own = [gpu.streams[variant.sms, 0][0].address for variant in variants]
    log = gpu.runtime.log
    assert len(set(own)) == 3
    assert [entry for entry in log if entry[0] == "alone"][-6:] == [("alone", address) for address in own * 2]
    # Two milliseconds of calls of a tenth each.
    assert {entry[2] for entry in log if entry[0] == "capture"} == {20}
    assert log[-1] == ("forget",)


def test_a_co_runner_holds_the_other_side_and_outlasts_what_is_timed(gpu: CudaDevice) -> None:
    gpu.runtime.uncovered = 2
    target, beside = Target("norm", (4, 64)), Target("activation", (4, 64))
    variants = Variant(64, beside, 68), Variant(68, beside, 64)
    first, second = gpu.measure(Group(target, variants), 1)
    assert first.seconds == second.seconds == (2e-4,)
    runs = [entry for entry in gpu.runtime.log if entry[0] == "beside"]
    small, large = (gpu.streams[sms, 0][0].address for sms in (64, 68))
    # Twice it ended first and was given twice as much.
    assert [entry[1:3] for entry in runs] == [(small, large)] * 3 + [(large, small)]
    assert [entry[3] for entry in runs] == [runs[0][3], 2 * runs[0][3], 4 * runs[0][3], runs[0][3]]


def test_a_co_runner_that_cannot_be_kept_busy_is_a_failed_point(gpu: CudaDevice) -> None:
    gpu.runtime.uncovered = 10**6
    variant = Variant(64, Target("copy", (1024,)), 68)
    (sample,) = gpu.measure(Group(Target("norm", (4, 64)), (variant,)), 1)
    assert sample.seconds == ()
    assert "ended first" in sample.failed


def test_what_a_device_cannot_run_does_not_stop_the_rest(gpu: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(call: Any, count: int, stream: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    monkeypatch.setattr(gpu.runtime, "capture", exhausted)
    for target in (Target("norm", (4, 64)), Target("host_pass", (1,))):
        (sample,) = gpu.measure(Group(target, (Variant(132),)), 1)
        assert sample.failed == "CUDA out of memory. Tried to allocate"


def test_host_time_of_steps_and_of_launches(gpu: CudaDevice) -> None:
    for kernel, wall, parts in (("host_pass", 1.0, 9 * TINY.layers + 4), ("host_launch", 0.5, 9 * 4)):
        (sample,) = gpu.measure(Group(Target(kernel, (2,)), (Variant(132),)), 3)
        assert sample.seconds == pytest.approx([wall - parts * 1e-4] * 3)


@pytest.mark.parametrize("refuse", ["cuInit", "cuGreenCtxCreate"])
def test_without_green_contexts_co_runs_share_all_sms_and_say_so(refuse: str) -> None:
    driver = FakeDriver(refuse=refuse)
    device = CudaDevice(TINY, FakeRuntime(), driver)
    assert device.shares[:2] == (132, ((132, 132),))
    assert device.settings["shares"].startswith(f"shared streams: {refuse} answers")
    assert driver.alive == []
    variant = Variant(132, Target("copy", (1024,)), 132)
    (sample,) = device.measure(Group(Target("norm", (4, 64)), (variant,)), 1)
    assert sample.seconds == (2e-4,)


def test_streams_that_cannot_be_timed_are_not_used() -> None:
    driver, runtime = FakeDriver(), FakeRuntime()
    runtime.events = "refused"
    device = CudaDevice(TINY, runtime, driver)
    assert device.settings["shares"] == "shared streams: CUDA error: invalid resource handle"
    assert driver.alive == []


def test_long_calls_are_timed_once_a_repeat_and_cover_short_ones(
    gpu: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu.runtime, "once", lambda call, stream: 0.1)
    ready = gpu._ready(Target("norm", (4, 64)), Variant(64, Target("copy", (1024,)), 68), {})
    assert (ready.captured.calls, ready.replays, ready.warm, ready.beside_replays) == (1, 1, False, 2)


def test_overlapping_shares_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        __import__("sys").modules, "profiler.measure.smid", SimpleNamespace(sms_of=lambda stream, whole: {1, 2, 3})
    )
    driver = FakeDriver()
    device = CudaDevice(TINY, FakeRuntime(), driver)
    assert device.settings["shares"] == "shared streams: shares of 16 and 116 SMs both ran on 3"
    assert driver.alive == []


def test_nvml_tells_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def unknown(*arguments: object) -> None:
        raise NVMLError

    asked_for: list[str] = []
    module = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: asked_for.append("shutdown"),
        nvmlDeviceGetHandleByUUID=asked_for.append,
        nvmlSystemGetDriverVersion=lambda: b"580.1",
        nvmlSystemGetCudaDriverVersion=lambda: 13000,
        nvmlDeviceGetClockInfo=lambda handle, clock: 1000 + clock,
        nvmlDeviceGetMaxClockInfo=lambda handle, clock: 1980,
        nvmlDeviceGetPowerManagementLimit=lambda handle: 700_000,
        nvmlDeviceGetPowerUsage=unknown,
        nvmlDeviceGetTemperature=unknown,
    )
    monkeypatch.setitem(__import__("sys").modules, "pynvml", module)
    found = nvml.facts("5f3c")
    assert (found["driver"], found["sm_clock_mhz"], found["power_limit_w"]) == ("580.1", 1001, 700)
    assert "power_w" not in found
    assert asked_for == ["GPU-5f3c", "shutdown"]
    module.nvmlInit = unknown
    assert nvml.facts("5f3c") == {}


def test_nan_marks_a_run_that_was_not_covered(gpu: CudaDevice) -> None:
    gpu.runtime.uncovered = 10**6
    graph = Graph(calls=1, stream=SimpleNamespace(address=1))
    assert math.isnan(gpu._timed(Ready(graph, 1, True, graph, 1)))
