"""Hold-out: which rows are held out, what is said of the errors, and how far the models are from real tables."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from benchmarks import holdout as benchmark
from profiler import device
from profiler.estimators import CANDIDATES, CalibratedRoofline, clock_of, rows_of, shapes_of
from profiler.holdout import (
    FEW_ROWS,
    LARGEST,
    MOST,
    PAIRS,
    RANDOM,
    SAMPLES,
    Errors,
    compare,
    errors_of,
    learning_curve,
    splits,
)
from profiler.importers import aiconfigurator
from profiler.profile import Profile, Provenance
from profiler.structure import base_seconds

A100 = device("A100-80G")
OURS = next(iter(CANDIDATES))
ORIGIN = Provenance(device="A100-80G", sms=108, source="measured", origin="made up", date="2026-01-01")
PROFILES = Path(__file__).resolve().parent.parent.parent / "shared" / "profiles"


def toy(rows: tuple[int, ...], sizes: tuple[int, ...], spread: float | None = 0.01) -> Profile:
    """Products that reach 80 % of the formula."""
    shapes = [{"kernel": "gemm", "dtype": "bf16", "m": m, "n": n, "k": k} for m, n, k in product(rows, sizes, sizes)]
    empty = Profile.of([{**shape, "sms": 108, "latency_s": 1.0, "spread": spread} for shape in shapes], ORIGIN)
    table = rows_of(empty, "gemm")
    seconds = base_seconds("gemm", shapes_of("gemm", table), clock_of(A100, {"gemm": 3e-6}), 108) / 0.8
    return Profile.of(empty.rows.assign(latency_s=seconds), ORIGIN)


@pytest.fixture(scope="module")
def profile() -> Profile:
    return toy((16, 64, 200, 256, 1000, 1024, 4000, 4096), (512, 1024, 2048, 4096))


def test_splits_hold_out_what_they_say(profile: Profile) -> None:
    rows = rows_of(profile, "gemm")
    found = splits("gemm", rows, A100)
    assert list(found) == [RANDOM, PAIRS, LARGEST, MOST]
    ((chosen,), (pairs,), (largest,), (most,)) = found.values()
    assert chosen.sum() == round(0.2 * len(rows))
    assert most.sum() == round(0.9 * len(rows))
    held = rows[pairs].groupby(["n", "k"]).size()
    assert len(held) == round(0.2 * 16)
    assert (held == 8).all()
    sizes = (rows["m"] * rows["n"] * rows["k"]).to_numpy(dtype=float)
    assert sizes[largest].min() > sizes[~largest].max()
    assert largest.mean() == pytest.approx(0.25, abs=0.05)


def test_splits_are_drawn_with_their_seed(profile: Profile) -> None:
    rows = rows_of(profile, "gemm")
    first, again, other = (splits("gemm", rows, A100, seed)[RANDOM][0].tolist() for seed in (0, 0, 1))
    assert first == again != other


def test_repeats_of_a_shape_stay_together(profile: Profile) -> None:
    twice = Profile(profile.rows.loc[profile.rows.index.repeat(2)].reset_index(drop=True), profile.provenance)
    for (test,) in splits("gemm", rows_of(twice, "gemm"), A100).values():
        assert (test[::2] == test[1::2]).all()


def test_few_rows_are_cross_validated() -> None:
    for rows, name in (((16, 64, 1024), "10-fold"), ((16, 64), "leave one out")):
        few = toy(rows, (1024, 2048))
        table = rows_of(few, "gemm")
        assert len(table) < FEW_ROWS
        ((found, masks),) = splits("gemm", table, A100).items()
        assert found == name
        assert np.sum(masks, axis=0).tolist() == [1] * len(table)
        errors = compare(few, A100, ops=["gemm"])
        assert {e.rows for e in errors if e.subset == "all"} == {len(table)}
        assert learning_curve(few, "gemm", A100) == []


def test_errors_are_stated_for_every_estimator_beside_the_repeatability(profile: Profile) -> None:
    heard: list[str] = []
    found = compare(profile, A100, progress=heard.append)
    assert {(e.op, e.split, e.estimator) for e in found} == set(
        product(["gemm"], [RANDOM, PAIRS, LARGEST, MOST], CANDIDATES)
    )
    assert {e.subset for e in found} == {"all", "n, k >= 1024"}
    assert {e.spread for e in found} == {0.01}
    assert len(heard) == 4 * len(CANDIDATES)
    for e in found:
        assert 0 <= e.median <= e.p90
        if e.subset == "all":
            assert e.fitted + e.rows == len(profile.rows)
    (ours,) = [e for e in found if (e.split, e.subset, e.estimator) == (RANDOM, "all", OURS)]
    assert ours.median < 0.02
    assert json.loads(json.dumps(ours.document()))["median"] == round(ours.median, 5)


def test_repeatability_may_be_unknown() -> None:
    found = compare(toy((16, 64, 256, 1024, 4096), (512, 1024, 2048), spread=None), A100, quick=True)
    assert {e.spread for e in found} == {None}


def test_quick_is_the_first_split_alone(profile: Profile) -> None:
    assert {e.split for e in compare(profile, A100, quick=True)} == {RANDOM}


def test_kept_points_do_not_hide_the_error(profile: Profile) -> None:
    """What was held out is not among the points."""
    noisy = Profile(profile.rows.copy(), profile.provenance)
    noisy.rows["latency_s"] *= np.exp(np.random.default_rng(0).normal(0, 0.1, len(noisy.rows)))
    found = compare(noisy, A100, keep_points=True, quick=True)
    assert min(e.median for e in found if e.estimator == OURS) > 0.02


def test_samples_of_a_learning_curve_grow_and_are_tested_on_the_same_rows(profile: Profile) -> None:
    found = learning_curve(profile, "gemm", A100)
    ours = [e for e in found if e.estimator == OURS]
    others = len(profile.rows) - round(0.2 * len(profile.rows))
    assert [e.fitted for e in ours] == [*(size for size in SAMPLES if size < others), others]
    assert {e.rows for e in found} == {len(profile.rows) - others}
    assert ours[-1].median <= ours[0].median + 0.01


def real(name: str, kind: str, rows: int) -> Profile:
    files = sorted(PROFILES.glob(f"{name}*{kind}_perf*"))
    if not files:
        pytest.skip(f"needs tables of {name} in {PROFILES}")
    profile = aiconfigurator.read_tables(files, "H100")
    return Profile(profile.rows.sample(rows, random_state=0).reset_index(drop=True), profile.provenance)


def test_products_of_an_h100_from_a_few_thousand_rows() -> None:
    rows = rows_of(real("h100", "gemm", 3000), "gemm")
    for split, most in ((RANDOM, 0.045), (PAIRS, 0.05), (LARGEST, 0.12), (MOST, 0.07)):
        (test,) = splits("gemm", rows, device("H100"))[split]
        errors = errors_of(CalibratedRoofline("gemm", device("H100")), rows, ~test, test)
        assert np.median(errors) < most


def test_attention_of_an_h100_from_a_thousand_rows() -> None:
    for kind, op, most in (
        ("context_attention", "attention_prefill", 0.04),
        ("generation_attention", "attention_decode", 0.025),
    ):
        found = compare(real("h100", kind, 1500), device("H100"), ops=[op], quick=True)
        assert next(e for e in found if e.estimator == OURS).median < most


def test_errors_are_of_rows_that_were_not_seen(profile: Profile) -> None:
    rows = rows_of(profile, "gemm")
    seen = np.arange(len(rows)) % 2 == 0
    model = CalibratedRoofline("gemm", A100)
    assert len(errors_of(model, rows, seen, ~seen)) == (~seen).sum()
    assert not hasattr(model, "calibration_")


def test_the_benchmark_says_what_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["--shared", str(tmp_path)]) == 2
    assert "give --shared" in capsys.readouterr().err


def test_the_benchmark_tells_when_a_target_is_missed(capsys: pytest.CaptureFixture[str]) -> None:
    def found(median: float) -> list[Errors]:
        return [Errors("gemm", RANDOM, benchmark.WIDE_ROWS, name, 80, 20, median, 0.09, None) for name in CANDIDATES]

    assert benchmark.print_splits({"A100-80G": found(0.029), "H100": found(0.01)})
    assert not benchmark.print_splits({"A100-80G": found(0.01), "H100": found(0.031)})
    assert "| 3 / 10 |" in capsys.readouterr().out
