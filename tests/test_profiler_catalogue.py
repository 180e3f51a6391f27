"""``bulletsim models`` and ``bulletsim devices``: tables of at most 80 columns, and JSON with sources."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from cli.catalogue import devices, models
from profiler import DEVICES, MODELS


@pytest.mark.parametrize(
    ("command", "names"),
    [(models, [spec.name for spec in MODELS]), (devices, [spec.name for spec in DEVICES])],
)
def test_tables_fit_80_columns(
    command: Callable[..., None],
    names: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    assert [line.split()[0] for line in lines[-len(names) :]] == names


def test_models_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    models(json=True)
    listed = json.loads(capsys.readouterr().out)["models"]
    assert [row["name"] for row in listed] == [spec.name for spec in MODELS]
    assert listed[0]["parameters"] == 8_030_261_248
    assert all(row["source"] for row in listed)


def test_devices_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    devices(json=True)
    listed = json.loads(capsys.readouterr().out)["devices"]
    assert [row["name"] for row in listed] == [spec.name for spec in DEVICES]
    assert listed[0]["fp8_flops"] is None
    assert "paper" in listed[0]["sources"]["bandwidth_knee_sms"]
