"""What the driver says of a GPU: versions, clocks, power. What it does not tell is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FACTS = (
    "driver",
    "cuda_driver",
    "sm_clock_mhz",
    "sm_clock_max_mhz",
    "memory_clock_mhz",
    "power_limit_w",
    "power_w",
    "temperature_c",
)
"""What provenance holds."""


class Gpu:
    """A GPU that NVML knows. All answers are of the moment."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._questions: dict[str, Callable[[], Any]] = {
            "driver": nvml.nvmlSystemGetDriverVersion,
            "cuda_driver": nvml.nvmlSystemGetCudaDriverVersion,
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "sm_clock_max_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "power_limit_w": lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000,
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
            "clock_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        }

    def ask(self, name: str) -> Any:
        """The answer; None where there is none: a virtual machine or an old card answers some questions only."""
        try:
            answer = self._questions[name]()
        except self._nvml.NVMLError:
            return None
        return answer.decode() if isinstance(answer, bytes) else answer

    def close(self) -> None:
        """Ends this use of NVML."""
        self._nvml.nvmlShutdown()


def open_gpu(identifier: str) -> Gpu | None:
    """The GPU with this UUID; None without NVML, or where it does not know the GPU."""
    try:
        import pynvml  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        name = identifier if identifier.startswith("GPU-") else f"GPU-{identifier}"
        return Gpu(pynvml, pynvml.nvmlDeviceGetHandleByUUID(name))
    except pynvml.NVMLError:
        pynvml.nvmlShutdown()
        return None


def facts(identifier: str) -> dict[str, Any]:
    """Of the GPU with this UUID, by the names that provenance uses; empty without NVML."""
    gpu = open_gpu(identifier)
    if gpu is None:
        return {}
    try:
        return {name: answer for name in FACTS if (answer := gpu.ask(name)) is not None}
    finally:
        gpu.close()
