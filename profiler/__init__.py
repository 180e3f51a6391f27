"""Devices, models, kernels, and how long a launch takes. Imports nothing else of this project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from profiler.kernels import Kernel, Shard
from profiler.kerneltime import KernelTime
from profiler.latency import Estimate, LatencyModel, Source
from profiler.presets import DEVICES, MODELS, device, model
from profiler.roofline import Efficiencies, RooflineModel, roofline
from profiler.specs import DeviceSpec, DType, ModelSpec
from profiler.work import Overlap, Work

if TYPE_CHECKING:
    from profiler.fittedmodel import FittedModel, fitted

__all__ = [
    "DEVICES",
    "MODELS",
    "DType",
    "DeviceSpec",
    "Efficiencies",
    "Estimate",
    "FittedModel",
    "Kernel",
    "KernelTime",
    "LatencyModel",
    "ModelSpec",
    "Overlap",
    "RooflineModel",
    "Shard",
    "Source",
    "Work",
    "device",
    "fitted",
    "model",
    "roofline",
]


def __getattr__(name: str) -> Any:
    # Fitted models need numpy; listing devices does not.
    if name in ("FittedModel", "fitted"):
        from profiler import fittedmodel

        return getattr(fittedmodel, name)
    raise AttributeError(f"module 'profiler' has no attribute {name!r}")
