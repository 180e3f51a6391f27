"""Validations by the command: files for short ones, its options, and ways to make them quick."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from profiler.fitting import fit_device
from real import serving, validation
from real.executor import DeviceExecutor
from real.machine import CpuMachine
from real.plan import Contestant
from sim.report.markup import Markup
from tests.inline_lanes import InlineLanes
from tests.test_real_checkpoints import CONFIG
from tests.toys import cpu_profile, trace_of
from traces import save

CORES = len(os.sched_getaffinity(0))
ROOT = Path(__file__).parents[1]
ROWS = [(0.0, 30, 8), (0.05, 3, 12), (0.1, 17, 1), (0.1, 45, 10), (0.3, 8, 6), (0.31, 26, 9)]
REPEATS = 2

POLICIES = ["chunked:budget_tokens=24"]
if CORES > 1:
    POLICIES += ["bullet:layers_per_step=1", "disaggregation"]


def write_files(folder: Path) -> Path:
    """A model's config.json, a latency model of these cores and a trace, in ``folder``."""
    (folder / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 256}))
    fit_device(cpu_profile(CORES)).save(folder / "latency.json")
    save(trace_of(ROWS), folder / "trace.csv")
    return folder


def without_pictures(patch: pytest.MonkeyPatch) -> None:
    """They take most of a report's time."""
    patch.setattr("real.report.cells.picture", lambda drawing, alt: Markup(alt))


def in_this_process(patch: pytest.MonkeyPatch) -> None:
    """Lanes without processes, on their own clock."""

    class Machine(CpuMachine):
        def lanes(self, who: Contestant) -> InlineLanes:
            lanes = made[who.label] = made.get(who.label) or self.made(who)
            patch.setattr(serving, "DeviceExecutor", partial(DeviceExecutor, clock=lanes.clock))
            return lanes

        def made(self, who: Contestant) -> InlineLanes:
            model = self._model
            weights = model.weights(torch.device("cpu"), torch.float32)
            sizes: dict[str, Any] = {"slots": self._slots, "slot_tokens": self._slot_tokens}
            return InlineLanes(model.spec, weights, model.numerics, lanes=who.lanes, seconds=lambda job: 0.003, **sizes)

    made: dict[str, InlineLanes] = {}
    patch.setattr(validation, "CpuMachine", Machine)


def options(files: Path, out: Path | str, **changes: Any) -> list[str]:
    """The command's arguments; None takes one out."""
    chosen: dict[str, Any] = {
        "--device": "cpu",
        "--model": str(files / "config.json"),
        "--trace": str(files / "trace.csv"),
        "--latency-model": str(files / "latency.json"),
        "--repeats": REPEATS,
        "--out": str(out),
    }
    chosen |= {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    return ["validate", *(str(part) for pair in chosen.items() if pair[1] is not None for part in pair)]


def policies(*named: str) -> list[str]:
    return [part for name in named or POLICIES for part in ("--policy", name)]


def assert_one_line(stderr: str, message: str) -> None:
    """One line of error that has the message, after a note where something has been kept already."""
    *notes, line = stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert len(notes) <= 1
    assert all(note.startswith("what is done stays in ") for note in notes)
