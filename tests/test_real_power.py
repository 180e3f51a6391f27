"""A GPU's power over a run, from a driver whose answers are known."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from profiler.measure import nvml
from real.power import PowerSampler


class FakeGpu:
    """Gives each question's answers one after the other, the last one ever after; ``asked`` counts looks."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers, self.closed, self.looks = answers, 0, threading.Semaphore(0)

    def ask(self, name: str) -> Any:
        if name == "power_w":
            self.looks.release()
        left = self.answers.get(name, [None])
        return left.pop(0) if len(left) > 1 else left[0]

    def close(self) -> None:
        self.closed += 1


def sampler(gpu: FakeGpu | None, times: Iterator[float] | None = None, every_s: float = 1e6) -> PowerSampler:
    clock = time.perf_counter if times is None else times.__next__
    found: Any = gpu
    return PowerSampler("5f3c", every_s=every_s, open_gpu=lambda uuid: found, clock=clock)


def test_first_and_last_look_by_hand() -> None:
    gpu = FakeGpu(
        power_w=[100.0, 300.0],
        sm_clock_mhz=[1980, 1500],
        memory_clock_mhz=[3201],
        temperature_c=[40, 55],
        clock_reasons=[0x1, 0x4 | 0x20],
        energy_j=[5000.0, 5900.0],
    )
    with sampler(gpu, iter([10.0, 14.0])) as power:
        pass
    assert power.summary() == {
        "readings": 2,
        "seconds": 4.0,
        "power_mean_w": 200.0,
        "power_max_w": 300.0,
        "energy_j": 900.0,
        "energy_source": "counter",
        "sm_clock_min_mhz": 1500,
        "sm_clock_median_mhz": 1740,
        "memory_clock_median_mhz": 3201,
        "temperature_max_c": 55,
        # Idling slows nothing that matters.
        "throttled": 0.5,
        "reasons": {
            "power_cap": 0.5,
            "hardware": 0.0,
            "software_thermal": 0.5,
            "hardware_thermal": 0.0,
            "power_brake": 0.0,
        },
    }
    assert json.loads(json.dumps(power.summary())) == power.summary()
    assert gpu.closed == 1


def test_without_a_counter_power_is_integrated() -> None:
    power = sampler(FakeGpu(power_w=[100.0, 300.0]), iter([10.0, 14.0]))
    power.start()
    power.stop()
    summary = power.summary()
    assert summary is not None
    assert (summary["energy_j"], summary["energy_source"]) == (800.0, "integrated")
    assert (summary["throttled"], summary["reasons"], summary["sm_clock_min_mhz"]) == (None, {}, None)


def test_a_driver_that_tells_nothing() -> None:
    with sampler(FakeGpu()) as power:
        pass
    summary = power.summary()
    assert summary is not None
    assert {summary[name] for name in ("power_mean_w", "power_max_w", "energy_j", "energy_source")} == {None}


def test_without_a_gpu_there_is_nothing_to_say() -> None:
    power = sampler(None)
    power.stop()
    assert power.start().summary() is None
    power.stop()


def test_the_thread_reads_on_its_own_until_it_is_stopped() -> None:
    gpu = FakeGpu(power_w=[1.0, 2.0, 3.0])
    power = sampler(gpu, every_s=1e-3).start()
    assert power.start() is power
    for _ in range(5):
        assert gpu.looks.acquire(timeout=30)
    power.stop()
    power.stop()
    assert not any(thread.name == "power" for thread in threading.enumerate())
    summary = power.summary()
    assert summary is not None
    # As many as were seen, and the one at the end.
    assert summary["readings"] >= 6
    assert summary["power_max_w"] == 3.0
    assert gpu.closed == 1
    power.start()
    power.stop()
    again = power.summary()
    assert again is not None
    assert again["power_max_w"] == 3.0
    assert gpu.closed == 2


class NVMLError(Exception):
    pass


def unknown(*arguments: object) -> None:
    raise NVMLError


def test_power_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    energy_mj = iter([3000, 5000])
    module = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: log.append("init"),
        nvmlShutdown=lambda: log.append("shutdown"),
        nvmlDeviceGetHandleByUUID=lambda name: name,
        nvmlSystemGetDriverVersion=unknown,
        nvmlSystemGetCudaDriverVersion=unknown,
        nvmlDeviceGetClockInfo=lambda handle, clock: 1000 + clock,
        nvmlDeviceGetPowerUsage=lambda handle: 612_500,
        nvmlDeviceGetTemperature=unknown,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(energy_mj),
        nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 0x4,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with PowerSampler("GPU-1", every_s=1e6) as power:
        pass
    summary = power.summary()
    assert summary is not None
    assert (summary["power_mean_w"], summary["sm_clock_min_mhz"], summary["memory_clock_median_mhz"]) == (
        612.5,
        1001,
        1002,
    )
    assert (summary["energy_j"], summary["energy_source"]) == (2.0, "counter")
    assert (summary["throttled"], summary["temperature_max_c"]) == (1.0, None)
    assert (log[0], log[-1]) == ("init", "shutdown")
    module.nvmlDeviceGetHandleByUUID = unknown
    log.clear()
    assert nvml.open_gpu("2") is None
    # Each use of NVML that began is ended.
    assert log == ["init", "shutdown"]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.open_gpu("2") is None
