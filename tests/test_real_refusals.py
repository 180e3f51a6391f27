"""What bulletsim validate refuses, each in one line with status 2."""

from __future__ import annotations

import json
import math
import multiprocessing
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.main import run
from profiler.fitting import fit_device
from profiler.profile import Profile
from profiler.profile import Provenance as Measured
from real import validation
from real.layout import Layout, read_facts
from real.plan import Plan
from tests.toys import cpu_profile, trace_of
from tests.validations import (
    CORES,
    ROOT,
    ROWS,
    assert_one_line,
    in_this_process,
    options,
    policies,
    without_pictures,
    write_files,
)
from traces import save


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


@pytest.fixture
def _quick_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    without_pictures(monkeypatch)


@pytest.fixture
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


TRUTHFUL = """
from dataclasses import dataclass
from typing import ClassVar
from policies import ChunkedPrefill

@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle(ChunkedPrefill):
    name: ClassVar[str] = "oracle"
    needs_truth: ClassVar[bool] = True
"""

REFUSED: dict[str, tuple[dict[str, str | int | None], str, str]] = {
    "unknown device": ({"device": "tpu"}, "chunked", "device is 'tpu': input should be 'cpu' or 'cuda'"),
    "unknown policy": ({}, "best", "unknown policy 'best'; known: "),
    "unknown setting": ({}, "chunked:budget=3", "policy chunked has no setting 'budget'"),
    "settings that are none": ({}, "chunked:budget_tokens=0", "budget_tokens is 0"),
    "unknown model": ({"model": "gpt-9"}, "chunked", "unknown model 'gpt-9'"),
    "unknown trace": ({"trace": "nothing.csv"}, "chunked", "nothing.csv: no such file"),
    "a trace without times": ({"trace": "FILES/plain.csv"}, "chunked", "has no arrival times; give --rate"),
    "another device's model": (
        {"latency_model": str(ROOT / "profiler/builtin/H100.json")},
        "chunked",
        "H100.json is of H100, and this device is cpu; leave it out to measure this one",
    ),
    "other cores' model": (
        {"latency_model": "FILES/larger.json"},
        "chunked",
        f"is of {CORES + 1} cores, and this process may use {CORES}; leave it out to measure these",
    ),
    "no model": ({"latency_model": "FILES/absent.json"}, "chunked", "absent.json does not exist"),
    "another device's profile": (
        {"latency_model": None, "profile": "FILES/h100"},
        "chunked",
        "h100 is of H100, and this device is cpu; leave it out to measure this one",
    ),
    "no profile": ({"latency_model": None, "profile": "FILES/absent"}, "chunked", "absent.parquet does not exist"),
    "a profile and a model": ({"profile": "FILES/h100"}, "chunked", "a profile and a latency model are both given"),
    "a file": ({"out": "FILES/trace.csv"}, "chunked", "trace.csv exists and is no validation; choose another --out"),
    "a foreign folder": ({"out": "FILES"}, "chunked", "exists and is no validation; choose another --out"),
    "nothing to report": ({"report": ""}, "chunked", "holds no run of a validation; leave --report out to begin one"),
    "shrunk to nothing": ({"shrink": 0}, "chunked", "shrink is 0: input should be greater than or equal to 1"),
    "no repeat": ({"repeats": 0}, "chunked", "repeats is 0: input should be greater than or equal to 1"),
    "no slot": ({"slots": 0}, "chunked", "slots is 0: input should be greater than or equal to 1"),
    "no time": ({"time_scale": 0}, "chunked", "options: --time-scale is 0.0: input should be greater than 0"),
    "no rate": ({"rate": 0}, "chunked", "options: --rate is 0.0: input should be greater than 0"),
    "no limit": ({"slo_tpot": 0}, "chunked", "options: --slo-tpot is 0.0: input should be greater than 0"),
    "a rate and a time scale": ({"rate": 3, "time_scale": 2}, "chunked", "rates replace them; give one of them"),
    "a policy twice": ({"policy": "chunked"}, "chunked", "policy chunked is named twice; name each once"),
    "a damaged folder": ({"model": "FILES/damaged"}, "chunked", "model.safetensors"),
    "an empty folder": ({"model": "FILES/empty"}, "chunked", "config.json"),
    "a policy that needs the truth": ({}, "FILES/own.py:Oracle", "policy oracle needs to know how long answers will"),
    "more context than the model has": (
        {"trace": "FILES/long.csv"},
        "chunked",
        "a request of 258 tokens in all",
    ),
    "a policy for more cores": (
        {},
        f"disaggregation:prefill_instances={CORES}",
        f"needs {CORES + 1} instances, and there are {CORES} cores; leave it out, or take more cores",
    ),
    "memory": ({"slots": 10**9}, "chunked", "does not fit: weights"),
}


