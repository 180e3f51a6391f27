"""bulletsim simulate and the rules that hold for every command: statuses, one line of error, one document."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sim.simulate
from cli.interruption import held_back
from cli.main import run
from cli.output import number, table
from cli.settings import pairs
from sim.report.runs import runs_page
from sim.rundir import load_run
from traces import OpenArrivals

COMMAND = (
    "simulate --trace workload:sharegpt --rate 8 --requests 12 --policy chunked --model Llama-3.1-8B"
    " --device A100-80G --slo-ttft 0.5 --slo-tpot 0.1"
)
OPTIONS = COMMAND.split()


def test_a_run_prints_its_metrics_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(OPTIONS) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("chunked, Llama-3.1-8B on 1 x A100-80G\n12 requests: 12 finished\n")
    for part in ("TTFT (ms)", "end to end (s)", "requests/s per GPU", "SLO attainment (%)", "interpolated 100%"):
        assert part in text


def test_json_is_one_document_and_repeatable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert run([*OPTIONS, "--json", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert captured.err == ""
    assert document["metrics"] == json.loads((out / "summary.json").read_text())
    assert document["config"] == json.loads((out / "config.json").read_text())

    assert run(["simulate", "--config", str(out / "config.json"), "--out", str(tmp_path / "again"), "--quiet"]) == 0
    assert (tmp_path / "again" / "requests.parquet").read_bytes() == (out / "requests.parquet").read_bytes()
    assert (tmp_path / "again" / "config.json").read_bytes() == (out / "config.json").read_bytes()


def test_options_change_a_stored_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*OPTIONS, "--set", "budget_tokens=512", "--out", str(tmp_path / "run"), "--json"]) == 0
    stored = str(tmp_path / "run" / "config.json")
    capsys.readouterr()
    assert run(["simulate", "--config", stored, "--seed", "7", "--policy", "bullet", "--json"]) == 0
    changed = json.loads(capsys.readouterr().out)["config"]
    assert (changed["seed"], changed["policy"]) == (7, {"name": "bullet", "settings": {}})
    assert changed["slo"]["tpot_s"] == 0.1


def test_another_version_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*OPTIONS, "--out", str(tmp_path / "run")]) == 0
    path = tmp_path / "run" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": "0.0.1"}))
    capsys.readouterr()
    assert run(["simulate", "--config", str(path)]) == 0
    assert "was made with version 0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("simulate", "error: --trace is missing"),
        ("simulate --bogus", "error: No such option: --bogus"),
        ("nope", "error: No such command 'nope'"),
        ("simulate --requests x", "error: Invalid value for '--requests'"),
        ("OPTIONS --requests 0", "error: options: requests is 0: input should be greater than or equal to 1"),
        ("OPTIONS --policy nope", "error: unknown policy 'nope'"),
        ("OPTIONS --set budget=3", "error: policy chunked has no setting 'budget'"),
        ("OPTIONS --set budget_tokens", "error: --set 'budget_tokens' is no key=value pair"),
        ("OPTIONS --trace /absent.csv", "error: /absent.csv: no such file"),
        ("OPTIONS --arrivals sometimes", "error: arrivals 'sometimes'"),
        ("OPTIONS --kv-blocks 1", "--oversized reject"),
        ("OPTIONS --warmup 1000", "error: --warmup 1000 and --drain 0 leave no request to measure"),
        ("OPTIONS --instances 10001", "instances is 10001"),
        ("OPTIONS --requests 10000000000", "requests is 10000000000"),
        ("simulate --trace t --policy chunked --model m --device d --slo-ttft-floor 1", "--slo-ttft-per-token"),
        ("OPTIONS --kv-blocks 99999999999", "error: kv_blocks is 99999999999; a simulation takes less than 2147483648"),
        ("OPTIONS --seed 99999999999999999999", "input should be less than 9223372036854775808"),
        ("OPTIONS --rate 1e-308", "the last is at inf s, beyond 1e+12 s; raise the rate"),
        ("OPTIONS --arrivals gamma:4,cv=1e308", "error: cv is 1e+308; give 0.001 to 1000 (constant has none)"),
        ("OPTIONS --until 1e308", "until_s is 1e+308: input should be less than or equal to 1000000000000"),
        ("OPTIONS --latency pass_overhead_s=1e300", "latency.pass_overhead_s is 1e+300: input should be less"),
        ("OPTIONS --latency pace=slow", "error: options: latency.pace is 'slow': input should be a valid number\n"),
        ("OPTIONS --latency sharin=turns", "error: options: latency.sharin is not a setting; known: model, "),
        ("OPTIONS --estimator handover_s=0.1", "estimator.handover_s is 0.1, but a policy estimates launches"),
        ("OPTIONS --policy muxwise --set slowdown=Infinity", "setting slowdown is inf; give a finite number"),
        ("OPTIONS --policy nexus --set slack=NaN", "setting slack is nan; give a finite number"),
        ("OPTIONS --token-times", "error: --token-times writes to a run directory; give --out DIR too"),
        ("simulate --config /absent.json", "error: /absent.json does not exist"),
        ("simulate --config /", "error: / is a directory; a JSON file was expected"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = [word for part in arguments.split() for word in (OPTIONS if part == "OPTIONS" else [part])]
    assert run(given) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_an_existing_directory_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim.simulate, "prepare", lambda config: pytest.fail("ran"))
    assert run([*OPTIONS, "--out", str(tmp_path)]) == 2
    assert "already exists" in capsys.readouterr().err


def test_an_unwritable_place_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run([*OPTIONS, "--out", str(tmp_path / "file" / "run")]) == 2
    assert "file" in capsys.readouterr().err


def test_an_interrupt_is_130_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sim.simulate.Prepared, "loop", interrupt)
    assert run([*OPTIONS, "--out", str(tmp_path / "run")]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal when the fifth request has finished."""
    left = []

    def finished(arrivals: OpenArrivals, index: int, now_s: float) -> None:
        left.append(index)
        if len(left) == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(OpenArrivals, "finished", finished)


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupted_run_is_kept_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    handler = signal.getsignal(signal.SIGINT)
    assert run([*OPTIONS, "--out", str(out)]) == 130
    assert signal.getsignal(signal.SIGINT) is handler
    captured = capsys.readouterr()
    kept = f"what is done stays in {out}, and with --force the same command begins anew"
    assert re.fullmatch(
        rf"interrupted after \d+(\.\d)? s of simulated time; {re.escape(kept)}\ninterrupted\n", captured.err
    )
    found = load_run(out)
    assert found.interrupted_s is not None
    assert found.interrupted_s >= found.steps.end_s[-1]
    assert found.summary["states"]["finished"] == 5 < found.summary["arrived"] <= 12
    assert captured.out.startswith("chunked, Llama-3.1-8B on 1 x A100-80G\n")
    assert run(["plot", "trace", str(out)]) == 0
    assert f"note: {out} was interrupted after" in capsys.readouterr().err
    assert "run was interrupted after" in runs_page({"run": found})
    # The same again is the whole run, and an interruption leaves that alone.
    assert run([*OPTIONS, "--out", str(out), "--force"]) == 0
    assert load_run(out).interrupted_s is None


