"""Profiles: rows and provenance that are refused, and how several become one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiler.profile import Profile, Provenance, load_profile, merged

ORIGIN = Provenance(device="H200", sms=132, source="measured", origin="made up", date="2026-01-01")
NORM = {"kernel": "norm", "dtype": "bf16", "tokens": 1, "width": 64, "sms": 132, "latency_s": 1e-6}
LAYER = {
    **{"kernel": "decode_layers", "dtype": "bf16", "sms": 132, "latency_s": 1e-3},
    **{"decode_requests": 1, "decode_context_tokens": 16, "layers": 4},
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "int4"}, "dtype is 'int4'; known: bf16, fp8, fp32"),
        ({"dtype": None}, "dtype is ''; known: bf16"),
        ({"repeats": -1}, "repeats is -1; it must be 0 or more"),
        ({"spread": float("inf")}, "spread is inf; it must be 0 or more"),
        ({"spread": -0.1}, "spread is -0.1; it must be 0 or more"),
        ({"tokens": 1e30}, r"tokens is 1e\+30; a count is at most 9007199254740992"),
        ({"tokens": 10**30}, "tokens is 10{30}; a count is at most"),
        ({"tokens": 1.5}, "tokens is 1.5; it is no count"),
        ({"latency_s": "soon"}, "latency_s is 'soon'; it is no number"),
        ({"beside_sms": 7}, "beside is ''; it must name what kept the SMs of beside_sms busy"),
        ({"beside": "norm"}, "beside_sms is empty; it must be 1 to the 132 of H200"),
        ({"beside": "norm", "beside_sms": 133}, "beside_sms is 133; it must be 1 to the 132 of H200"),
    ],
)
def test_a_row_that_cannot_be_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^row 1 \(norm\): {message}"):
        Profile.of([NORM, {**NORM, **change}], ORIGIN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"settings": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested more than 50 levels deep"),
        ('{"settings": {"a": ' + "[" * 60 + "]" * 60 + "}}", "nested more than 50 levels deep"),
        ('{"settings": {"a": NaN}}', "NaN is no JSON number"),
    ],
)
def test_a_provenance_that_is_no_document_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = Profile.of([NORM], ORIGIN).save(tmp_path / "p")
    path.with_suffix(".json").write_text(text)
    with pytest.raises(ValueError, match=rf"^.*p\.json is no provenance of a profile: {message}$"):
        load_profile(path)


def test_rows_are_as_many_as_the_provenance_says(tmp_path: Path) -> None:
    path = Profile.of([NORM], ORIGIN).save(tmp_path / "p")
    beside = path.with_suffix(".json")
    beside.write_text(json.dumps({**json.loads(beside.read_text()), "rows": 7}))
    with pytest.raises(ValueError, match=r"p\.parquet holds 1 rows, but p\.json says rows is 7; .*: restore"):
        load_profile(path)


def of(row: dict[str, Any], **origin: Any) -> Profile:
    return Profile.of([row], ORIGIN.model_copy(update=origin))


def test_the_layers_model_is_the_whole_profiles() -> None:
    first = of(NORM, model="small", origin="a", settings={"grid": "x"})
    second = of(LAYER, model="large", tensor_parallel=2, origin="b", settings={"ceilings": {"bf16_flops": 1.0}})
    both = merged([first, second])
    origin = both.provenance
    assert (origin.model, origin.tensor_parallel, origin.origin) == ("large", 2, "a; b")
    assert origin.settings == {
        "ceilings": {"bf16_flops": 1.0},
        "profiles": [{"grid": "x"}, {"ceilings": {"bf16_flops": 1.0}}],
    }
    assert list(both.rows["kernel"]) == ["norm", "decode_layers"]
    assert merged([of(NORM), first]).provenance.model == "small"
    assert merged([of(NORM), first]).provenance.settings == {"profiles": [{}, {"grid": "x"}]}


@pytest.mark.parametrize("other", [{"model": "small"}, {"model": "large", "tensor_parallel": 2}, {}])
def test_layers_of_two_models_are_not_one_profile(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"profiles with layers of two models: large at tensor parallel 1 and .*; fit"):
        merged([of(NORM, model="tiny"), of(LAYER, model="large"), of(LAYER, **other)])
