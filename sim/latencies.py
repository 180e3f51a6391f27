"""Which latency model a run's settings mean."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from profiler.composition import ProductFactors
from profiler.devicecalibration import DeviceCalibration, built_in, load_calibration
from profiler.fittedmodel import FittedModel, fitted
from profiler.kernelsum import KernelSumModel
from profiler.presets import device as device_preset
from profiler.presets import model as model_preset
from profiler.roofline import roofline
from profiler.specs import DeviceSpec, ModelSpec
from sim.between import BetweenSteps
from sim.config import LatencySettings, RunConfig
from traces import hashing

ROOFLINE = "roofline"
FITTED = "fitted"

_NOT_OF_THE_MODEL = ("model", "model_sha256", "pace", "link_bytes_per_s", *BetweenSteps._fields)
_SHARES = ("gemm", "attention", "bandwidth")


def latency_model(config: RunConfig, chosen: LatencySettings | None = None) -> KernelSumModel:
    """The latency model that ``config`` means: fitted to its device, where there is one, else the roofline.

    ``chosen`` are its settings, ``config.latency`` unless given. With ``instance_sms`` its device is that part of the
    one named. Raises ValueError for names, files and settings that do not go together.
    """
    settings = (chosen or config.latency).model_dump(exclude_none=True)
    source, sha256, pace, link, *_ = (settings.pop(name, None) for name in _NOT_OF_THE_MODEL)
    spec = _model(config, settings)
    shares = {name: settings.pop(name) for name in _SHARES if name in settings}
    calibration = _calibration(source, sha256, config.device)
    if calibration is None:
        model: KernelSumModel = _roofline(spec, _linked(device_preset(config.device), link), config, shares)
    elif shares:
        name = next(iter(shares))
        raise ValueError(
            f"latency.{name} is an efficiency of the roofline, and {config.device} has a fitted model;"
            f" add model={ROOFLINE} to the latency settings, or leave {name} out"
        )
    else:
        if link is not None:
            calibration = dataclasses.replace(calibration, device=_linked(calibration.device, link))
        model = fitted(spec, calibration, config.tensor_parallel)
    return _on_instance(_at_pace(dataclasses.replace(model, **settings), pace), config.instance_sms)


def _at_pace(model: KernelSumModel, pace: float | dict[str, Any] | None) -> KernelSumModel:
    if pace is None:
        return model
    everywhere = ((model.device.sms, pace),)
    curves = (pace["prefill"], pace["decode"]) if isinstance(pace, dict) else (everywhere, everywhere)
    costs = model.layer_costs.at_pace(*map(tuple, curves))
    given = [name for name in ("products", "losses") if isinstance(pace, dict) and pace[name]]
    if not isinstance(pace, dict) or not given:
        return dataclasses.replace(model, layer_costs=costs)
    if not isinstance(model, FittedModel):
        raise ValueError(
            f"latency.pace.{given[0]} is of a measured device, and {model.device.name} has the roofline here; "
            f"leave it out, or give a fitted model"
        )
    calibration = model.calibration.with_losses(pace["losses"])
    if pace["products"]:
        calibration = calibration.with_products(ProductFactors.read(pace["products"]))
    return dataclasses.replace(model, layer_costs=costs, calibration=calibration)


def _on_instance(model: KernelSumModel, sms: int | None) -> KernelSumModel:
    if sms is None:
        return model
    name, total = model.device.name, model.device.sms
    if sms > total:
        raise ValueError(
            f"instance_sms is {sms} and {name} has {total} SMs; give 1 to {total}, or leave it out for all"
        )
    return model.on_part(sms)


def _model(config: RunConfig, settings: dict[str, Any]) -> ModelSpec:
    chosen = {name: settings.pop(name) for name in ("dtype", "kv_dtype") if name in settings}
    return dataclasses.replace(model_preset(config.model), **chosen)


def _linked(device: DeviceSpec, bytes_per_s: float | None) -> DeviceSpec:
    return device if bytes_per_s is None else dataclasses.replace(device, link_bytes_per_s=bytes_per_s)


def _roofline(spec: ModelSpec, device: DeviceSpec, config: RunConfig, shares: dict[str, float]) -> KernelSumModel:
    model = roofline(spec, device, config.tensor_parallel)
    return dataclasses.replace(model, efficiencies=dataclasses.replace(model.efficiencies, **shares))


def _calibration(source: str | None, sha256: str | None, device: str) -> DeviceCalibration | None:
    """The fitted model of a device, from a file or the package; None for the roofline."""
    if source == ROOFLINE:
        return None
    if source in (None, FITTED):
        found = built_in(device_preset(device).name)
        if found is None and source == FITTED:
            raise ValueError(f"no fitted model of {device} is built in; profile and fit one, or use model={ROOFLINE}")
        return found
    _check_unchanged(source, sha256)
    calibration = load_calibration(Path(source))
    if calibration.device.name.lower() != device.lower():
        raise ValueError(f"{source} is a latency model of {calibration.device.name}, and device is {device}; give that")
    return calibration


def stamped(latency: LatencySettings) -> LatencySettings:
    """The settings with the hash of the model file that they name, if they name one."""
    if latency.model in (None, ROOFLINE, FITTED):
        return latency
    return latency.model_copy(update={"model_sha256": hashing.sha256(Path(latency.model))})


def _check_unchanged(source: str, sha256: str | None) -> None:
    if sha256 is None or not Path(source).is_file():
        return
    found = hashing.sha256(Path(source))
    if found != sha256:
        raise ValueError(
            f"{source} is not the latency model these settings were made with (SHA-256 {found}, expected {sha256}); "
            f"give that model, or remove latency.model_sha256"
        )
