"""``bulletsim traces``: output for people in 80 columns, one JSON document for programs, errors that say what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import traces
from cli.traces import app
from traces import TraceError

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def document(*arguments: str | Path) -> Any:
    return json.loads(run(*arguments, "--json"))


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    rows = (f"2023-11-16 18:17:{second:02}.0000000,{100 + second},{1 + second}" for second in range(0, 60, 3))
    path.write_text(AZURE + "\n".join(rows))
    return path


def test_list_names_workloads_public_traces_and_formats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text = run("list")
    for word in ("workload:sharegpt", "azure-code-2023", "mooncake-conversation", "servegen"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 80
    listed = document("list")
    assert [entry["name"] for entry in listed["workloads"]] == ["code", "chat", "sharegpt", "summary"]
    assert not any(entry["fetched"] for entry in listed["public"])


def test_info_shows_numbers_and_pictures_in_80_columns(azure: Path, tmp_path: Path) -> None:
    text = run("info", azure)
    assert "azure: 20 requests" in text
    assert "mean rate (requests/s)" in text
    assert max(map(len, text.splitlines())) <= 80
    picture = tmp_path / "a.png"
    found = document("info", azure, "--picture", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert (found["requests"], found["arrivals"]["span_s"]) == (20, 57)
    assert found["rank_correlation"] == pytest.approx(1)
    assert found["provenance"]["format"] == "azure"


def test_info_of_a_workload_with_and_without_arrivals() -> None:
    assert "no arrival times" in run("info", "workload:code", "--limit", "50")
    found = document("info", "workload:code", "--limit", "50", "--arrivals", "constant:4")
    assert (found["requests"], found["arrivals"]["rate"]) == (50, pytest.approx(4))
    assert document("info", "workload:code", "--limit", "50", "--seed", "1")["requests"] == 50
    assert max(map(len, run("info", "workload:summary", "--arrivals", "poisson:0.01").splitlines())) <= 80


def test_convert_cuts_limits_and_gives_arrivals(azure: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.parquet"
    done = document("convert", azure, target, "--slice", "6:30", "--limit", "5", "--arrivals", "rescale:2")
    assert done["requests"] == 5
    back = traces.load(target)
    assert back.arrival_s is not None
    assert back.arrival_s.tolist() == pytest.approx([0, 0.5, 1, 1.5, 2])
    assert back.prompt_tokens.tolist() == [106, 109, 112, 115, 118]
    assert "t.csv: 20 requests" in run("convert", azure, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text().splitlines()[:2] == [
        "request_id,arrival_s,prompt_tokens,output_tokens",
        "0,0.0,100,1",
    ]


def test_convert_and_info_shrink_lengths_and_keep_arrivals(azure: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.csv"
    done = document("convert", azure, target, "--limit", "3", "--shrink", "8", "--arrivals", "constant:2")
    assert "prompts and answers divided by 8, rounded up to whole tokens" in done["provenance"]["notes"]
    back = traces.load(target)
    assert (back.prompt_tokens.tolist(), back.output_tokens.tolist()) == ([13, 13, 14], [1, 1, 1])  # 100, 103, 106
    assert back.arrival_s is not None
    assert back.arrival_s.tolist() == [0, 0.5, 1]
    assert document("info", azure, "--shrink", "10")["prompt_tokens"]["max"] == 16  # of 157


def test_convert_replaces_only_when_told_and_never_its_input(tmp_path: Path) -> None:
    source, target, link = tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "link.csv"
    run("convert", "workload:chat", source, "--limit", "3")
    target.write_text("mine")
    link.symlink_to(source)
    before = source.read_bytes()
    for trace in (source, "workload:chat"):
        with pytest.raises(ValueError, match=r"b\.csv: exists already; .*--force"):
            run("convert", trace, target)
    assert target.read_text() == "mine"
    run("convert", source, target, "--force")
    assert len(traces.load(target)) == 3
    for own in (source, tmp_path / "." / "a.csv", link):
        with pytest.raises(ValueError, match="never replaced"):
            run("convert", source, own, "--limit", "1", "--force")
    assert source.read_bytes() == before
    with pytest.raises(ValueError, match="a folder; give the name of a file"):
        run("convert", source, tmp_path, "--force")


def test_convert_does_not_replace_a_file_of_the_folder_that_it_reads(tmp_path: Path) -> None:
    (tmp_path / "chunk-0-trace.csv").write_text("0,1,1,Gamma,1,1\n")
    (tmp_path / "chunk-0-dataset.json").write_text('{"0": {"input_tokens": "{3: 1}", "output_tokens": "{4: 1}"}}')
    with pytest.raises(ValueError, match="never replaced"):
        run("convert", tmp_path, tmp_path / "chunk-0-trace.csv", "--force")


def test_info_on_a_stream_without_blocks(azure: Path) -> None:
    code = f"import cli.main; raise SystemExit(cli.main.run(['traces', 'info', {str(azure)!r}]))"
    for encoding, bar in (("ascii", "@"), ("latin-1", "@"), ("utf-8", "█")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            cwd=Path(__file__).parents[1],
            env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": encoding},
        )
        assert bar in done.stdout.decode(encoding)


def test_converted_files_are_equal_byte_for_byte(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run("convert", "workload:chat", tmp_path / f"{name}.csv", "--arrivals", "gamma:4,cv=2", "--seed", "3")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_servegen_folders_are_cut_before_they_are_generated(tmp_path: Path) -> None:
    folder = tmp_path / "clients"
    folder.mkdir()
    (folder / "chunk-0-trace.csv").write_text("0,1e6,1,Gamma,1,1\n600,0.5,1,Gamma,1,1\n")
    (folder / "chunk-0-dataset.json").write_text(
        json.dumps({"0": {"input_tokens": "{3: 1}", "output_tokens": "{4: 1}"}})
    )
    assert document("info", folder, "--slice", "600:1200", "--scale", "0.1")["requests"] == 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("info", "nothing.csv"), r"nothing\.csv: no such file"),
        (("info", "code"), "the built-in workload of that name is workload:code"),
        (("info", "workload:nope"), "unknown workload 'nope'"),
        (("info", "workload:code", "--arrivals", "poison:4"), "known forms: recorded"),
        (("info", "workload:code", "--arrivals", "closed:4"), "depend on when requests finish"),
        (("info", "workload:code", "--arrivals", "recorded"), "without arrival times"),
        (("info", "workload:code", "--slice", "5"), "slice is '5'; give START:END"),
        (("info", "workload:code", "--slice", "9:5"), "slice 9:5 is empty"),
        (("info", "workload:code", "--scale", "2"), "--scale is for ServeGen folders"),
        (("info", "workload:code", "--limit", "0"), "0 requests"),
        (
            ("convert", "workload:code", "t.csv", "--shrink", "0"),
            "lengths divided by 0; give a whole number of 1 or more",
        ),
        (
            ("info", "workload:code", "--shrink", "99999999999999999999"),
            "lengths divided by 99999999999999999999; give",
        ),
        (("info", "workload:code", "--format", "azure"), "format azure is of a file, and workload:code is none"),
        (("fetch", "azure-code-2023", "--to", "/proc/nowhere"), "cannot be written: No such file"),
        (("info", "workload:code", "--limit", "10000000000"), "ask for 100,000,000 at most"),
        (("info", "workload:code", "--arrivals", "poisson:1e-12"), r"beyond 1e\+12 s; raise the rate"),
        (("convert", "workload:code", "t.txt"), r"saved as \.csv or \.parquet"),
        (("fetch", "nope"), "no public trace is called 'nope'"),
    ],
)
def test_bad_arguments_raise_one_clear_error(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        run(*arguments)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_format_forced_is_an_error(azure: Path) -> None:
    with pytest.raises(TraceError, match="needs column"):
        run("info", azure, "--format", "vidur")


def test_importing_traces_and_the_command_stays_light() -> None:
    heavy = ("pandas", "scipy", "sklearn", "matplotlib", "torch", "pyarrow", "pooch")
    code = f"import sys, traces; print([m for m in {heavy!r} if m in sys.modules])"
    assert _python(code) == "[]"
    code = f"import sys, cli.traces; print([m for m in {(*heavy, 'numpy')!r} if m in sys.modules])"
    assert _python(code) == "[]"


def test_reading_a_trace_needs_no_pandas(azure: Path) -> None:
    code = f"import sys, traces; traces.load({str(azure)!r}); print('pandas' in sys.modules)"
    assert _python(code) == "False"


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    )
    return done.stdout.strip()
