"""Causes of a simulation's error: a world made wrong in one known way is found to be wrong in that way alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from profiler.latency import LatencyModel
from profiler.work import Work
from real.attribution import Attribution, attribute
from real.comparison import Cell
from real.corrections import CorrectedModel, Corrections
from sim.simulate import prepare
from tests.toys import toy_latency
from tests.worlds import SETTINGS, config, logged, prepared, simulated, world


def found(policy: str, **planted: Any) -> Attribution:
    cell = Cell(policy=policy, rate=1.0, real=(world(policy, **planted),), simulated=simulated(policy))
    attribution = attribute(cell, prepared(policy))
    assert attribution is not None
    return attribution


PARTS = ("host", "kernels", "contention", "rest")


@pytest.mark.parametrize("policy", SETTINGS)
def test_a_world_as_simulated_has_nothing_to_explain(policy: str) -> None:
    for cause in found(policy).causes.values():
        assert cause.error == 0
        assert cause.shares() is None
        for part in PARTS:
            assert abs(getattr(cause, part)) < 1e-4 * cause.measured, (part, cause)


@pytest.mark.parametrize("policy", SETTINGS)
def test_a_slow_host_is_the_hosts_fault(policy: str) -> None:
    attribution = found(policy, host_s=2e-3)
    assert all(seconds == pytest.approx(2e-3, rel=1e-3) for seconds in attribution.corrections.host_s.values())
    for metric, cause in attribution.causes.items():
        shares = cause.shares()
        assert shares is not None
        assert shares["host"] == pytest.approx(1.0, abs=0.05), (metric, shares)
        assert sum(shares.values()) == pytest.approx(1.0, rel=1e-9)
    assert attribution.causes["tpot_s"].host > 2e-3  # every token waits for one launch at least


@pytest.mark.parametrize(("policy", "sms"), [("bullet", None), ("disaggregation", 108), ("one device", 54)])
def test_slow_kernels_of_one_kind_are_found_there(policy: str, sms: int | None) -> None:
    attribution = found(policy, kernels={("decode", sms): 1.2})
    factors = attribution.corrections.kernels
    assert factors["decode", sms or 108] == pytest.approx(1.2, rel=1e-3)
    assert all(factor == pytest.approx(1.0, rel=1e-3) for (kind, _), factor in factors.items() if kind != "decode")
    for metric in ("tpot_s", "e2e_s"):
        shares = attribution.causes[metric].shares()
        assert shares is not None
        assert shares["kernels"] == pytest.approx(1.0, abs=0.02), (metric, shares)


def test_slow_prefill_kernels_show_in_ttft() -> None:
    attribution = found("bullet", kernels={("prefill", None): 1.2})
    assert attribution.corrections.kernels["prefill", None] == pytest.approx(1.2, rel=1e-3)
    shares = attribution.causes["ttft_s"].shares()
    assert shares is not None
    assert shares["kernels"] == pytest.approx(1.0, abs=0.02), shares


@pytest.mark.parametrize("policy", ["bullet", "one device"])
def test_contention_is_found_beside_others(policy: str) -> None:
    attribution = found(policy, contention={("decode", None): 1.3})
    factors = attribution.corrections.contention
    assert factors["decode", None] == pytest.approx(1.3, rel=0.02)
    assert factors["prefill", None] == pytest.approx(1.0, rel=0.02)
    for metric in ("tpot_s", "e2e_s"):
        shares = attribution.causes[metric].shares()
        assert shares is not None
        assert shares["contention"] == pytest.approx(1.0, abs=0.05), (metric, shares)


def test_three_faults_at_once_are_told_apart() -> None:
    attribution = found(
        "bullet",
        host_s=1e-3,
        kernels={("decode", None): 1.2, ("prefill", None): 0.9},
        contention={("decode", None): 1.3},
    )
    known = attribution.corrections
    assert known.host_s["decode"] == pytest.approx(1e-3, rel=1e-3)
    assert known.kernels["decode", None] == pytest.approx(1.2, rel=0.02)
    assert known.kernels["prefill", None] == pytest.approx(0.9, rel=0.02)
    assert known.contention["decode", None] == pytest.approx(1.3, rel=0.02)
    tpot = attribution.causes["tpot_s"]
    assert min(tpot.host, tpot.kernels, tpot.contention) > 0
    assert abs(tpot.rest) < 0.05 * tpot.error
    assert sum(getattr(tpot, part) for part in PARTS) == pytest.approx(tpot.error, rel=1e-9)


def test_what_the_model_holds_of_the_host_counts_once() -> None:
    """A model whose constants have 0.3 ms for the world outside the device, in a world where that takes 2 ms."""
    real = (world("chunked", 2e-3),)
    cell = Cell(policy="chunked", rate=1.0, real=real, simulated=simulated("chunked"), outside_s={"mixed": 3e-4})
    attribution = attribute(cell, prepared("chunked"))
    assert attribution is not None
    assert attribution.corrections.host_s["mixed"] == pytest.approx(2e-3 - 3e-4, rel=1e-3)


def test_what_the_simulation_knows_of_host_and_pace_is_no_error() -> None:
    """The policy of the real run planned with the fitted model; the simulation runs by it at the pace of the device."""
    host_s = 1e-3
    plan = {"launch_overhead_s": 5e-5 + host_s}
    paced = plan | {"pace": {"prefill": [(132, 1.3)], "decode": [(132, 1.1)]}}
    simulation = prepare(config("bullet", latency=paced, estimator=plan))
    real = logged(prepare(config("bullet", latency=plan)), simulation.latency, host_s)
    same = replace(logged(simulation, simulation.latency, 0.0), launches=None)
    attribution = attribute(
        Cell(
            policy="bullet",
            rate=1.0,
            real=(real,),
            simulated=same,
            outside_s=dict.fromkeys(("prefill", "decode"), host_s),
        )
    )
    assert attribution is not None
    known = attribution.corrections
    assert known.host_s == pytest.approx({"prefill": 0.0, "decode": 0.0}, abs=1e-7)
    assert known.kernels == pytest.approx(dict.fromkeys(known.kernels, 1.0), rel=2e-3)
    assert known.contention == pytest.approx(dict.fromkeys(known.contention, 1.0), rel=0.05)
    for cause in attribution.causes.values():
        assert cause.error == 0
        assert abs(cause.kernels) < 2e-3 * cause.measured


def test_corrections_by_hand() -> None:
    inner = toy_latency(prefill_token_s=0.01, decode_step_s=0.1, shared_slowdown=2.0, transfer_token_s=0.001)
    known = Corrections(
        host_s={"decode": 0.05, "transfer": 0.5},
        kernels={("decode", 4): 1.5, ("decode", None): 3.0},
        contention={("prefill", None): 1.25},
        outside_s={"decode": 0.02, "prefill": 0.02},
    )
    truth: LatencyModel = CorrectedModel(inner=inner, corrections=known)
    decode, prefill = Work(decode_requests=2, decode_context_tokens=9), Work(prefill=((10, 0),))
    assert truth.estimate(decode, 4).seconds == pytest.approx((0.1 - 0.02) * 1.5 + 0.02 + 0.05)
    assert truth.estimate(decode, 5).seconds == pytest.approx((0.1 - 0.02) * 3.0 + 0.02 + 0.05)
    assert truth.estimate(prefill, 5).seconds == pytest.approx(0.1)
    assert truth.estimate(prefill, 5, decode, 4).seconds == pytest.approx((0.2 - 0.02) * 1.25 + 0.02)
    assert truth.estimate(Work(kv_transfer_tokens=100), 1).seconds == pytest.approx(0.1 + 0.5)
    assert CorrectedModel(inner=inner, corrections=Corrections()).estimate(prefill, 5) == inner.estimate(prefill, 5)


def test_without_launches_there_is_nothing_to_go_by() -> None:
    side = simulated("chunked")
    assert attribute(Cell(policy="chunked", rate=1.0, real=(side,), simulated=side)) is None
