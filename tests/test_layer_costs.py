"""What whole layers take beyond their kernels: found again from layers that were made to take it, and used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from profiler import FittedModel, Work
from profiler.composition import AS_ALONE, NOTHING, LayerCosts, ProductFactors
from profiler.devicecalibration import Composition, DeviceCalibration, built_in
from profiler.everyshare import sums
from profiler.fittedmodel import fitted
from profiler.kernels import Shard
from profiler.layerfit import LARGEST_FACTOR, Timed, layer_costs, product_factors, work_of
from profiler.profile import Profile
from profiler.shardcalibration import ShardCalibration
from profiler.times import added
from sim.config import RunConfig
from sim.latencies import latency_model
from tests.test_fitted import PROVENANCE, TINY, measured, tiny

DECODES = ((1, 64), (8, 256), (64, 512))
PREFILLS = ((64, 0), (512, 0), (2048, 1024))
SHARES = (64, 132)
LAYER_S = {64: 80e-6, 132: 30e-6}
PREFILL = {64: 1.05, 132: 1.2}
DECODE = {64: 1.1, 132: 1.4}

OUTSIDE_LAYERS = {"embedding", "final_norm", "lm_head", "sampling"}


def layers(model: FittedModel, host_s: float = 0.0, shapes: int = 3) -> pd.DataFrame:
    """Two layers of each shape on each share, in a world with these costs."""
    rows: list[dict[str, Any]] = []
    for sms in SHARES:
        for requests, context in DECODES[:shapes]:
            row = {
                "kernel": "decode_layers",
                "decode_requests": requests,
                "decode_context_tokens": context,
                "layers": 2,
            }
            rows.append({**row, "sms": sms, "factor": DECODE[sms]})
        for new, cached in PREFILLS[:shapes]:
            shape = {"sequences": 1, "new_tokens": new, "cached_tokens": cached, "layers": 2}
            rows.append({"kernel": "prefill_layers", **shape, "sms": sms, "factor": PREFILL[sms]})
    for row in rows:
        sms, summed = row["sms"], model.device_seconds(work_of(row), row["sms"])
        row["latency_s"] = row.pop("factor") * summed + 2 * LAYER_S[sms] + host_s
    return Profile.of([{**row, "dtype": "bf16"} for row in rows], PROVENANCE).rows


@pytest.mark.parametrize("host_s", [0.0, 2e-4])
def test_costs_are_found_again(host_s: float) -> None:
    """Whether layers were timed with the host's part of their launch or without."""
    model = tiny()
    found = layer_costs(model, layers(model, host_s), host_s)
    for curve, planted in zip(found, (LAYER_S, PREFILL, DECODE), strict=True):
        assert dict(curve) == pytest.approx(planted, rel=1e-4)


def test_few_layers_give_factors_alone() -> None:
    """Two launches cannot tell a time for each layer from two factors."""
    model = tiny()
    found = layer_costs(model, layers(model, shapes=1))
    assert [seconds for _, seconds in found.seconds] == [0.0, 0.0]
    rows = layers(model, shapes=1)
    for row in rows.to_dict("records"):
        factors = found.decode if row["kernel"] == "decode_layers" else found.prefill
        summed = model.device_seconds(work_of(row), int(row["sms"]))
        assert dict(factors)[int(row["sms"])] == pytest.approx(row["latency_s"] / summed)


def test_estimates_have_them_by_share_and_layer() -> None:
    plain = tiny()
    model = replace(plain, layer_costs=LayerCosts(*(tuple(each.items()) for each in (LAYER_S, PREFILL, DECODE))))
    decode = Work(decode_requests=8, decode_context_tokens=2048)
    prefill = Work(prefill=((512, 0),), layers=2, head=False)
    for sms, layer_s, factor in ((64, 80e-6, 1.1), (98, 55e-6, 1.25), (132, 30e-6, 1.4), (8, 80e-6, 1.1)):
        expected = factor * plain.device_seconds(decode, sms) + plain.model.layers * layer_s
        assert model.device_seconds(decode, sms) == pytest.approx(expected, rel=1e-9)
        # Not tabulated as a pass: with a head, and no layers left out.
        spelled = decode._replace(layers=plain.model.layers)
        assert model.device_seconds(spelled, sms) == pytest.approx(expected, rel=1e-9)
    assert model.device_seconds(prefill, 98) == pytest.approx(
        1.125 * plain.device_seconds(prefill, 98) + 2 * 55e-6, rel=1e-9
    )
    assert NOTHING.by_sms(132) is None


