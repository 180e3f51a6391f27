"""bulletsim capacity: what it prints, what it refuses, and that it is done in few simulations."""

from __future__ import annotations

import json
import sys

import pytest

from cli.main import run
from cli.output import searching

OPTIONS = "--trace workload:code --requests 60 --model tiny --device A100-80G --slo-ttft 0.02 --seeds 2 --tolerance 0.1"
RUN = ["capacity", "--rate", "400", *OPTIONS.split()]


def test_a_capacity_is_a_table_and_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*RUN, "--policy", "chunked", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "chunked, tiny on A100-80G, code" in captured.out
    assert "kept with 95% confidence" in captured.out
    assert max(map(len, captured.out.splitlines())) <= 80
    assert run([*RUN, "--policy", "chunked", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = document["capacity"]
    assert found["kept"] <= found["rate"]
    assert found["points"][0]["decision"] == "kept"
    assert document["question"]["target"] == 0.9
    assert document["simulations"] < 40


def test_progress_is_a_line_a_run_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*RUN, "--policy", "chunked"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("400 requests/s, seed 0: ")


def test_gpus_and_settings_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*RUN, "--policy", "chunked", "--find", "gpus", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"] >= 1
    assert run([*RUN, "--find", "xy", "--instances", "3", "--quiet"]) == 0
    assert "best: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--policy bullet --find split", "--find split is about the policy static-split, not bullet"),
        ("--policy chunked --arrivals closed:4", "arrivals 'closed:4' have no rate to set"),
        ("--policy chunked --target 2", "target is 2; give a share"),
        ("--policy chunked --seeds 1", "seeds is 1"),
        ("--policy chunked --tolerance 1e-9", "tolerance is 1e-09; rates are told apart down to 0.0001 of them"),
        ("--policy chunked --rate 1e300", "rate is 1e+300; begin the search at one from 0.001 to 100000 requests/s"),
        ("", "--policy is missing; see bulletsim capacity --help"),
        ("--policy chunked --warmup 0.6 --drain 0.5", "leave nothing to judge"),
        ("--policy chunked --warmup nan", "warm-up nan and drain 0.1 leave nothing to judge"),
        ("--policy chunked --requests 3", "2 seeds of 1 judged requests cannot show an attainment of 0.9"),
        ("--policy chunked --requests 3 --find gpus", "which takes 29 in all; serve more (--requests)"),
        ("--find split --set decode_sms=20", "--find split tries every decode_sms, so --set decode_sms has no meaning"),
        ("--find xy --set prefill_instances=1", "so --set prefill_instances has no meaning; leave it out"),
        ("--find xy --instances 1", "--find xy shares out 2 --instances or more, not 1"),
    ],
)
def test_wrong_options(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*RUN, *arguments.split()]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_what_stays_undecided_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    few = [*RUN, "--policy", "chunked", "--confidence", "0.999", "--target", "0.85"]
    assert run([*few, "--rate", "700", "--find", "gpus", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "undecided after 2 seeds" in out
    assert max(map(len, out.splitlines())) <= 80


def test_on_a_terminal_a_search_that_is_stopped_leaves_its_latest_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    def stopped(error: type[BaseException]) -> None:
        with searching(quiet=False) as tell:
            tell("4 requests/s", "about 3 s left")
            raise error

    for error, left in ((KeyboardInterrupt, True), (ValueError, False)):
        with pytest.raises(error):
            stopped(error)
        assert capsys.readouterr().err.endswith("last: 4 requests/s\n") is left


def test_gpus_need_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    without = [word for word in RUN if word not in ("--rate", "400")]
    assert run([*without, "--policy", "chunked", "--find", "gpus"]) == 2
    assert "needs the --rate" in capsys.readouterr().err
