"""What TAB offers, as bash asks for it: words parted at colons, the answer in the place of the last part."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cli import completion
from cli.main import run


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("simulate --policy bul", ["bullet", "bullet-eager"]),
        ("simulate --device H1", ["H100"]),
        ("tune --model qwen", []),
        ("capacity --model Llama-3.1-8", ["Llama-3.1-8B"]),
        ("simulate --trace work", ["workload:code", "workload:chat", "workload:sharegpt", "workload:summary"]),
        ("simulate --trace workload : s", ["sharegpt", "summary"]),
        ("traces info workload :", ["code", "chat", "sharegpt", "summary"]),
        ("validate --trace workload : co", ["code"]),
        ("simulate --policy muxwise --set slow", ["slowdown="]),
        ("simulate --policy muxwise --set slowdown = 1.1 --device L40", ["L40S"]),
        ("traces fetch azure-conv-2023", ["azure-conv-2023"]),
        ("sweep --backend d", ["dask"]),
        ("profile --device cu", ["cuda"]),
        ("capacity --find sp", ["split"]),
        ("plot pred", ["prediction"]),
        ("simulate --policy mine.p", []),
    ],
)
def test_names_are_offered(
    line: str, offered: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bulletsim", *line.split()]
    monkeypatch.setenv(completion.VARIABLE, completion.BASH)
    monkeypatch.setenv("COMP_WORDS", "\n".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        completion.in_bash(lambda: run([]))
    assert capsys.readouterr().out.split() == offered


def test_the_script_of_a_shell_asks_the_command() -> None:
    program = "from cli.entry import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "--show-completion", "bash"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{completion.VARIABLE}={completion.BASH} $1" in done.stdout