def test_a_pace_multiplies_costs_at_every_share() -> None:
    plain = tiny()
    costs = LayerCosts(*(tuple(each.items()) for each in (LAYER_S, PREFILL, DECODE)))
    prefill = Work(prefill=((512, 0),), layers=2, head=False)
    decode = Work(decode_requests=8, decode_context_tokens=2048)
    for before, base in ((NOTHING, plain), (costs, replace(plain, layer_costs=costs))):
        model = replace(plain, layer_costs=before.at_pace(((132, 1.2),), ((64, 1.5), (132, 1.1))))
        for sms, slower in ((64, 1.5), (132, 1.1)):
            assert model.device_seconds(decode, sms) == pytest.approx(
                slower * base.device_seconds(decode, sms), rel=1e-9
            )
        found, seconds = model.device_seconds(prefill, 132), 2 * dict(before.seconds).get(132, 0.0)
        kernels = base.device_seconds(prefill, 132) - seconds
        assert found == pytest.approx(1.2 * kernels + 1.1 * seconds, rel=1e-9)
    assert NOTHING.at_pace((), ()) == NOTHING


def test_costs_survive_their_file() -> None:
    costs = LayerCosts(((64, 1e-5),), (), ((64, 1.5), (132, 1.0)))
    assert LayerCosts.read(costs.document()) == costs
    assert LayerCosts.read({}) == NOTHING


FACTORS = ProductFactors(((72, ((1, 1.2), (16, 1.6), (64, 0.9))), (132, ((1, 1.1), (16, 1.3), (64, 0.8)))))


def in_layers(model: FittedModel, sms: int) -> list[Timed]:
    """Launches with the products of FACTORS, two of 64 tokens among them, and what ``model`` says of them."""
    works = [
        Work((), 1, 100, layers=2, head=False),
        Work((), 16, 400, layers=2, head=False),
        Work(((64, 0),), layers=2, head=False),
        Work((), 64, 640, layers=2, head=False),
    ]
    return [Timed(work, sms, model.device_seconds(work, sms)) for work in works]


def test_factors_on_products_are_found_again() -> None:
    """Layers of a world in which products take so many times as long, whatever else layers take there."""
    costs = LayerCosts(((72, 3e-6), (132, 2e-6)), ((132, 0.9),), ((132, 1.2),))
    plain = replace(tiny(), layer_costs=costs)
    world = replace(fitted(TINY, measured().with_products(FACTORS)), layer_costs=costs)
    found = product_factors(plain, [*in_layers(world, 72), *in_layers(world, 132)])
    for (sms, factors), (share, planted) in zip(found.by_sms, FACTORS.by_sms, strict=True):
        assert sms == share
        assert dict(factors) == pytest.approx(dict(planted), rel=1e-6)
    assert product_factors(plain, []) == AS_ALONE


def test_of_layers_with_as_many_tokens_those_count_most_that_are_products() -> None:
    """Two that take 1.5 times what the model says, in errors of either: least where that of the attention is larger."""
    model, works = tiny(), [Work((), 4, context, layers=2, head=False) for context in (100, 4000)]
    alone = [product_factors(model, [Timed(work, 72, 1.5 * model.device_seconds(work, 72))]) for work in works]
    assert all(model.device_seconds(work, 72) > 0 for work in works)
    (_, ((_, one),)), (_, ((_, other),)) = alone[0].by_sms[0], alone[1].by_sms[0]
    both = product_factors(model, [Timed(work, 72, 1.5 * model.device_seconds(work, 72)) for work in works])
    ((_, ((_, mean),)),) = both.by_sms
    assert 1.5 < one < mean < (one + other) / 2
    wrong = Timed(works[0], 72, 100 * model.device_seconds(works[0], 72))
    assert product_factors(model, [wrong]).at(4, 72) == LARGEST_FACTOR
    assert product_factors(model, [wrong._replace(seconds=0.0)]).at(4, 72) == 1 / LARGEST_FACTOR


def test_factors_between_rows_and_shares_and_beyond() -> None:
    """In the middle of two rows by logarithms the mean of theirs, of two shares the geometric mean."""
    assert [FACTORS.at(rows, 72) for rows in (1, 4, 16, 32, 64, 999)] == pytest.approx([1.2, 1.4, 1.6, 1.25, 0.9, 0.9])
    middle = (72 * 132) ** 0.5
    assert FACTORS.at(16, middle) == pytest.approx((1.6 * 1.3) ** 0.5)
    assert (FACTORS.at(0.5, 8), FACTORS.at(4, 200)) == pytest.approx((1.2, 1.2))
    assert AS_ALONE.at(7, 7) == 1.0
    assert FACTORS.times(AS_ALONE) == AS_ALONE.times(FACTORS) == FACTORS
    both = FACTORS.times(ProductFactors(((132, ((4, 2.0), (16, 3.0))),)))
    assert (both.at(4, 132), both.at(16, 132), both.at(64, 72)) == pytest.approx((2 * 1.2, 3.9, 3 * 0.9))
    assert ProductFactors.read(FACTORS.document()) == FACTORS
    assert ProductFactors.read([]) == AS_ALONE


