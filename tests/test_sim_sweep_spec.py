"""What a sweep's file can say beyond a grid of lists: ranges, what-ifs, derived settings, filters, repeats, lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import POLICIES
from sim.config import PolicySettings, RunConfig, SloSettings, WindowSettings
from sim.expressions import Expression
from sim.metrics import Metrics
from sim.simulate import measure, measure_together, simulate, simulated
from sim.sweep import check_cells, run_sweep, unfinished
from sim.sweep_cells import Cell, cells
from sim.sweep_spec import Range, read_spec

SPEC = """\
base: {trace: "workload:code", requests: 8, model: tiny, device: A100-80G, slo: {tpot_s: 0.1}}
policies:
  - chunked
  - disaggregation
grid:
  rate_per_gpu: {from: 2, to: 6, step: 2}
derive:
  instances: 2 if policy.name == 'disaggregation' else 1
"""


def spelled(tmp_path: Path, text: str) -> list[Cell]:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    found = cells(read_spec(path), "spec.yaml")
    check_cells(found, "spec.yaml")
    return found


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({"from": 2, "to": 8, "step": 2}, [2, 4, 6, 8]),
        ({"from": 0, "to": 4}, [0, 1, 2, 3, 4]),
        ({"from": 0.1, "to": 0.35, "step": 0.1}, [0.1, 0.2, 0.3]),
        ({"from": 1, "to": 64, "count": 7, "scale": "log"}, [1, 2, 4, 8, 16, 32, 64]),
        ({"from": 1, "to": 2, "count": 3}, [1.0, 1.5, 2.0]),
        ({"from": 8, "to": 2, "count": 3, "scale": "log"}, [8, 4, 2]),
    ],
)
def test_ranges(given_: dict[str, Any], expected: list[float]) -> None:
    found = Range.model_validate(given_).values()
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


@given(st.floats(-1e3, 1e3), st.floats(0.01, 10), st.integers(0, 200))
def test_a_range_ends_where_its_steps_do(low: float, step: float, steps: int) -> None:
    found = Range.model_validate({"from": low, "to": low + steps * step, "step": step}).values()
    assert len(found) == steps + 1
    assert found == pytest.approx([low + place * step for place in range(steps + 1)], abs=1e-6)


def test_derived_settings_follow_from_others(tmp_path: Path) -> None:
    found = spelled(tmp_path, SPEC)
    assert [(cell.config.policy.name, cell.config.instances, cell.config.rate) for cell in found[:2]] == [
        ("chunked", 1, 2.0),
        ("disaggregation", 2, 4.0),  # rates are taken per GPU after the GPUs are known
    ]


def test_what_ifs_come_beside_things_as_they_are(tmp_path: Path) -> None:
    found = spelled(tmp_path, SPEC + "what_if:\n  - {name: small, memory_fraction: 0.5, slo.tpot_s: 0.2}\n")
    assert len(found) == 12
    assert [cell.what_if for cell in found] == [None] * 6 + ["small"] * 6
    assert found[6].label == "chunked, small"
    assert (found[6].config.memory_fraction, found[6].config.slo.tpot_s) == (0.5, 0.2)


def test_only_keeps_what_it_is_true_of(tmp_path: Path) -> None:
    found = spelled(tmp_path, SPEC + "only: [rate_per_gpu < 6, label == 'chunked' or gpus * 2 == 4]\n")
    assert [(cell.label, cell.config.rate) for cell in found] == [
        ("chunked", 2.0),
        ("disaggregation", 4.0),
        ("chunked", 4.0),
        ("disaggregation", 8.0),
    ]


def test_repeats_are_seeds_that_all_policies_share(tmp_path: Path) -> None:
    found = spelled(tmp_path, SPEC.replace("requests: 8", "requests: 8, seed: 5") + "repeats: 2\n")
    assert [(cell.config.seed, cell.label) for cell in found[:4]] == [
        (seed, label) for seed in (5, 6) for label in ("chunked", "disaggregation")
    ]


def test_numbers_with_an_exponent_need_no_point(tmp_path: Path) -> None:
    text = SPEC.replace("{from: 2, to: 6, step: 2}", "[1e1, 1e-2, 2.5E+3]")
    assert text != SPEC
    (tmp_path / "spec.yaml").write_text(text)
    assert read_spec(tmp_path / "spec.yaml").grid["rate_per_gpu"] == [10.0, 0.01, 2500.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SPEC.replace("to: 6", "too: 6"), "line 6: grid.rate_per_gpu: range: to is missing"),
        (SPEC.replace("step: 2", "step: 2, count: 3"), "line 6: .*step is given beside count"),
        (SPEC.replace("from: 2", "from: 9"), "line 6: .*from 9 to 6 by 2 makes no list"),
        (SPEC.replace("step: 2", "count: 3, scale: log").replace("from: 2", "from: 0"), "line 6: .*both ends above 0"),
        (SPEC.replace("policies", "policys"), "spec.yaml: policies is missing"),
        (SPEC.replace("else 1", "else one"), r"line 8: .*one is no setting of this run; known: "),
        (SPEC.replace("else 1", "else"), "line 8: .*is no expression"),
        (SPEC.replace("instances: 2 if", "instances: open('x') if"), "line 8: .*beyond what an expression may hold"),
        (SPEC + "only: model\n", "line 9: only: 'model' is '.*', neither true nor false"),
        (SPEC.replace("step: 2", "stp: 2"), "line 6: .*stp is not a setting; known: from, to, step, count, scale"),
        (SPEC + 'what_if: [{name: "a\\n", seed: 1}]\n', r"'a\\n' is no label; give 1 to 100 letters on one line"),
        (SPEC + "only: rate_per_gpu > 100\n", "only leaves none of the cells"),
        (SPEC + "only: rate / 0 > 1\n", "line 9: .*cannot be worked out"),
        (SPEC + "repeats: 2\n" + "cases: [{grid: {seed: [1]}}]\n", "seed is in the grid"),
        (SPEC + "what_if: [{memory_fraction: 0.5}]\n", "what_if.0 has no name"),
        (SPEC + "what_if: [{name: x}]\n", "what_if 'x' changes nothing"),
        (SPEC + "what_if:\n  - {name: x, seed: 1}\n  - {name: x, seed: 2}\n", "two are called 'x'"),
        (SPEC + "what_if:\n  - name: x\n    memory_fraction: 2.0\n", "line 11 .*memory_fraction is 2.0"),
        (SPEC.replace("A100-80G", "A100-81G"), r"line 1: chunked .*unknown device 'A100-81G'"),
        (SPEC.replace("- disaggregation", "- {name: disaggregation, settings: {speed: 3}}"), "line 4: .*'speed'"),
        (SPEC.replace("workload:code", "/absent.csv"), "line 1: .*/absent.csv"),
        (SPEC.replace("to: 6, step: 2", "to: 1.0e+9"), r"line 6: .*from 2 to 1e\+09 by 1 makes no list"),
        (SPEC + "  queue_limit: \"'a' * 10\"\n", "line 9: .*'a' is no number"),
        (SPEC + "  queue_limit: min([])\n", r"line 9: 'min\(\[\]\)' cannot be worked out"),
        (SPEC + f"only: {'1+' * 20_000}1\n", r"line 9: only.0: '(1\+)+1?\.\.\. is no expression"),
        (SPEC.replace("model: tiny", "model: tiny, policy: {settings: 3}"), "base.policy.settings is 3"),
        (SPEC + "cases: [{grid: {seed: {from: 1, to: 50_000}}}]\n", "300,000 cells, before only; .* 100,000 at most"),
        (SPEC + "cases: &all [{seed: 1}, *all]\n", "line 9: not YAML: an alias puts this into itself"),
        (SPEC + "? [1, 2]\n: 3\n", "line 9: not YAML: a list or group names nothing"),
    ],
)
def test_faults_name_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        spelled(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3 - 4 / 2", 5.0),
        ("-7 // 2 % 3", 2),
        ("a.b > 1 and not c or d in [1, 'x']", True),
        ("1 < a.b <= 2 and a.b != 3", True),
        ("max(min(a.b, 5), ceil(0.2), floor(1.9), round(1.4))", 2),
        ("d if c else [a.b, 'y']", [2, "y"]),
        ("d not in ('y', 1)", True),
    ],
)
def test_expressions(text: str, value: Any) -> None:
    assert Expression(text).value({"a.b": 2, "c": False, "d": "x"}) == value


@pytest.mark.parametrize("text", ["", "a b", "import os", "a.__class__()", "[x for x in y]", "2 ** 3", "a[0]"])
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no expression|beyond what an expression may hold"):
        Expression(text)


def config(policy: str, **changes: object) -> RunConfig:
    return RunConfig(
        trace="workload:code",
        requests=30,
        rate=200.0,
        policy=PolicySettings(name=policy),
        model="tiny",
        device="A100-80G",
        instances=2 if policy == "disaggregation" else 1,
    ).model_copy(update=changes)


LIMITS = (SloSettings(ttft_s=0.001, tpot_s=0.0005), SloSettings(ttft_s=10.0, tpot_s=1.0))
BLIND = [name for name, cls in POLICIES.items() if vars(cls).get("reads_slo") is False]


@pytest.mark.parametrize("name", BLIND)
def test_a_policy_that_says_it_never_reads_the_slo_does_not(name: str) -> None:
    tight, loose = (simulate(config(name, slo=slo)).records for slo in LIMITS)
    for column in ("first_token_s", "last_token_s", "scheduled_s"):
        assert np.array_equal(getattr(tight, column), getattr(loose, column))


def test_cells_that_differ_in_slo_or_window_share_a_simulation_where_they_may(tmp_path: Path) -> None:
    window = WindowSettings(warmup_s=0.01)
    assert "chunked" in BLIND
    assert "bullet" not in BLIND
    found = [
        Cell(label=f"{name} {place}", config=config(name, **changes))
        for name in ("chunked", "bullet")
        for place, changes in enumerate(({"slo": LIMITS[0]}, {"slo": LIMITS[1]}, {"slo": LIMITS[0], "window": window}))
    ]
    together: list[int] = []

    def run(configs: Sequence[RunConfig]) -> list[Metrics]:
        together.append(len(configs))
        return measure_together(configs)

    assert len(unfinished({cell.key: cell for cell in found}, tmp_path / "out")) == 3
    done = run_sweep(found, tmp_path / "out", run=run)
    assert together == [3, 2, 1]
    expected = [measure(cell.config) for cell in found]
    assert [row["attainment"] for row in done.rows] == [metrics.attainment for metrics in expected]
    assert [row["arrived"] for row in done.rows] == [metrics.arrived for metrics in expected]


def test_a_policy_that_inherits_the_word_is_not_believed(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from dataclasses import dataclass\nfrom policies import ChunkedPrefill\n\n\n"
        "@dataclass(frozen=True, slots=True, kw_only=True)\nclass Mine(ChunkedPrefill):\n    pass\n"
    )
    limited = config(f"{own}:Mine", slo=LIMITS[0])
    assert simulated(limited).slo == LIMITS[0]
    assert simulated(config("chunked", slo=LIMITS[0])).slo == SloSettings()
