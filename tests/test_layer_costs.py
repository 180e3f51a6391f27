"""What whole layers take beyond their kernels: found again from layers that were made to take it, and used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from profiler import FittedModel, Work
from profiler.composition import NOTHING, LayerCosts
from profiler.layerfit import layer_costs, work_of
from profiler.profile import Profile
from tests.test_fitted import PROVENANCE, tiny

DECODES = ((1, 64), (8, 256), (64, 512))
PREFILLS = ((64, 0), (512, 0), (2048, 1024))
SHARES = (64, 132)
LAYER_S = {64: 80e-6, 132: 30e-6}
PREFILL = {64: 1.05, 132: 1.2}
DECODE = {64: 1.1, 132: 1.4}


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
