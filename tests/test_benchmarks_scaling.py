"""The benchmarks of capacity and of sweeps on a few requests, and that the 500 cells are 500."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import capacity, sweep
from sim.sweep import unfinished
from sim.sweep_cells import cells
from sim.sweep_spec import read_spec


def test_capacity_prints_both_ways(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "SPAN", 1.05)
    options = ["--requests", "40", "--seeds", "2", "--workload", "code", "--policy", "chunked"]
    assert capacity.main(options) == 1  # so small a grid is no comparison
    assert "| chunked, code |" in capsys.readouterr().out


def test_two_workers_are_compared_with_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    few = sweep.sixty_four(5)
    assert len(few) == 64
    monkeypatch.setattr(sweep, "sixty_four", lambda requests: few[:4])
    monkeypatch.setattr(sweep, "ROUNDS", 1)
    assert sweep.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ratio"] > 0


def test_the_500_cells_take_300_simulations(tmp_path: Path) -> None:
    found = cells(read_spec(sweep.FIVE_HUNDRED), "sweep500.yaml")
    assert len(found) == 500
    assert len({cell.label for cell in found}) == 5
    assert {cell.config.requests for cell in found} == {5000}
    assert len(unfinished({cell.key: cell for cell in found}, tmp_path)) == 300
