"""From a profile to a latency model of its device: every op that was measured, and what is assumed of the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from profiler.calibration import OpCalibration
from profiler.cpu import cpu_device
from profiler.devicecalibration import (
    LARGEST_SLOWDOWN,
    LEAST_SLOWDOWN,
    Bandwidth,
    Composition,
    Contention,
    DeviceCalibration,
    Host,
    Unmeasured,
)
from profiler.estimators import CalibratedRoofline, rows_of
from profiler.fittedmodel import FittedModel, fitted
from profiler.layerfit import layer_costs, product_factors, timed, work_of
from profiler.losses import CoRun, losses
from profiler.mixed import MixedAttention
from profiler.presets import DEVICES
from profiler.presets import model as model_preset
from profiler.profile import LAYERS, Profile, rows_digest
from profiler.specs import DeviceSpec
from profiler.structure import AXES, Floats

ASSUMED_BANDWIDTH = {
    "A100-80G": (18.0, 1.0),
    "H100": (34.0, 1.5),
    "H200": (49.0, 1.5),
}
"""(N_d, sharpness) by which decode slows down on fewer SMs, fitted to curves of an A100 and an H800 by
benchmarks/bandwidth.py; the H200's knee is moved by its bandwidth as its specification's is. Elsewhere the A100's shape
with the knee scaled alike."""

RATIO_DIGITS = 3


Progress = Callable[[str], None]


def device_of(profile: Profile) -> DeviceSpec:
    """The device that a profile measured. Raises ValueError where it is neither built in nor a CPU."""
    found = profile.provenance
    if found.device == "cpu":
        return cpu_device(
            found.sms, flops=_ceiling(profile, "fp32_flops"), bytes_per_s=_ceiling(profile, "dram_bytes_per_s")
        )
    for device in DEVICES:
        if device.name == found.device:
            if device.sms != found.sms:
                raise ValueError(
                    f"the profile is of {found.sms} SMs of {device.name}, which has {device.sms}: another device, or a "
                    f"part of one; profile the whole device"
                )
            return device
    known = ", ".join(device.name for device in DEVICES)
    raise ValueError(f"the profile is of {found.device!r}, whose peaks are not known; known: {known}, cpu")


def _ceiling(profile: Profile, name: str) -> float | None:
    """What the device reached at best, where the profile says so."""
    ceilings = profile.provenance.settings.get("ceilings", {})
    value = ceilings.get(name) if isinstance(ceilings, dict) else ceilings
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e18:
        raise ValueError(
            f"the profile's settings.ceilings {name} is {value!r}; it must be a rate above 0: profile again"
        )
    return float(value)


def fit_device(
    profile: Profile,
    *,
    keep_points: bool = True,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Progress | None = None,
) -> DeviceCalibration:
    """A latency model of the profile's device.

    keep_points: keep the measured table and give it back exactly; without, the file holds fitted parameters only.
    settings: of the estimator, by op, where they differ from its defaults. Raises ValueError where the profile has no
    kernel to fit, or is of a device whose peaks are not known.
    """
    device = device_of(profile)
    _check_model(profile)
    bandwidth = _bandwidth(profile, device)
    curve = np.asarray(bandwidth.curve(device))

    def estimator(op: str) -> CalibratedRoofline:
        chosen = (settings or {}).get(op, {})
        return CalibratedRoofline(op, device, bandwidth=curve, keep_points=keep_points, **chosen)

    ops = _fitted_ops(profile, estimator, progress)
    calibration = DeviceCalibration(
        device=device,
        ops=ops,
        bandwidth=bandwidth,
        contention=Contention(device.contention_ceiling),
        host=_host(profile),
        mixed=_mixed(profile, device),
        # An element-wise kernel nobody timed takes no less than the smallest product.
        unmeasured=Unmeasured(floor_s=ops["gemm"].floor_s),
        provenance=_provenance(profile),
    )
    return _with_layers(calibration, profile)


def _fitted_ops(
    profile: Profile, estimator: Callable[[str], CalibratedRoofline], progress: Progress | None
) -> dict[str, OpCalibration]:
    """Every op that was measured. Raises ValueError, before anything is fitted, where products were not."""
    measured = {op: rows for op in AXES if not (rows := rows_of(profile, op)).empty}
    if "gemm" not in measured:
        raise ValueError("the profile has no gemm rows; matrix products are most of every launch: profile them too")
    ops = {}
    for op, rows in measured.items():
        if progress is not None:
            progress(op)
        ops[op] = estimator(op).fit(rows, rows["latency_s"]).freeze()
    return ops


def _check_model(profile: Profile) -> None:
    """Raises ValueError, before anything is fitted, where whole layers were measured of a model that is not found."""
    name = profile.provenance.model
    if name is None or not profile.rows["kernel"].isin(LAYERS).any():
        return
    try:
        model_preset(name)
    except ValueError as error:
        raise ValueError(
            f"the profile's whole layers are of model {name!r}: {error}; fit where that model is, or without these rows"
        ) from None


def _provenance(profile: Profile) -> dict[str, Any]:
    found = profile.provenance
    return {
        "device": found.device,
        "source": found.source,
        "origin": found.origin,
        "date": found.date,
        "model": found.model,
        "rows": len(profile.rows),
        "rows_sha256": rows_digest(profile.rows),
        "settings": found.settings,
        "versions": {name: version(name) for name in ("bulletsim", "scikit-learn", "numpy")},
    }


def _host(profile: Profile) -> Host:
    """Medians of the measured host times; what is assumed where they were not measured."""
    measured = {}
    for kernel in ("host_pass", "host_launch"):
        rows = profile.select(kernel)
        if not rows.empty:
            measured[kernel] = float(rows["latency_s"].median())
    if not measured:
        return Host()
    a_launch = measured.get("host_launch", Host().launch_s)
    a_pass = max(0.0, measured.get("host_pass", Host().pass_s) - a_launch)
    return Host(a_pass, a_launch, "measured")


def _mixed(profile: Profile, device: DeviceSpec) -> MixedAttention | None:
    """The ratios that measured rows give where mixed launches without a prefix, and both of their parts, were measured.

    Combinations that were not all measured have the ratio of their nearest neighbours in context, then in requests.
    None where there are fewer than eight.
    """
    names = ("attention_mixed", "attention_prefill", "attention_decode")
    mixed, prefill, decode = (rows[rows["sms"] == device.sms] for rows in map(profile.select, names))
    heads = ["heads", "kv_heads", "head_dim"]
    alone = prefill[(prefill["cached_tokens"] == 0) & (prefill["sequences"] == 1)]
    first, second = ["new_tokens", *heads], ["decode_requests", "decode_context_tokens", *heads]
    rows = mixed[mixed["cached_tokens"] == 0]
    rows = rows.merge(alone[[*first, "latency_s"]], on=first, suffixes=("", "_p"))
    rows = rows.merge(decode[[*second, "latency_s"]], on=second, suffixes=("", "_d"))
    if len(rows) < 8:
        return None
    rows["ratio"] = rows["latency_s"] / (rows["latency_s_p"] + rows["latency_s_d"])
    table = rows.pivot_table(index=["new_tokens", "decode_requests"], columns="decode_context_tokens", values="ratio")
    measured: Any = table.index
    whole: Any = pd.MultiIndex.from_product(measured.levels)
    filled = table.reindex(whole).ffill(axis=1).bfill(axis=1).ffill().bfill()
    return MixedAttention(
        tuple(map(float, measured.levels[0])),
        tuple(map(float, measured.levels[1])),
        tuple(map(float, filled.columns)),
        tuple(round(float(ratio), RATIO_DIGITS) for ratio in filled.to_numpy().ravel()),
    )


def _bandwidth(profile: Profile, device: DeviceSpec) -> Bandwidth:
    """The curve through copies on several shares, or the assumed one where there are none."""
    copies = profile.select("copy")
    if copies["sms"].nunique() >= 3:
        rates = (copies["bytes"] / copies["latency_s"]).groupby(copies["sms"]).max()
        return _curve_through(rates.index.to_numpy(dtype=np.float64), rates.to_numpy(dtype=np.float64), device)
    scale = device.bandwidth_knee_sms / 30
    knee, sharpness = ASSUMED_BANDWIDTH.get(device.name, (18.0 * scale, 1.0))
    return Bandwidth(knee, sharpness)


def _curve_through(sms: Floats, rates: Floats, device: DeviceSpec) -> Bandwidth:
    shares = np.log(np.maximum.accumulate(rates) / rates.max())

    def error(logs: Floats) -> float:
        curve = np.asarray(Bandwidth(*np.exp(logs)).curve(device)) / device.dram_bytes_per_s
        return float(np.square(np.log(curve[sms.astype(int)]) - shares).sum())

    start = np.log([device.bandwidth_knee_sms, 2.0])
    found = minimize(error, start, method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-8})
    knee, sharpness = np.exp(np.clip(found.x, np.log([0.5, 0.5]), np.log([device.sms, 16.0])))
    return Bandwidth(float(knee), float(sharpness), "measured")


def _with_layers(calibration: DeviceCalibration, profile: Profile) -> DeviceCalibration:
    """Whole layers, alone and beside each other, against the sum of their kernels."""
    name = profile.provenance.model
    rows = profile.rows[profile.rows["kernel"].isin(LAYERS)]
    if name is None or rows.empty:
        return calibration
    model = fitted(name, calibration, profile.provenance.tensor_parallel)
    alone = rows[rows["beside"] == ""]
    host_s = calibration.host_in_layers_s
    costs = layer_costs(model, alone, host_s)
    products = product_factors(replace(model, layer_costs=costs), timed(alone, host_s))
    calibration = replace(calibration, composition=Composition(costs, "measured", products))
    beside = rows[rows["beside"].isin(LAYERS)]
    if beside.empty:
        return calibration
    model = fitted(name, calibration, profile.provenance.tensor_parallel)
    return replace(calibration, contention=_contention(model, alone, beside))


def _contention(model: FittedModel, alone: pd.DataFrame, beside: pd.DataFrame) -> Contention:
    """Losses that best explain the co-runs, and these as they were measured.

    Against the same launch alone on the same share, so errors of the kernels cancel.
    """
    times = {_key(row): float(row["latency_s"]) for row in alone.to_dict("records")}
    runs: dict[str, list[CoRun]] = {kind: [] for kind in LAYERS}
    table = []
    for row in beside.to_dict("records"):
        reference = times.get(_key(row))
        if reference is None:
            continue
        slowdown = _slowdown(row, reference)
        sms, other_sms = int(row["sms"]), int(row["beside_sms"])
        other = work_of(row, "beside_")
        runs[str(row["kernel"])].append(CoRun(work_of(row), sms, other, other_sms, slowdown))
        table.append({"decodes": float(row["kernel"] == "decode_layers"), "sms": sms, "beside_sms": other_sms,
                      "tokens": float(work_of(row).new_tokens), "beside_tokens": float(other.new_tokens),
                      "slowdown": slowdown})  # fmt: skip
    prefill_any, prefill = losses(model, runs["prefill_layers"])
    decode_any, decode = losses(model, runs["decode_layers"])
    return Contention(decode, prefill, decode_any, prefill_any, "measured", tuple(table))


def _slowdown(row: Mapping[Any, Any], alone_s: float) -> float:
    """How many times as long as alone a co-run took."""
    found = float(row["latency_s"]) / alone_s
    if not LEAST_SLOWDOWN <= found <= LARGEST_SLOWDOWN:
        raise ValueError(
            f"{row['kernel']} of {work_of(row).new_tokens} tokens on {row['sms']} SMs, beside {row['beside']} on "
            f"{row['beside_sms']}: latency_s is {row['latency_s']:g}, {found:g} times that alone, and at most "
            f"{LARGEST_SLOWDOWN:g} and at least {LEAST_SLOWDOWN:g} times is possible; measure it again"
        )
    return found


def _key(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    return (row["kernel"], work_of(row), int(row["sms"]))