def test_an_interrupted_run_leaves_a_whole_one_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    out = tmp_path / "run"
    assert run([*OPTIONS, "--out", str(out), "--quiet"]) == 0
    whole = (out / "steps.parquet").read_bytes()
    capsys.readouterr()
    request.getfixturevalue("ctrl_c")
    assert run([*OPTIONS, "--out", str(out), "--force", "--json"]) == 130
    document = json.loads(capsys.readouterr().out)
    assert document["out"] is None
    assert document["metrics"]["interrupted_s"] > 0
    assert (out / "steps.parquet").read_bytes() == whole


def test_a_second_interrupt_ends_at_once() -> None:
    stops = []
    with pytest.raises(KeyboardInterrupt), held_back() as held:  # noqa: PT012 - two signals
        held.stops(lambda: stops.append("stopped"))
        signal.raise_signal(signal.SIGINT)
        assert stops == ["stopped"]
        signal.raise_signal(signal.SIGINT)
        pytest.fail("went on")


def test_an_internal_error_is_no_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(sim.simulate.Prepared, "loop", fail)
    with pytest.raises(RuntimeError, match="bug"):
        run(OPTIONS)


def test_short_memory_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 74.5 GiB")

    monkeypatch.setattr(sim.simulate.Prepared, "loop", fail)
    assert run(OPTIONS) == 2
    assert capsys.readouterr().err.startswith("error: memory is short (Unable to allocate 74.5 GiB); serve fewer")