@pytest.fixture(scope="module")
def odd(files: Path) -> Path:
    """The folder with things in it that are refused."""
    fit_device(cpu_profile(CORES + 1)).save(files / "larger.json")
    rows = [
        {"kernel": "gemm", "m": m, "n": 64, "k": 64, "sms": 132, "latency_s": 1e-5 * m, "repeats": 3, "spread": 0.01}
        for m in (1, 2, 3)
    ]
    provenance = Measured(device="H100", sms=132, source="measured", origin="a test", date="2026-11-30")
    Profile.of([{**row, "dtype": "bf16"} for row in rows], provenance).save(files / "h100")
    untimed = trace_of(ROWS)
    save(replace(untimed, arrival_s=None), files / "plain.csv")
    save(trace_of([(0.0, 250, 8)]), files / "long.csv")
    (files / "own.py").write_text(TRUTHFUL)
    (files / "empty").mkdir()
    (files / "damaged").mkdir()
    shutil.copy(files / "config.json", files / "damaged")
    (files / "damaged" / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
    return files


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_one_line_and_status_2(
    odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    changes, policy, message = REFUSED[what]
    changes = {
        name: value.replace("FILES", str(odd)) if isinstance(value, str) else value for name, value in changes.items()
    }
    more = ["--report"] if changes.pop("report", None) is not None else []
    command = options(odd, **({"out": str(tmp_path / "out")} | changes))
    assert run([*command, "--policy", policy.replace("FILES", str(odd)), *more]) == 2
    assert_one_line(capsys.readouterr().err, message)
    assert not list(tmp_path.glob("out/runs/*"))
    assert not (odd / ".lock").exists()


def test_what_would_share_a_folder() -> None:
    plan = {"device": "cpu", "model": "tiny", "trace": "t.csv", "policies": [{"name": "chunked"}]}
    with pytest.raises(ValueError, match="rate 2 is named twice"):
        Plan.model_validate({**plan, "rates": [2.0, 3.0, 2 + 1e-14]})
    with pytest.raises(ValueError, match=r"policies a/b\.py:C and a_b\.py:C would share a folder"):
        Plan.model_validate({**plan, "policies": [{"name": "a/b.py:C"}, {"name": "a_b.py:C"}]})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("latency", [None, str(ROOT / "profiler/builtin/H100.json")])
def test_cuda_where_there_is_none(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], latency: str | None
) -> None:
    command = options(files, tmp_path / "out", device="cuda", latency_model=latency)
    assert run([*command, *policies("chunked")]) == 2
    assert_one_line(capsys.readouterr().err, "CUDA")


@pytest.mark.usefixtures("_in_this_process")
@pytest.mark.skipif(CORES < 2, reason="two instances need two cores")
def test_fewer_slots_than_a_prefill_instance_comes_to_hold(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = options(files, tmp_path / "out", slots=1, rate=1000)
    assert run([*command, *policies("disaggregation")]) == 2
    assert_one_line(capsys.readouterr().err, "instance 0 holds 1 requests, as many as its KV cache has slots")


@pytest.mark.usefixtures("_quick_pages")
def test_settings_may_change_while_nothing_has_been_served(files: Path, tmp_path: Path, capsys: Any) -> None:
    """A remedy can be followed at the same --out."""
    out = tmp_path / "out"
    for changes, message in (
        ({"slots": 10**9}, "does not fit"),
        ({"latency_model": files / "absent.json"}, "absent.json does not exist"),
        ({"model": "gpt-9"}, "unknown model"),
    ):
        assert run([*options(files, out, **changes), *policies("chunked")]) == 2
        assert_one_line(capsys.readouterr().err, message)
    # What was measured for one model is of no use to another.
    (out / "profile.journal.jsonl").write_text("")
    assert run([*options(files, out, model="tiny"), *policies("chunked")]) == 2
    assert_one_line(capsys.readouterr().err, "holds a validation whose model is")


def test_two_commands_do_not_work_in_one_directory(
    odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second would take the first one's recording for what a killed one left."""
    out = tmp_path / "out"
    with Layout(out).held():
        (out / "runs").mkdir()
        (out / "plan.json").touch()
        for more in ([], ["--report"]):
            assert run([*options(odd, str(out)), "--policy", "chunked", *more]) == 2
            assert_one_line(capsys.readouterr().err, "another bulletsim validate is at work in")


PROBE = {"kind": "decode", "sms": 1, "sequences": 1, "new_tokens": 1, "cached_tokens": 0, "layers": 1, "seconds": 1.0}


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "{",
        '{"finished": true, "host_s": {}, "pace": null}',
        '{"finished": true, "host_s": {"decode": -1, "prefill": 0}, "pace": null}',
        *(
            json.dumps({"finished": True, "host_s": {"decode": 0, "prefill": 0}, "pace": {"probes": [PROBE | odd]}})
            for odd in (
                {},
                {"profiled_s": 0.0},
                {"profiled_s": 1.0, "seconds": math.nan},
                {"profiled_s": 1.0, "sms": 0},
            )
        ),
    ],
)
def test_a_damaged_real_json_names_the_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / "real.json").write_text(text)
    with pytest.raises(ValueError, match=f"real.json.*remove {tmp_path}, and the same command serves it again"):
        read_facts(tmp_path)


def test_damaged_files_of_a_run_name_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"does not exist; remove {tmp_path}, and the same command serves it again"):
        validation._side(tmp_path)


def test_a_torch_that_cannot_be_loaded_is_one_line(
    odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the memory of a process is limited to less than its libraries take."""

    def fail(name: str) -> None:
        raise ImportError("libtorch_cpu.so: failed to map segment from shared object")

    monkeypatch.setattr("importlib.import_module", fail)
    assert run([*options(odd, out=str(tmp_path / "out")), "--policy", "chunked"]) == 2
    assert_one_line(capsys.readouterr().err, "which cannot be loaded (libtorch_cpu.so: failed to map segment")
