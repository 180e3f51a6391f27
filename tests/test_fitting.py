"""From a profile to a latency model: what is read from copies, co-runs, host times and mixed launches."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from profiler import FittedModel, Work, fitted
from profiler.fitting import fit_device
from profiler.profile import Profile
from tests.test_fitted import PROVENANCE, SHARES, TINY, rows_of_tiny, tiny


def whole_layers(model: FittedModel, ceiling: float, factor: float) -> list[dict[str, Any]]:
    """Rows of whole layers on a device where they take ``factor`` times their kernels and decode loses ``ceiling``."""
    rows: list[dict[str, Any]] = []
    prefills, decodes = [(512, 0), (2048, 1024)], [(8, 256), (64, 512)]

    def prefill(shape: tuple[int, int]) -> tuple[dict[str, Any], Work]:
        columns = {"sequences": 1, "new_tokens": shape[0], "cached_tokens": shape[1], "layers": 2}
        return columns, Work(prefill=(shape,), layers=2, head=False)

    def decode(shape: tuple[int, int]) -> tuple[dict[str, Any], Work]:
        columns = {"decode_requests": shape[0], "decode_context_tokens": shape[1], "layers": 2}
        return columns, Work(decode_requests=shape[0], decode_context_tokens=shape[0] * shape[1], layers=2, head=False)

    for shape in decodes:
        columns, work = decode(shape)
        for sms in SHARES[:2]:
            alone = factor * model.device_seconds(work, sms)
            rows.append({"kernel": "decode_layers", **columns, "sms": sms, "latency_s": alone})
            for other in prefills:
                beside, beside_work = prefill(other)
                rest = 132 - sms
                slowed = 1 + ceiling * model.dram_share(beside_work, rest) * model.dram_bound_share(work, sms)
                named = {f"beside_{name}": value for name, value in beside.items()}
                rows.append({"kernel": "decode_layers", **columns, "sms": sms, "beside": "prefill_layers",
                             "beside_sms": rest, **named, "latency_s": alone * slowed})  # fmt: skip
    for shape in prefills:
        columns, work = prefill(shape)
        rows.append({"kernel": "prefill_layers", **columns, "sms": 132, "latency_s": model.device_seconds(work, 132)})
    return [{**row, "dtype": "bf16"} for row in rows]


def test_contention_and_composition_are_found_again() -> None:
    """Whole layers that take 1.3 times their kernels, and decode that loses up to 40 % of its DRAM-bound time."""
    rows = whole_layers(tiny(), ceiling=0.4, factor=1.3)
    found = fit_device(Profile.of([*rows_of_tiny(), *rows], PROVENANCE))
    costs = found.composition.costs
    assert all(layer_s == pytest.approx(0, abs=1e-7) for _, layer_s in costs.seconds)
    assert all(factor == pytest.approx(1.3, rel=1e-4) for _, factor in costs.decode)
    assert all(factor == pytest.approx(1.0, rel=1e-4) for _, factor in costs.prefill)
    products = found.composition.products.by_sms
    assert [factor for _, factors in products for _, factor in factors] == [pytest.approx(1, rel=1e-3)] * 6
    assert found.contention.decode == pytest.approx(0.4, rel=0.15)
    assert found.contention.origin == "measured"
    assert len(found.contention.table) == 8


@pytest.mark.parametrize(("factor", "shown"), [(1e7, "1e+07"), (1e-4, "0.0001")])
def test_a_corun_that_no_device_makes_is_named(factor: float, shown: str) -> None:
    rows = whole_layers(tiny(), ceiling=0.0, factor=1.0)
    place = next(place for place, row in enumerate(rows) if "beside" in row)
    rows[place] = {**rows[place], "latency_s": factor * rows[place]["latency_s"]}
    message = (
        rf"^decode_layers of 8 tokens on 32 SMs, beside prefill_layers on 100: .*, {re.escape(shown)} times that alone"
    )
    with pytest.raises(ValueError, match=message):
        fit_device(Profile.of([*rows_of_tiny(), *rows], PROVENANCE))


def test_bandwidth_by_sms_is_read_from_copies() -> None:
    """The curve (1 + (N_d / N_p)^p)^(-1/p) with N_d = 30 and p = 2, measured on six shares."""

    def rate(sms: int) -> float:
        return 3e12 * (1 + (30 / sms) ** 2) ** -0.5

    copies = [
        {"kernel": "copy", "bytes": 1 << 30, "sms": sms, "latency_s": (1 << 30) / rate(sms), "dtype": "bf16"}
        for sms in (8, 24, 48, 72, 104, 132)
    ]
    found = fit_device(Profile.of([*rows_of_tiny(), *copies], PROVENANCE)).bandwidth
    assert found.origin == "measured"
    assert found.knee_sms == pytest.approx(30, rel=0.02)
    assert found.sharpness == pytest.approx(2, rel=0.05)


def test_host_times_are_medians() -> None:
    host = [
        {"kernel": kernel, "tokens": tokens, "sms": 132, "latency_s": seconds, "dtype": "bf16"}
        for kernel, tokens, seconds in (("host_pass", 1, 5e-4), ("host_pass", 8, 7e-4), ("host_launch", 1, 1e-4))
    ]
    found = fit_device(Profile.of([*rows_of_tiny(), *host], PROVENANCE)).host
    assert (found.pass_s, found.launch_s, found.origin) == (pytest.approx(5e-4), 1e-4, "measured")


def test_profiles_that_cannot_be_fitted() -> None:
    copies = [{"kernel": "copy", "bytes": 1, "sms": 1, "latency_s": 1.0, "dtype": "bf16"}]
    with pytest.raises(ValueError, match="no gemm rows"):
        fit_device(Profile.of(copies, PROVENANCE))
    with pytest.raises(ValueError, match="'B200', whose peaks are not known; known: A100-80G"):
        fit_device(Profile.of(copies, PROVENANCE.model_copy(update={"device": "B200"})))
    with pytest.raises(ValueError, match="the profile is of 66 SMs of H100, which has 132"):
        fit_device(Profile.of(copies, PROVENANCE.model_copy(update={"sms": 66})))


def test_mixed_attention_takes_what_was_measured() -> None:
    """Prefill of 100 us and decode of 50 us that take 300 us in one launch: twice their sum."""
    heads = {"heads": TINY.heads, "kv_heads": TINY.kv_heads, "head_dim": TINY.head_dim, "sms": 132, "dtype": "bf16"}
    rows: list[dict[str, Any]] = []
    for new in (2048, 4096):
        rows.append({"kernel": "attention_prefill", "sequences": 1, "new_tokens": new, "cached_tokens": 0,
                     "latency_s": 1e-4} | heads)  # fmt: skip
        for requests in (64, 128):
            for context in (2048, 4096):
                decode = {"decode_requests": requests, "decode_context_tokens": context}
                rows.append({"kernel": "attention_mixed", "new_tokens": new, "cached_tokens": 0, "latency_s": 3e-4}
                            | decode | heads)  # fmt: skip
    rows += [{"kernel": "attention_decode", "decode_requests": r, "decode_context_tokens": c, "latency_s": 5e-5} | heads
             for r in (64, 128) for c in (2048, 4096)]  # fmt: skip
    gemms = [row for row in rows_of_tiny() if row["kernel"] == "gemm"]
    model = fitted(TINY, fit_device(Profile.of([*gemms, *rows], PROVENANCE)))
    mixed, plain = Work(((2048, 0),), 64, 64 * 2048), fitted(TINY, replace(model.calibration, mixed=None))
    added = model.device_seconds(mixed, 132) - plain.device_seconds(mixed, 132)
    assert added == pytest.approx(TINY.layers * 1.5e-4, rel=0.02)
    alone = mixed._replace(decode_requests=0, decode_context_tokens=0)
    assert model.device_seconds(alone, 132) == plain.device_seconds(alone, 132)
