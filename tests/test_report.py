"""bulletsim report: the right page for what lies in a directory, whole, self-contained and true to its numbers."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from benchmarks.report import MOST_BYTES, many_panels, write_sweep
from cli.main import run
from policies.slo import SLO
from sim.metrics import attainment, ttft_s
from sim.plots.looks import POLICY_LOOKS
from sim.plots.otherlimits import heat_map
from sim.plots.slo import slo as draw_slo
from sim.records import STATES, Records
from sim.report.axes import fitted
from sim.report.distributions import curve
from sim.report.marks import MARKS
from sim.report.reruns import served as served_again
from sim.report.reruns import to_serve_again
from sim.report.sources import Kind, kind_of
from sim.results import load_results
from sim.rundir import load_run
from sim.sweep import Failure
from sim.sweep_spec import SweepSpec
from sim.tuning import Tuner, varied

VOID = ("meta",)
SPEC = SweepSpec.model_validate(
    {
        "base": {"requests": 10, "model": "Llama-3.1-8B", "slo": {"ttft_s": 1.0, "tpot_s": 0.1}},
        "policies": ["chunked", {"name": "bullet", "label": "</script><b>bullet"}],
        "grid": {"device": ["A100-80G", "H100"], "trace": ["workload:code", "workload:chat"], "rate": [4.0, 40.0]},
    }
)
OPTIONS = "--trace workload:chat --requests 12 --model Llama-3.1-8B --device A100-80G --slo-ttft 1 --slo-tpot 0.05"


class Page(HTMLParser):
    """What a page holds; its tags are closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[dict[str, str]] = []
        self.words: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.append({name: value or "" for name, value in attrs})
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def having(self, name: str) -> list[str]:
        return [one[name] for one in self.attributes if name in one]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three runs."""
    folder = tmp_path_factory.mktemp("runs")
    for policy, rate in (("chunked", 4), ("chunked", 8), ("bullet", 4)):
        out = str(folder / f"{policy}-{rate}")
        assert (
            run(["simulate", *OPTIONS.split(), "--policy", policy, "--rate", str(rate), "--out", out, "--quiet"]) == 0
        )
    return folder


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    write_sweep(folder, SPEC)
    (folder / "spec.yaml").write_text("policies: [chunked]  # as it was\n")
    lost = Failure(cell="1", policy="bullet", rate=4.0, error="no room", shown="bullet", point={"rate": 4.0})
    (folder / "failures.json").write_text(json.dumps({"failures": [lost.to_dict()]}))
    return folder


def test_a_run_is_a_page_of_its_own(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = runs / "bullet-4"
    assert run(["report", str(directory), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    file = directory / "report.html"
    assert said == {"kind": "run", "file": str(file), "bytes": file.stat().st_size}
    page = Page(file)
    assert not {"link", "iframe", "object", "img"} & set(page.tags)
    assert not page.having("src")
    assert all(href.startswith("data:application/json,") for href in page.having("href"))
    assert not re.search(r"https?://", file.read_text(encoding="utf-8"))
    assert "width=device-width, initial-scale=1" in page.having("content")
    words = " ".join(page.words)
    assert all(title in words for title in ("TTFT", "SM share", "Waiting requests", "Free KV", "Attainment"))
    assert load_run(directory).config.model_dump(mode="json") == json.loads(
        next(text for text in page.words if text.startswith("{") and '"policy"' in text and '"cells"' not in text)
    )
    assert run(["report", str(directory), "--quiet"]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    assert Page(file).words == page.words


def test_runs_are_compared(runs: Path, tmp_path: Path) -> None:
    one, two = (str(runs / name) for name in ("chunked-4", "bullet-4"))
    assert run(["report", one, two, "--out", str(tmp_path / "two.html")]) == 0
    page = Page(tmp_path / "two.html")
    assert "2 runs compared" in page.words
    assert "policy.name" in page.words
    assert "Frontier and latency" not in page.words
    assert run(["report", str(runs), "--out", str(tmp_path / "all.html")]) == 0
    page = Page(tmp_path / "all.html")
    assert {"3 runs compared", "chunked-8", "Frontier and latency"} <= set(page.words)


def test_a_sweep_has_a_mark_a_cell_and_buttons(sweep: Path, tmp_path: Path) -> None:
    assert run(["report", str(sweep), "--out", str(tmp_path / "new" / "s.html")]) == 0
    page = Page(tmp_path / "new" / "s.html")
    rows = load_results(sweep)
    assert set(page.having("data-cell")) == {str(place) for place in range(len(rows))}
    assert page.having("data-facet") == ["policy", "device", "trace"]
    assert page.tags.count("section") == 4 + 1
    assert any(tip.endswith("requests/s per GPU") for tip in page.having("data-tip"))
    assert "</script><b>bullet" in page.words
    assert "b" not in page.tags
    assert {"policies: [chunked]  # as it was\n", "no room"} <= set(page.words)
    told = json.loads(next(text for text in page.words if text.startswith('{"shared"')))
    assert told["shared"]["model"] == "Llama-3.1-8B"
    assert told["cells"][0]["device"] == "A100-80G"
    assert {entry["policy"] for entry in told["cells"]} == {"chunked", "</script><b>bullet"}


def test_a_sweep_has_distributions_of_cells_that_are_served_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.output.LEAST_S", 0.0)
    (tmp_path / "spec.yaml").write_text(
        "{base: {trace: 'workload:code', requests: 40, model: tiny, slo: {ttft_s: 0.5}}, "
        "policies: [chunked, bullet], grid: {device: [A100-80G, H100], rate: [300, 600], seed: [0, 1]}}"
    )
    directory = tmp_path / "sweep"
    assert run(["sweep", str(tmp_path / "spec.yaml"), "--out", str(directory), "--jobs", "1", "--quiet"]) == 0
    assert run(["report", str(directory)]) == 0
    words = " ".join(Page(directory / "report.html").words)
    assert "4 in all: " in words
    assert "bulletsim report DIR --distributions" in words
    capsys.readouterr()
    assert run(["report", str(directory), "--distributions"]) == 0
    assert capsys.readouterr().err.splitlines()[-1].startswith("serving again: 4/4 cells")
    page = Page(directory / "report.html")
    assert [page.words.count(f"code: tiny on {device}: 600 requests/s per GPU") for device in ("A100-80G", "H100")] == [
        1,
        1,
    ]
    assert page.having("aria-label").count("TPOT") == 2
    served = served_again(directory, to_serve_again(directory)[0])
    row = next(row for row in load_results(directory) if row["rate"] == 600)
    assert float(np.nanmean(ttft_s(served.records))) == pytest.approx(row["ttft_mean_s"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 7}, "was run by other code, or with other files, than there are now; run the sweep again"),
        ({"seed": -7}, "config: seed is -7"),
    ],
)
def test_a_cell_that_would_be_another_run_is_not_served_again(
    change: dict[str, int], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.yaml").write_text(
        "{base: {trace: 'workload:code', requests: 4, rate: 9, model: tiny, device: H100}, policies: [chunked]}"
    )
    directory = tmp_path / "sweep"
    assert run(["sweep", str(tmp_path / "spec.yaml"), "--out", str(directory), "--jobs", "1", "--quiet"]) == 0
    (cell,) = (directory / "cells").iterdir()
    document = json.loads(cell.read_text())
    cell.write_text(json.dumps(document | {"config": document["config"] | change}))
    capsys.readouterr()
    assert run(["report", str(directory), "--distributions"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[]", "{}", '{"failures": 3}', '{"failures": [{"policy": 3}]}'])
def test_failures_that_are_none_are_told(
    text: str, sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sweep, tmp_path / "sweep")
    (tmp_path / "sweep" / "failures.json").write_text(text)
    assert run(["report", str(tmp_path / "sweep")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'sweep' / 'failures.json'}")


def test_a_sweep_without_rates_is_a_table(tmp_path: Path) -> None:
    write_sweep(tmp_path, SPEC.model_copy(update={"grid": {"device": ["A100-80G"], "trace": ["workload:code"]}}))
    assert run(["report", str(tmp_path)]) == 0
    page = Page(tmp_path / "report.html")
    assert any("no cell of this sweep sets a rate" in words for words in page.words)
    assert len(page.having("data-cell")) == 2


def test_a_tuning_shows_its_front(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    base = load_config(f"{OPTIONS} --policy chunked", tmp_path)
    tuner = Tuner(
        base=base,
        settings=[varied("budget_tokens=256:2048")],
        rate=varied("rate=1:4:log"),
        latency="ttft_p90_s",
    )
    found = tuner.run(tmp_path / "tuned", 4)
    assert run(["report", str(tmp_path / "tuned")]) == 0
    page = Page(tmp_path / "tuned" / "report.html")
    assert "chunked, tuned" in page.words
    assert len(page.having("data-cell")) == len(found.rows)
    assert any("--vary budget_tokens=256:2048 --rates 1:4 --target 0.9" in words for words in page.words)
    assert any(words.startswith(f"{len(found.front)} of {len(found.rows)} trials") for words in page.words)


def load_config(options: str, folder: Path):  # type: ignore[no-untyped-def]
    assert run(["simulate", *options.split(), "--rate", "2", "--out", str(folder / "base"), "--quiet"]) == 0
    return load_run(folder / "base").config


@pytest.mark.parametrize("find", ["rate", "gpus"])
def test_a_capacity_is_read_from_what_was_printed(
    find: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = f"--policy chunked --find {find} --rate 4 --requests 24 --seeds 2 --tolerance 0.2 --json"
    assert run(["capacity", *OPTIONS.split(), *options.split()]) == 0
    file = tmp_path / "capacity.json"
    file.write_text(capsys.readouterr().out)
    assert run(["report", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "capacity"
    page = Page(tmp_path / "capacity.html")
    assert "Capacity: chunked, Llama-3.1-8B on A100-80G, chat" in page.words
    document = json.loads(file.read_text())
    assert len(page.having("data-tip")) == len(document.get("capacity", {}).get("points", []))
    del document["question"]["target"]
    file.write_text(json.dumps(document))
    assert "capacity.json: question.target is missing" in refused([str(file)], capsys)


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["report", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    return said.err


def test_what_no_page_can_be_of_is_told(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text("{}")
    for path, why in (
        (tmp_path, "is nothing"),
        (tmp_path / "no", "does not exist"),
        (tmp_path / "x.json", "is nothing"),
    ):
        said = refused([str(path)], capsys)
        assert f"{path} {why}" in said
        assert "give a run (config.json and requests.parquet in it)" in said
    one = str(runs / "chunked-4")
    assert f"{tmp_path} is not a run" in refused([one, str(tmp_path)], capsys)
    assert "give --out" in refused([one, one], capsys)
    assert "ends in .html" in refused([one, "--out", str(tmp_path / "x.pdf")], capsys)
    assert list(tmp_path.glob("*.html")) == []


def test_a_damaged_run_is_told(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "run"
    shutil.copytree(runs / "bullet-4", directory)
    for text, why in (("{}", "has no gpus"), ('{"gpus": 1, "arrived": 1, "states": {}}', "has no states.finished")):
        (directory / "summary.json").write_text(text)
        assert f"run run: its summary.json {why}" in refused([str(directory)], capsys)
    (directory / "steps.parquet").write_text("no")
    assert "steps.parquet is not a readable Parquet file" in refused([str(directory)], capsys)
    (directory / "summary.json").write_text("[]")
    assert "summary.json is not the summary of a run; repeat" in refused([str(directory)], capsys)


def test_a_page_of_500_cells_is_less_than_5_mb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write_sweep(tmp_path, many_panels()) == 500
    assert run(["report", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] < MOST_BYTES


def test_kinds(runs: Path, sweep: Path) -> None:
    assert kind_of([runs]) is Kind.comparison
    assert kind_of([runs / "bullet-4"]) is Kind.run
    assert kind_of([sweep]) is Kind.sweep


def made(ttft_s: list[float], tpot_s: list[float], states: list[str]) -> Records:
    """Requests of 11 tokens that arrive at 0."""
    count = len(ttft_s)
    ints, nan = np.full(count, 11), np.full(count, np.nan)
    first = np.array(ttft_s)
    return Records(
        request_id=tuple(map(str, range(count))),
        arrival_s=np.zeros(count),
        prompt_tokens=100 * np.arange(1, count + 1),
        output_tokens=ints,
        generated_tokens=ints,
        scheduled_s=np.zeros(count),
        first_token_s=first,
        last_token_s=first + 10 * np.array(tpot_s),
        itl_mean_s=nan,
        itl_max_s=nan,
        preemptions=np.zeros(count, np.int64),
        cached_tokens=np.zeros(count, np.int64),
        instance=np.zeros(count, np.int64),
        state=np.array([STATES.index(state) for state in states], np.int8),
        reason=("",) * count,
    )


@pytest.mark.parametrize("slo", [SLO(ttft_s=0.3, tpot_s=0.05), SLO(ttft_per_token_s=0.001, tpot_s=0.05)])
def test_a_heat_map_is_the_attainment_under_each_pair_of_limits(slo: SLO) -> None:
    records = made([0.1, 0.3, 0.5, 0.2], [0.04, 0.02, 0.01, 0.01], ["finished", "finished", "finished", "running"])
    found = heat_map(records, slo, np.ones(4, np.bool_))
    assert found is not None
    assert found.slo is not None
    for row, tpot in enumerate(found.tpot_s.tolist()):
        for column, ttft in enumerate(found.ttft.tolist()):
            per_token = None if slo.ttft_per_token_s is None else slo.ttft_per_token_s * ttft
            limit = SLO(ttft_s=ttft if per_token is None else None, ttft_per_token_s=per_token, tpot_s=tpot)
            assert found.attained[row, column] == attainment(records, limit)
    own = found.attained[found.tpot_s.tolist().index(0.05), found.ttft.tolist().index(found.slo[0])]
    assert own == attainment(records, slo)
    assert (np.diff(found.attained, axis=0) >= 0).all()
    assert (np.diff(found.attained, axis=1) >= 0).all()
    drawing = draw_slo(records, slo, np.ones(4, np.bool_))
    shades = drawing.axes[0].collections[0].get_array()
    assert shades is not None
    assert np.asarray(shades).reshape(found.attained.shape) == pytest.approx(100 * found.attained)
    assert [text.get_text() for text in drawing.legends[0].get_texts()] == [
        f"SLO of the run: {own:.0%}"
    ]  # none has 90 %
    nothing = made([0.1], [0.1], ["waiting"])
    assert heat_map(nothing, slo, np.ones(1, np.bool_)) is None
    with pytest.raises(ValueError, match="no request of this run finished"):
        draw_slo(nothing, slo, np.ones(1, np.bool_))


def test_the_least_tpot_limit_that_keeps_the_target() -> None:
    records = made([0.1, 0.3], [0.04, 0.02], ["finished", "finished"])
    found = heat_map(records, SLO(ttft_s=0.3, tpot_s=0.05), np.ones(2, np.bool_))
    assert found is not None
    for row, ttft in zip(found.least_tpot(), found.ttft.tolist(), strict=True):
        expected = next((place for place, tpot in enumerate(found.tpot_s) if tpot >= 0.04), None)
        assert row == (expected if ttft >= 0.3 else None)
    assert found.attained_at(0.3, 0.05) == 1.0


def test_curves_of_many_values_are_thinned_and_keep_their_ends() -> None:
    assert curve(np.array([1.0, 2.0, 4.0])) == [(1.0, pytest.approx(1 / 3)), (2.0, pytest.approx(2 / 3)), (4.0, 1.0)]
    many = curve(np.arange(1.0, 5001.0))
    assert (len(many), many[0], many[-1]) == (200, (1.0, 1 / 5000), (5000.0, 1.0))
    assert curve(np.zeros(0)) == []


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [[], [0.0], [3.0], [1e-4, 2.0], [1e-9, 1e9], [0.2, 0.21], [12345.0, 1.0]])
def test_an_axis_has_a_few_plain_numbers_within_it(values: list[float], log: bool) -> None:
    axis = fitted("s", values, log=log)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 10
    assert all(axis.low <= value <= axis.high for value, _ in ticks)
    assert all(-1e-9 <= axis.share(value) <= 1 + 1e-9 for value, _ in ticks)
    assert all(0 <= axis.share(value) <= 1 for value in values if value > 0)


def test_every_marker_of_a_policy_has_a_path() -> None:
    assert {marker for _, marker in POLICY_LOOKS.values()} <= MARKS.keys()
