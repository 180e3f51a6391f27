"""Settings of a run: what is wrong in them is told by the names that they have, whatever kind was meant."""

from __future__ import annotations

from typing import Any

import pytest

from sim.config import LatencySettings, RunConfig, checked

BASE: dict[str, Any] = {"trace": "t.csv", "policy": "chunked", "model": "tiny", "device": "A100-80G"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latency": {"pace": "slow"}}, "latency.pace is 'slow': input should be a valid number"),
        (
            {"latency": {"pace": {"prefil": []}}},
            "latency.pace.prefil is not a setting; known: prefill, decode, products",
        ),
        (
            {"latency": {"pace": {"decode": [[1, "a"]]}}},
            "latency.pace.decode.0.1 is 'a': input should be a valid number",
        ),
        (
            {"latency": {"pace": {"products": [[1, [[4, 0]]]]}}},
            "latency.pace.products.0.1.0.1 is 0: input should be greater than or equal to 0.000001",
        ),
        (
            {"latency": {"pace": {"decode": [[2, 1.0], [2, 1.5]]}}},
            "latency.pace.decode: 2 comes after 2; give the points",
        ),
        (
            {"latency": {"pace": {"products": [[1, [[4, 1.0], [2, 1.0]]]]}}},
            "latency.pace.products.0.1: 2 comes after 4; give the points in ascending order",
        ),
        ({"latency": {"pace": "a"}, "seed": -1}, "seed is -1: input should be greater than or equal to 0 (and 1 more)"),
        ({"policy": {"name": "chunked", "settings": {3: 4}}}, "policy.settings.3 is 3: input should be a valid string"),
        ({"policy": 3}, "policy is 3: settings are expected there, each a name and a value"),
        ({"estimator": {"reserve_tokens": 3}}, "estimator.reserve_tokens is 3, but a policy estimates launches"),
        ({"estimator": {"repartition_s": 0.0}}, "give latency.repartition_s (--latency repartition_s=0) instead"),
    ],
)
def test_a_fault_is_named_as_the_setting_is(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^run: ") as refused:
        checked(RunConfig, BASE | change, "run")
    assert message in str(refused.value)


def test_an_estimator_is_of_the_same_model_unless_it_names_one() -> None:
    def planned(**settings: Any) -> Any:
        return checked(RunConfig, BASE | settings, "run").planned

    named = {"model": "m.json", "model_sha256": "0" * 64}
    assert planned(latency=named) is None
    assert planned(latency=named, estimator={"pace": 2}) == LatencySettings(pace=2, **named)
    assert planned(latency=named, estimator={"model": "roofline"}) == LatencySettings(model="roofline")
    assert planned(latency={"pace": 2}, estimator={"sharing": "in-order"}) == LatencySettings(sharing="in-order")


def test_an_estimator_may_differ_in_what_launches_take() -> None:
    assert checked(RunConfig, BASE | {"estimator": {"pace": 1.2, "link_bytes_per_s": 1e9}}, "run").estimator is not None
