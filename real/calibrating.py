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
        found = Calibrated(load_calibration(path), path, None)
    else:
        profile = _profile(plan, layout, teller)
        found = Calibrated(_fitted(profile, layout, teller), layout.model, profile)
    _check_device(plan, found)
    return found


def _profile(plan: Plan, layout: Layout, teller: Teller) -> Profile:
    if plan.profile is not None:
        return load_profile(Path(plan.profile))
    done = layout.profile.with_suffix(".parquet")
    if done.exists():
        return load_profile(done)
    settings = Campaign(plan.device, plan.model, layout.profile, quick=plan.quick)
    with teller.stage("measuring the device") as begin:
        return measure(settings, begin).profile


def _fitted(profile: Profile, layout: Layout, teller: Teller) -> DeviceCalibration:
    if layout.model.exists():
        known = load_calibration(layout.model)
        if known.provenance.get("rows_sha256") == profile.provenance.rows_sha256:
            return known
    with teller.stage("fitting") as begin:
        found = fit_with_errors(
            profile, keep_points=True, quick=True, progress=begin(fitting_steps(profile, quick=True))
        )
    found.save(layout.model)
    return found


def _check_device(plan: Plan, found: Calibrated) -> None:
    device = found.model.device
    here = "cpu" if plan.device == "cpu" else _gpu()
    source = plan.profile or plan.latency or str(found.path)
    if device.name != here:
        raise ValueError(f"{source} is of {device.name}, and this device is {here}; leave it out to measure this one")
    cores = len(os.sched_getaffinity(0))
    if here == "cpu" and device.sms != cores:
        raise ValueError(
            f"{source} is of {device.sms} cores, and this process may use {cores}; leave it out to measure these"
        )


def _gpu() -> str:
    from profiler.measure.shares_cuda import cuda_runtime, device_name

    return device_name(cuda_runtime(0).properties.name)
