"""What the driver says of a GPU: versions, clocks, power. All of it is for provenance; what is not told is left out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

MIB = 1 << 20


def facts(identifier: str) -> dict[str, Any]:
    """Of the GPU with this UUID, by the names that provenance uses; empty without NVML."""
    try:
        import pynvml  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        name = identifier if identifier.startswith("GPU-") else f"GPU-{identifier}"
        return _facts(pynvml, pynvml.nvmlDeviceGetHandleByUUID(name))
    except pynvml.NVMLError:
        return {}
    finally:
        pynvml.nvmlShutdown()


def _facts(nvml: Any, handle: Any) -> dict[str, Any]:
    questions: dict[str, Callable[[], Any]] = {
        "driver": nvml.nvmlSystemGetDriverVersion,
        "cuda_driver": nvml.nvmlSystemGetCudaDriverVersion,
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "sm_clock_max_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "power_limit_w": lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000,
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
    }
    found = {}
    for name, ask in questions.items():
        # A virtual machine or an old card answers some of them only.
        with suppress(nvml.NVMLError):
            answer = ask()
            found[name] = answer.decode() if isinstance(answer, bytes) else answer
    return found