def test_products_take_their_factor_and_nothing_else_does() -> None:
    plain, model = tiny(), fitted(TINY, measured().with_products(FACTORS))
    work = Work((), 32, 3000)
    for sms, factor in ((72, 1.25), (132, 1.05)):
        for part, before in zip(model.breakdown(work, sms), plain.breakdown(work, sms), strict=True):
            expected = factor if part.kernel.op == "gemm" and part.kernel.name != "lm_head" else 1.0
            assert part.seconds == pytest.approx(expected * before.seconds, rel=1e-12)
            assert part.source == before.source
    assert fitted(TINY, measured().with_products(AS_ALONE)) == plain
    assert plain != model
    rows = {knot for knot in ShardCalibration(measured().with_products(FACTORS)).token_knots() if knot < 65}
    assert FACTORS.rows() < rows


@pytest.mark.parametrize("device", ["H100, measured on shares", "RTX-4090"])
def test_what_is_in_no_layer_takes_what_it_takes_alone(device: str) -> None:
    """Once a pass: launches with the head less the same layers without it, before and after tables are made.

    Where they prefill it has the ratio of their factor to that of launches that only decode.
    """
    base = built_in(device) or measured()
    whole = base.device.sms
    costs = LayerCosts(((72, 1e-5),), ((72, 1.7), (whole, 1.4)), ((72, 2.0), (whole, 1.5)))
    by_sms = costs.by_sms(whole)
    assert by_sms is not None
    composition = Composition(costs, "measured", FACTORS)
    plain, model = fitted(TINY, base), fitted(TINY, replace(base, composition=composition))
    launches = (Work((), 3, 900), Work((), 4, 900, layers=2, head=True), Work(((48, 0), (16, 3)), layers=2, head=True))
    for ready in (False, True):
        for work in (*launches, Work(((59, 0),), 5, 700)):
            layers = work._replace(layers=work.layers or TINY.layers, head=False)
            for sms in (72, 100, whole):
                once_s = model.device_seconds(work, sms) - model.device_seconds(layers, sms)
                parts = [part for part in plain.breakdown(work, sms) if part.kernel.name in OUTSIDE_LAYERS]
                ratio = by_sms[sms][1] / by_sms[sms][2] if work.prefill else 1.0
                alone_s = sum(part.seconds for part in parts)
                assert once_s == pytest.approx(ratio * alone_s, rel=1e-6), (ready, work, sms)
                assert parts == [part for part in model.breakdown(work, sms) if part.kernel.name in OUTSIDE_LAYERS]
        plain, model = fitted(TINY, base), fitted(TINY, replace(base, composition=composition))
        model.make_ready()


@pytest.mark.parametrize("device", ["H100, measured on shares", "RTX-4090"])
def test_fast_paths_have_the_factors(device: str) -> None:
    """Prepared sums, passes and layer groups are the sum of the kernels that the calibration gives."""
    base = built_in(device) or measured()
    calibration = base.with_products(FACTORS)
    model = fitted(TINY, calibration)
    plain, shard = ShardCalibration(calibration), Shard(TINY, calibration.device, 1)
    for tokens in (1, 3, 64, 1000):
        kernels = [plain.calibrated(kernel) for kernel in shard.layer_kernels(tokens)]
        (found,) = sums(plain.clock, [kernels])
        for sms in (1, 72, 100, 128):
            assert found.on(sms) == added([plain.clock.time(kernel, sms) for kernel in kernels])
    for work in (Work((), 3, 300), Work(((64, 0),)), Work(((64, 32),), layers=2, head=False)):
        for sms in (72, 100, 128):
            parts = sum(part.seconds for part in model.breakdown(work, sms))
            assert model.device_seconds(work, sms) == pytest.approx(parts, rel=1e-6)


def test_a_pace_of_products_comes_on_top(tmp_path: Path) -> None:
    """One that a run's settings give, by rows, and a file that has factors of its own."""
    path = measured().with_products(FACTORS).save(tmp_path / "model.json")
    base = {"trace": "workload:code", "policy": "chunked", "model": "tiny", "device": "H100"}

    def model(pace: dict[str, Any]) -> Any:
        latency = {"model": str(path), "pace": {"prefill": [[132, 1.5]], "decode": [], **pace}}
        return latency_model(RunConfig.model_validate({**base, "latency": latency}))

    slower = model({"products": [[132, [[1, 2.0], [16, 3.0]]]]})
    assert slower.calibration.composition.products.at(16, 132) == pytest.approx(3 * 1.3)
    assert slower.layer_costs == model({}).layer_costs == LayerCosts((), ((132, 1.5),), ())
    assert model({}).calibration.composition.products == FACTORS
    again = DeviceCalibration.read(slower.calibration.document())
    assert again.composition.products == slower.calibration.composition.products
    roofline = {**base, "device": "L40S", "latency": {"pace": {"products": [[1, [[1, 2.0]]]]}}}
    with pytest.raises(ValueError, match=r"pace\.products is of a measured device, and L40S has the roofline here"):
        latency_model(RunConfig.model_validate(roofline))
