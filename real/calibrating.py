"""The latency model of a validation: given, fitted to a given profile, or to one measured first."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from profiler.devicecalibration import DeviceCalibration, load_calibration
from profiler.holdout import fit_with_errors, fitting_steps
from profiler.measure.campaign import Settings as Campaign
from profiler.measure.campaign import measure
from profiler.profile import Profile, load_profile
from real.layout import Layout
from real.plan import Plan
from real.telling import Teller


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A latency model, where it lies, and the profile behind it, None where that is not known."""

    model: DeviceCalibration
    path: Path
    profile: Profile | None


def calibrated(plan: Plan, layout: Layout, teller: Teller) -> Calibrated:
    """Measures and fits what is not there yet.

    Raises ValueError for a profile or model of another device than the plan's.
    """
    if plan.latency is not None:
        path = Path(plan.latency)
        model = load_calibration(path)
        _check_device(plan, plan.latency, model.device.name, model.device.sms)
        return Calibrated(model, path, None)
    profile = _profile(plan, layout, teller)
    _check_device(plan, plan.profile or str(layout.profile), profile.provenance.device, profile.provenance.sms)
    return Calibrated(_fitted(plan, profile, layout, teller), layout.model, profile)


def known(plan: Plan, layout: Layout) -> Calibrated:
    """What a validation was made with, wherever the device is now. Raises ValueError where that is gone."""
    path = layout.model if plan.latency is None else Path(plan.latency)
    return Calibrated(load_calibration(path), path, None)


def _profile(plan: Plan, layout: Layout, teller: Teller) -> Profile:
    if plan.profile is not None:
        return load_profile(Path(plan.profile))
    done = layout.profile.with_suffix(".parquet")
    if done.exists():
        return load_profile(done)
    settings = Campaign(plan.device, plan.model, layout.profile, quick=plan.quick)
    with teller.stage("measuring the device") as begin:
        return measure(settings, begin).profile


def _fitted(plan: Plan, profile: Profile, layout: Layout, teller: Teller) -> DeviceCalibration:
    if layout.model.exists():
        there = load_calibration(layout.model)
        if there.provenance.get("rows_sha256") != profile.provenance.rows_sha256:
            raise ValueError(
                f"{layout.model} is not fitted to {plan.profile or layout.profile}; remove it to have one fitted, or "
                f"give it by --latency-model"
            )
        return there
    with teller.stage("fitting") as begin:
        found = fit_with_errors(
            profile, keep_points=True, quick=True, progress=begin(fitting_steps(profile, quick=True))
        )
    found.save(layout.model)
    return found


def _check_device(plan: Plan, source: str, device: str, sms: int) -> None:
    here = "cpu" if plan.device == "cpu" else _gpu()
    if device != here:
        raise ValueError(f"{source} is of {device}, and this device is {here}; leave it out to measure this one")
    cores = len(os.sched_getaffinity(0))
    if here == "cpu" and sms != cores:
        raise ValueError(f"{source} is of {sms} cores, and this process may use {cores}; leave it out to measure these")


def _gpu() -> str:
    from profiler.measure.shares_cuda import cuda_runtime, device_name

    return device_name(cuda_runtime(0).properties.name)
