"""Devices, models, kernels, and how long a launch takes. Imports nothing else of this project."""

from profiler.fitted import FittedModel, fitted
from profiler.kernels import Kernel, Shard
from profiler.kerneltime import KernelTime
from profiler.latency import Estimate, LatencyModel, Source
from profiler.presets import DEVICES, MODELS, device, model
from profiler.roofline import Efficiencies, RooflineModel, roofline
from profiler.specs import DeviceSpec, DType, ModelSpec
from profiler.work import Work

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
    "RooflineModel",
    "Shard",
    "Source",
    "Work",
    "device",
    "fitted",
    "model",
    "roofline",
]
