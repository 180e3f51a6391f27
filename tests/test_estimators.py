"""Estimators: scikit-learn's conventions, what is kept exactly, and devices whose efficiency is known."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from profiler import device
from profiler.calibration import OpCalibration
from profiler.estimators import (
    CANDIDATES,
    DEFAULTS,
    CalibratedRoofline,
    LogInterpolation,
    ShapeForest,
    clock_of,
    rows_of,
    shapes_of,
)
from profiler.kerneltime import KernelClock
from profiler.profile import Profile, Provenance
from profiler.structure import AXES, base_seconds, features, kernel_at

A100 = device("A100-80G")
SHARES = (27, 54, 108)
SHARE_COSTS = (1.15, 1.05, 1.0)
"""By how much a share of the toy device is slower than the formula says, beyond what the shape costs."""
FLOOR_S = 4e-6


def products(sms: tuple[int, ...] = (108,), sizes: tuple[int, ...] = (1024, 2048, 3072, 4096, 6144)) -> pd.DataFrame:
    rows = (16, 33, 64, 100, 128, 129, 200, 256, 400, 512, 700, 1024, 1500, 2048, 4096)
    table = pd.DataFrame(product(rows, sizes, sizes, sms), columns=["m", "n", "k", "sms"])
    return table.assign(dtype_bytes=2.0)


def seconds(X: pd.DataFrame) -> Any:
    """A device that reaches 60 to 85 % of the formula, the more the more rows, and less on few SMs."""
    base = base_seconds("gemm", shapes_of("gemm", X), clock_of(A100, {"gemm": FLOOR_S}), X["sms"].to_numpy())
    efficiency = 0.6 + 0.25 * X["m"] / (X["m"] + 512)
    cost = X["sms"].map(dict(zip(SHARES, SHARE_COSTS, strict=True)))
    return base / efficiency.to_numpy() * cost.to_numpy()


@pytest.fixture(scope="module")
def kept() -> tuple[pd.DataFrame, Any, CalibratedRoofline]:
    """Measured on three shares, a scatter of 3 % on top, points kept."""
    X = products(SHARES, (1024, 2048, 4096))
    y = seconds(X) * np.exp(np.random.default_rng(1).normal(0, 0.03, len(X)))
    return X, y, CalibratedRoofline("gemm", A100, iterations=40, keep_points=True).fit(X, y)


@pytest.mark.parametrize("name", CANDIDATES)
def test_estimators_follow_the_conventions_of_scikit_learn(name: str) -> None:
    estimator = CANDIDATES[name]("gemm", A100)
    assert estimator.get_params()["op"] == "gemm"
    copy = clone(estimator)
    assert copy is not estimator
    assert copy.get_params() == estimator.get_params()
    X = products(sizes=(1024, 2048, 4096))
    with pytest.raises(NotFittedError):
        estimator.predict(X)
    assert estimator.fit(X, seconds(X)) is estimator
    check_is_fitted(estimator)
    assert estimator.predict(X).shape == (len(X),)
    assert estimator.score(X, seconds(X)) > 0.9


def test_settings_are_the_ops_own_unless_given() -> None:
    found = CalibratedRoofline("attention_decode", A100, leaves=7)._settings()
    assert found == replace(DEFAULTS["attention_decode"], leaves=7)
    assert CalibratedRoofline("norm", A100)._settings().iterations > 0


def test_a_known_efficiency_is_found_again() -> None:
    X = products()
    held_out = np.zeros(len(X), dtype=bool)
    held_out[np.random.default_rng(0).permutation(len(X))[:75]] = True
    ours = CalibratedRoofline("gemm", A100).fit(X[~held_out], seconds(X[~held_out]))
    errors = np.abs(ours.predict(X[held_out]) / seconds(X[held_out]) - 1)
    assert np.median(errors) < 0.01
    assert np.quantile(errors, 0.9) < 0.04
    # The smallest launch takes its floor over an efficiency of 0.6.
    assert ours.freeze().floor_s == pytest.approx(FLOOR_S / 0.6, rel=0.5)


def test_a_width_nobody_measured_is_found_too() -> None:
    X = products()
    held_out = ((X["n"] == 3072) | (X["k"] == 3072)).to_numpy()
    ours = CalibratedRoofline("gemm", A100).fit(X[~held_out], seconds(X[~held_out]))
    assert np.median(np.abs(ours.predict(X[held_out]) / seconds(X[held_out]) - 1)) < 0.015


def test_shares_cost_what_they_cost() -> None:
    X = products(SHARES, (1024, 2048, 4096))
    found = CalibratedRoofline("gemm", A100, iterations=60).fit(X, seconds(X)).freeze()
    assert found.share_sms == SHARES
    # What the smallest products cost beyond the formula counts as their floor, which no share makes longer.
    assert np.exp(found.share_log) == pytest.approx(SHARE_COSTS, rel=0.07)


def test_points_are_given_back_exactly_on_every_share(kept: tuple[pd.DataFrame, Any, CalibratedRoofline]) -> None:
    X, y, model = kept
    assert model.predict(X) == pytest.approx(y, rel=1e-9)
    assert model.freeze().known(shapes_of("gemm", X)).all()
    again = OpCalibration.read("gemm", json.loads(json.dumps(model.freeze().document())))
    assert again.log_alpha(shapes_of("gemm", X), model.clock_) == pytest.approx(
        model.freeze().log_alpha(shapes_of("gemm", X), model.clock_), abs=1e-12
    )


def test_repeated_measurements_are_one_point_at_their_mean() -> None:
    X = products(sizes=(1024, 2048))
    twice = pd.concat([X, X], ignore_index=True)
    y = np.concatenate([seconds(X) * 1.1, seconds(X) / 1.1])
    model = CalibratedRoofline("gemm", A100, iterations=20, keep_points=True).fit(twice, y)
    assert model.predict(X) == pytest.approx(seconds(X), rel=1e-9)


def test_more_sms_are_never_slower(kept: tuple[pd.DataFrame, Any, CalibratedRoofline]) -> None:
    """The scatter of 3 % would have some shares slower than smaller ones."""
    X, _, model = kept
    found = model.freeze()
    clock = KernelClock(A100, model.clock_.flops, model.clock_.bandwidth, model.clock_.floors, {"gemm": SHARES})
    shapes = X[X["sms"] == 108].sample(40, random_state=0)
    alphas = np.exp(found.log_alpha(shapes_of("gemm", shapes), model.clock_))
    for (_, shape), row in zip(shapes.iterrows(), alphas.tolist(), strict=True):
        kernel = kernel_at("gemm", shape.to_dict(), A100.sms)._replace(alphas=tuple(row), source="measured")
        times = [clock.time(kernel, sms).seconds for sms in range(1, A100.sms + 1)]
        assert all(after <= before * (1 + 1e-12) for before, after in pairwise(times))


def test_frozen_parameters_predict_what_the_fitted_model_does(
    kept: tuple[pd.DataFrame, Any, CalibratedRoofline],
) -> None:
    X, y, _ = kept
    model = CalibratedRoofline("gemm", A100, iterations=40).fit(X, y)
    document = json.dumps(model.freeze().document())
    frozen = OpCalibration.read("gemm", json.loads(document))
    asked = products((108,), (1536, 5120))
    shapes = shapes_of("gemm", asked)
    clock = clock_of(A100, {"gemm": frozen.floor_s})
    alphas = np.exp(frozen.log_alpha(shapes, clock)[:, -1])
    assert base_seconds("gemm", shapes, clock, 108) * alphas == pytest.approx(model.predict(asked), rel=1e-12)
    assert json.dumps(frozen.document()) == document


def test_equal_seeds_give_equal_bytes(kept: tuple[pd.DataFrame, Any, CalibratedRoofline]) -> None:
    X, y, model = kept
    again = clone(model).fit(X, y)
    assert json.dumps(again.freeze().document()) == json.dumps(model.freeze().document())


def test_few_rows_have_one_efficiency() -> None:
    X = products(sizes=(2048,)).head(12)
    model = CalibratedRoofline("gemm", A100).fit(X, seconds(X))
    assert model.freeze().trees is None
    assert np.median(np.abs(model.predict(X) / seconds(X) - 1)) < 0.1


def test_what_larger_shapes_lack_in_efficiency_is_no_floor() -> None:
    """Three products, the smallest of which is no small one."""
    X = products(sizes=(4096,)).tail(3)
    base = base_seconds("gemm", shapes_of("gemm", X), clock_of(A100), 108)
    assert CalibratedRoofline("gemm", A100).fit(X, base * 1.6).freeze().floor_s < 1e-9


def test_each_dtype_gets_its_trees() -> None:
    h100 = device("H100")
    X = pd.concat([products(sizes=(1024, 2048, 4096)).assign(dtype_bytes=size) for size in (1.0, 2.0)])
    X["sms"] = h100.sms
    base = base_seconds("gemm", shapes_of("gemm", X), clock_of(h100, {"gemm": FLOOR_S}), h100.sms)
    y = base * np.where(X["dtype_bytes"] == 1, 1.6, 1.2)
    model = CalibratedRoofline("gemm", h100, iterations=30, leaves=7).fit(X, y)
    trees = model.freeze().trees
    assert trees is not None
    assert len(trees.roots) == 60
    assert np.median(np.abs(model.predict(X) / y - 1)) < 0.02


@pytest.mark.parametrize("op", AXES)
def test_every_op_has_features_without_holes(op: str) -> None:
    shapes = {name: np.array([1.0, 2.0, 128.0]) for name in AXES[op]}
    shapes |= {name: np.array([2.0, 1.0, 2.0]) for name in ("dtype_bytes",) if name in AXES[op]}
    base = base_seconds(op, shapes, clock_of(device("H100")), 132)
    assert (base > 0).all()
    assert np.isfinite(features(op, shapes, base, device("H100"))).all()


def test_interpolation_is_exact_at_its_points_and_along_one_line() -> None:
    X = products(sizes=(1024, 2048, 4096))
    model = LogInterpolation("gemm").fit(X, seconds(X))
    assert model.predict(X) == pytest.approx(seconds(X), rel=1e-9)
    line = X[X["k"] == 2048]
    assert np.isfinite(LogInterpolation("gemm").fit(line, seconds(line)).predict(X)).all()


def test_interpolation_beyond_its_range_grows_with_the_rows_at_most() -> None:
    X = products(sizes=(2048,))
    beyond = X.tail(1).assign(m=4 * X["m"].max())
    found = LogInterpolation("gemm").fit(X, seconds(X)).predict(beyond)[0] / seconds(X)[-1]
    assert 2 < found <= 4 * (1 + 1e-9)


def test_interpolation_keeps_dtypes_and_shares_apart() -> None:
    X = products(SHARES, (1024, 2048))
    both = pd.concat([X.assign(dtype_bytes=size) for size in (1.0, 2.0)], ignore_index=True)
    y = np.concatenate([seconds(X), 2 * seconds(X)])
    assert LogInterpolation("gemm").fit(both, y).predict(both) == pytest.approx(y, rel=1e-9)


def test_a_forest_repeats_itself() -> None:
    X = products(sizes=(1024, 2048))
    first, second = (ShapeForest("gemm", trees=5).fit(X, seconds(X)).predict(X) for _ in range(2))
    assert first.tolist() == second.tolist()


def test_a_device_is_needed() -> None:
    X = products(sizes=(1024,))
    with pytest.raises(ValueError, match="device is None; give the DeviceSpec"):
        CalibratedRoofline("gemm").fit(X, seconds(X))


def test_fp8_products_of_a_device_without_fp8_are_refused() -> None:
    X = products(sizes=(1024,))
    with pytest.raises(ValueError, match="A100-80G has no fp8 tensor cores"):
        CalibratedRoofline("gemm", A100).fit(X.assign(dtype_bytes=1.0), seconds(X))


def test_rows_of_a_cpu_count_as_16_bits() -> None:
    shape = {"kernel": "gemm", "m": 1, "n": 8, "k": 8, "sms": 1, "latency_s": 1e-6}
    rows = [{**shape, "dtype": dtype} for dtype in ("bf16", "fp8", "fp32")]
    beside = {**shape, "dtype": "bf16", "beside": "copy", "beside_sms": 1, "beside_bytes": 1}
    provenance = Provenance(device="toy", sms=2, source="measured", origin="made up", date="")
    assert rows_of(Profile.of([*rows, beside], provenance), "gemm")["dtype_bytes"].tolist() == [2.0, 1.0, 2.0]
