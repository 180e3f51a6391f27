"""Launches that have cores in common: what is read from co-runs, which of them answers, and what an estimate says."""

from __future__ import annotations

from typing import Any

import pytest

from profiler import Work, fitted
from profiler.commoncores import HALVED, CommonCores, Shared, shared
from profiler.fitting import fit_device
from profiler.profile import Profile
from tests.test_fitted import PROVENANCE, TINY, rows_of_tiny


def co_run(decodes: bool, sms: int, beside_sms: int, slowdown: float) -> dict[str, float]:
    return {"decodes": float(decodes), "sms": sms, "beside_sms": beside_sms, "slowdown": slowdown}


def test_of_like_co_runs_the_median_counts_and_nobody_gains() -> None:
    """On four cores. Decode on all of them beside one: 4, 5 and 9 times as long; prefill on the one is not slowed."""
    table = [co_run(True, 4, 1, slowdown) for slowdown in (9.0, 4.0, 5.0)]
    table += [co_run(False, 1, 4, 0.9), co_run(True, 1, 3, 1.1)]
    assert shared(table, 4) == (Shared(False, 0.25, 1.0, 1.0), Shared(True, 1.0, 0.25, 5.0))


def test_the_nearest_shares_of_the_kind_answer() -> None:
    """Measured with all of eight cores beside two, and beside all, and the other way round; asked of a half of them."""
    common = CommonCores(4, [Shared(True, 1.0, 0.25, 4.0), Shared(True, 1.0, 1.0, 3.0), Shared(False, 0.25, 1.0, 1.25)])
    assert common.slowdown(True, 4, 1) == 4.0
    assert common.slowdown(True, 3, 2) == 4.0, "log 4/3 + log 2 to (4, 1) as to (4, 4): the first"
    assert common.slowdown(True, 3, 3) == 3.0
    assert common.slowdown(False, 4, 4) == 1.25, "its kind before its shares"
    assert CommonCores(4).slowdown(True, 4, 1) == HALVED


def test_an_estimate_takes_what_was_measured_of_cores_in_common() -> None:
    """Decode on 132 cores takes four times as long beside a prefill on 64 of them, which takes 1.5 times as long."""
    decode, prefill = Work((), 8, 8 * 256, layers=2, head=False), Work(((512, 0),), layers=2, head=False)
    of_decode = {"kernel": "decode_layers", "decode_requests": 8, "decode_context_tokens": 256, "layers": 2}
    of_prefill = {
        "kernel": "prefill_layers", "sequences": 1, "new_tokens": 512, "cached_tokens": 0, "layers": 2,
    }  # fmt: skip

    def row(shape: dict[str, Any], sms: int, latency_s: float, beside: dict[str, Any], beside_sms: int) -> Any:
        company: dict[str, Any] = {f"beside_{name}": value for name, value in beside.items() if name != "kernel"}
        company |= {"beside": beside["kernel"], "beside_sms": beside_sms} if beside else {}
        return {**shape, "sms": sms, "latency_s": latency_s, "dtype": "fp32", **company}

    rows = [
        row(of_decode, 132, 1e-3, {}, 0),
        row(of_decode, 132, 4e-3, of_prefill, 64),
        row(of_decode, 68, 2e-3, {}, 0),
        row(of_decode, 68, 2e-3, of_prefill, 64),
        row(of_prefill, 64, 2e-3, {}, 0),
        row(of_prefill, 64, 3e-3, of_decode, 132),
    ]
    cpu = PROVENANCE.model_copy(update={"device": "cpu"})
    calibration = fit_device(Profile.of([*({**one, "dtype": "fp32"} for one in rows_of_tiny()), *rows], cpu))
    model = fitted(TINY, calibration)
    for work, sms, beside, beside_sms, slowdown in ((decode, 132, prefill, 64, 4.0), (prefill, 64, decode, 132, 1.5)):
        alone_s = model.device_seconds(work, sms)
        together_s = model.estimate(work, sms, beside, beside_sms).seconds - model.host_seconds(work)
        assert together_s == pytest.approx(slowdown * alone_s)
    assert calibration.contention.decode_any == pytest.approx(0), "of disjoint cores alone"