def test_what_the_system_has_no_more_of_is_no_stream(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(sim.simulate.Prepared, "loop", fail)
    assert run(OPTIONS) == 2
    assert capsys.readouterr().err.startswith("error: Too many open files: a limit of this process or machine; raise")


def test_no_slo_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    options = OPTIONS[: OPTIONS.index("--slo-ttft")]
    assert run(options) == 0
    printed = capsys.readouterr().out
    assert "\nno SLO: " in printed
    lines = {line.rsplit(None, 1)[0].strip(): line.split()[-1] for line in printed.splitlines() if line.strip()}
    names = ("SLO attainment (%)", "TTFT alone (%)", "TPOT alone (%)", "goodput, requests/s per GPU")
    assert [lines[name] for name in names] == ["-"] * 4
    assert run([*options, "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics["attainment"] is metrics["goodput_per_s_per_gpu"] is None


def shell(line: str) -> subprocess.CompletedProcess[bytes]:
    """``bulletsim`` in a shell, for what only a process has: its streams."""
    command = line.replace("bulletsim", f"{sys.executable} -c 'from cli.entry import main; main()'")
    return subprocess.run(["bash", "-c", command], capture_output=True, timeout=120)


def test_closed_streams_do_not_matter(tmp_path: Path) -> None:
    done = shell(f"bulletsim {COMMAND} --out {tmp_path / 'run'} 2>&-")
    assert done.returncode == 0
    assert done.stdout.startswith(b"chunked, ")
    assert (tmp_path / "run" / "config.json").is_file()
    assert shell(f"bulletsim {COMMAND} >&-").returncode == 0
    refused = shell("bulletsim simulate 2>&-")
    assert (refused.returncode, refused.stdout) == (2, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_a_full_standard_output_is_one_line() -> None:
    done = shell("bulletsim policies > /dev/full")
    assert (done.returncode, done.stderr) == (2, b"error: standard output: No space left on device\n")


def test_ctrl_c_while_modules_are_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from cli.entry import main; main()"
    done = subprocess.run([sys.executable, "-c", script, "policies"], capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


def test_an_ascii_terminal_gets_another_character() -> None:
    script = "import cli.main; cli.main._open_streams(); print('2\u00d7')"
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=ascii_only)
    assert (done.returncode, done.stdout) == (0, b"2?\n")


def test_every_list_is_a_table_of_one_style(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("models", "devices"):
        assert run([name]) == 0
        head, rule, *rows = capsys.readouterr().out.splitlines()
        assert head.split()[0] == name.removesuffix("s")
        assert set(rule) == {"-", " "}
        assert max(map(len, [head, *rows])) <= 80
        assert run([name, "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)[name]) == len(rows)


def test_help_and_lists(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["simulate", "--help"], ["models"], ["devices"], ["policies"]):
        assert run(arguments) == 0
    assert "--set budget_tokens=" in capsys.readouterr().out
    assert run(["policies", "--json"]) == 0
    listed = {entry["name"]: entry["settings"] for entry in json.loads(capsys.readouterr().out)["policies"]}
    assert listed["chunked"]["router"] == "least-loaded"
    for name in listed:
        assert run(["simulate", "--policy", name]) == 2


def test_settings_typed_as_pairs() -> None:
    assert pairs("--set", ["a=1", "b=0.5", "c=true", "d=null", "e=least-loaded", "f=x=y"]) == {
        "a": 1,
        "b": 0.5,
        "c": True,
        "d": None,
        "e": "least-loaded",
        "f": "x=y",
    }
    with pytest.raises(ValueError, match="gives a twice"):
        pairs("--set", ["a=1", "a=2"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0.00"),
        (0.1234, "0.123"),
        (12.34, "12.3"),
        (99.96, "100"),
        (123.4, "123"),
        (98765.0, "98765"),
        (0.00001, "1.0e-05"),
    ],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_tables_align() -> None:
    assert table(["name", "x"], [["a", "1"], ["bb", "10"]]) == "name   x\n----  --\na      1\nbb    10"


def test_tables_fit_80_columns() -> None:
    heads = ["policy", *["requests/s per GPU"] * 4]
    shown = table(
        heads, [["chunked(budget_tokens=512, max_resident=64, prompt_share=0.5)", *["12.5"] * 4]]
    ).splitlines()
    assert max(map(len, shown)) == 80
    assert shown[0].split() == ["policy", *["requests/s"] * 4]
    assert shown[1].split() == ["per", "GPU"] * 4
    assert shown[3].split() == ["chunked(budget_tokens=512,", *["12.5"] * 4]
    assert shown[4:] == ["max_resident=64,", "prompt_share=0.5)"]
