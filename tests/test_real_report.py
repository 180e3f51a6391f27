"""The report of a validation: whole, self-contained, true to its numbers, and rebuilt from run directories alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from cli.output import table
from real.comparison import Cell, Side, load_side
from real.launches import write_launches
from real.report import SUMMARY_HEAD, Study, figures, study, summary_lines, summary_rows, write_report
from real.report.document import document
from real.report.picture import picture
from sim.metrics import summarise
from sim.plots.timeline import compared
from sim.records import RunResult
from sim.report.markup import flat, tag, text
from sim.report.words import percent, seconds
from sim.rundir import write_run
from tests.worlds import simulated, world

NAME = "<b>bullet & co</b>"
HEADER = {"title": "Validation of <tiny>", "device": "cpu", "versions": {"torch": "2.13.0"}, "commands": ["a & b"]}


class Checker(HTMLParser):
    """Notes what a page holds, and that its tags are closed in order."""

    VOID = ("meta", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[str] = []
        self.sources: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(page: Path) -> Checker:
    checker = Checker()
    checker.feed(page.read_text(encoding="utf-8"))
    checker.close()
    assert checker.open == []
    return checker


def made(policy: str, name: str, repeats: int) -> Cell:
    real = tuple(
        world(policy, 3e-4, noise=0.05, seed=seed, kernels={("decode", None): 1.05}) for seed in range(repeats)
    )
    energy = [{"energy_j": 123.5}] if repeats > 1 else None
    facts = {"finished": True, "share_kind": "cores", "energy": energy}
    return Cell(
        policy=name,
        rate=6.0,
        real=tuple(replace(side, facts=facts) for side in real),
        simulated=simulated(policy),
    )


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return [made("bullet", NAME, 2), made("chunked", "chunked", 1)]


@pytest.fixture(scope="module")
def found(cells: list[Cell]) -> Study:
    return study(cells)


@pytest.fixture(scope="module")
def report(found: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "new"
    write_report(found, out, HEADER)
    return out


def test_the_page_needs_nothing_else(report: Path) -> None:
    assert sorted(path.name for path in report.iterdir()) == ["report.html", "report.json"]
    page = read(report / "report.html")
    assert not {"script", "link", "iframe", "object"} & set(page.found)
    assert page.found.count("img") == 2 * 6
    assert all(source.startswith(("data:image/svg+xml;base64,", "#cell-")) for source in page.sources)
    assert (report / "report.html").stat().st_size < 2_000_000


def test_names_are_text(report: Path) -> None:
    page = read(report / "report.html")
    assert NAME in page.words
    assert "Validation of <tiny>" in page.words
    assert "a & b" in page.words
    assert "b" not in page.found


def test_the_page_shows_the_numbers(report: Path, found: Study) -> None:
    words = " ".join(read(report / "report.html").words)
    for cell in found.cells:
        for statistic in cell.comparison.statistics:
            if statistic.error is not None:
                assert percent(statistic.error) in words
        assert cell.attribution is not None
        for cause in cell.attribution.causes.values():
            assert seconds(cause.measured) in words
            assert seconds(cause.kernels) in words
    assert "Energy and clocks: not available on this device." in words
    assert "real 2.energy.0.energy_j 123.5" in re.sub(r"\s+", " ", words)
    assert "A single real run counts" in words
    assert "2.13.0" in words


def test_numbers_as_json(report: Path, found: Study) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    whole = json.loads((report / "report.json").read_text(), parse_constant=refuse)
    assert whole["schema"] == 1
    assert whole["header"] == HEADER
    assert whole["verdict"]["judged"] == 6
    first, second = whole["cells"]
    assert [len(first["real"]), len(second["real"])] == [2, 1]
    assert first["policy"] == NAME
    comparison = found.cells[0].comparison
    by_name = {(entry["metric"], entry["part"]): entry for entry in first["statistics"]}
    for statistic in comparison.statistics:
        entry = by_name[statistic.metric, statistic.part]
        assert (entry["simulated"], entry["measured"], entry["error"]) == (
            statistic.simulated,
            statistic.measured,
            statistic.error,
        )
    assert second["statistics"][0]["repeatability"] is None
    columns = first["requests"]
    assert {len(column) for column in columns.values()} == {60}
    mean = np.mean([value for value in columns["simulated_ttft_s"] if value is not None])
    assert mean == pytest.approx(by_name["ttft_s", "mean"]["simulated"])
    causes = first["attribution"]["causes"]["tpot_s"]
    parts = sum(causes[name] for name in ("simulated", "host", "kernels", "contention", "rest"))
    assert parts == pytest.approx(causes["measured"])
    assert {entry["kind"] for entry in first["attribution"]["kernels"]} == {"prefill", "decode"}
    assert [entry["run"] for entry in first["overlaps"]] == ["real 1", "real 2", "simulated"]


def saved(directory: Path, side: Side) -> Side:
    """``side`` written as a run directory, and read back."""
    run = side.run
    nothing = np.zeros(0)
    result = RunResult(
        records=run.records,
        steps=run.steps,
        itl_s=nothing,
        itl_count=nothing.astype(np.int64),
        source_s={},
        end_s=float(run.steps.end_s.max()),
        sm_seconds=1.0,
        instances=1,
        sms=108,
    )
    write_run(directory, run.config, result, summarise(result, run.config.slo.value(), run.config.gpus))
    if side.launches is not None:
        write_launches(directory / "launches.parquet", side.launches)
        (directory / "real.json").write_text(json.dumps(dict(side.facts)))
    return load_side(directory)


def test_rebuilt_from_run_directories(cells: list[Cell], report: Path, tmp_path: Path) -> None:
    again = [
        replace(
            cell,
            real=tuple(saved(tmp_path / f"{place}-{number}", side) for number, side in enumerate(cell.real)),
            simulated=saved(tmp_path / f"{place}-simulated", cell.simulated),
        )
        for place, cell in enumerate(cells)
    ]
    rebuilt = study(again)
    assert json.loads(json.dumps(document(rebuilt, HEADER))) == json.loads((report / "report.json").read_text())
    drawn = picture(figures.requests(rebuilt.cells[0].comparison), "Requests: simulated against measured times")
    assert drawn in (report / "report.html").read_text()


def test_runs_cut_off_before_anything_finished(tmp_path: Path) -> None:
    """Such a validation has a report too; with nothing in it to judge."""
    side = simulated("chunked")
    run, records, steps = side.run, side.run.records, side.run.steps
    rows = slice(0, 0)
    empty = {name: getattr(steps, name)[rows] for name in steps.__dataclass_fields__ if name != "lane_names"}
    nan = np.full(len(records), np.nan)
    stopped = replace(
        records, state=np.full(len(records), 3, np.int8), first_token_s=nan, last_token_s=nan, scheduled_s=nan
    )
    cut = replace(
        run,
        records=stopped,
        steps=replace(steps, lane_names=(), **empty),
        summary={"makespan_s": None},
    )
    dead = Side(run=cut, facts={"finished": False, "reason": "killed"})
    found = study([Cell(policy="chunked", rate=1.0, real=(dead,), simulated=side)])
    write_report(found, tmp_path, {})
    words = " ".join(read(tmp_path / "report.html").words)
    assert "Every real run was cut off: statistics are over the 0 requests" in words
    assert "Not known: no real run has a record of its launches." in words
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] == {
        "judged": 0,
        "within": 0,
        "orders": 0,
        "orders_agree": 0,
    }
    assert "chunked at 1 req/s: every real run was cut off" in summary_lines(found)


def test_a_simulation_that_cannot_be_repeated_is_still_reported(cells: list[Cell]) -> None:
    cell = cells[1]
    moved = cell.simulated.run.config.model_copy(update={"trace": "gone.csv"})
    simulated_side = replace(cell.simulated, run=replace(cell.simulated.run, config=moved))
    (studied,) = study([replace(cell, simulated=simulated_side)]).cells
    assert studied.attribution is None
    assert "cannot be repeated" in studied.unexplained
    assert "gone.csv" in studied.unexplained
    assert studied.sms == 108


def test_the_terminals_summary_fits(found: Study) -> None:
    rows = summary_rows(found)
    assert [row[0] for row in rows] == ["<b>bullet &\N{HORIZONTAL ELLIPSIS}"] * 3 + ["chunked"] * 3
    assert [row[2] for row in rows[:3]] == ["TTFT", "TPOT", "end to end"]
    assert {row[-1] for row in rows} <= {"within", "OFF"}
    lines = table(SUMMARY_HEAD, rows).splitlines() + summary_lines(found)
    assert max(map(len, lines)) <= 80
    assert re.match(r"\d of 6 within 10% or the machine's repeatability", summary_lines(found)[0])
    assert len(summary_lines(found)) >= 3  # both orders


def test_cells_have_names_of_their_own(cells: list[Cell]) -> None:
    with pytest.raises(ValueError, match="chunked at 6 requests/s is there twice"):
        study([cells[1], cells[1]])
    with pytest.raises(ValueError, match="at least one policy"):
        study([])


def test_worlds_one_above_the_other_have_one_scale(cells: list[Cell]) -> None:
    steps = cells[0].simulated.run.steps
    rows = slice(0, len(steps) // 2)
    parts = {name: getattr(steps, name)[rows] for name in steps.__dataclass_fields__ if name != "lane_names"}
    drawing = compared({"whole": steps, "half": replace(steps, **parts)}, 108, start_s=0.0, end_s=30.0)
    shares, batches, half_shares, half_batches = drawing.axes
    assert [axes.get_title(loc="left") for axes in (shares, half_shares)] == ["whole", "half"]
    assert {axes.get_xlim() for axes in drawing.axes} == {(0.0, 30.0)}
    assert batches.get_ylim() == half_batches.get_ylim()
    whole, half = (axes.lines[-1].get_ydata() for axes in (batches, half_batches))
    assert np.sum(whole) > np.sum(half) > 0


def test_markup_is_escaped_once() -> None:
    assert tag("td", "a < b", class_='"x"') == '<td class="&quot;x&quot;">a &lt; b</td>\n'
    assert text(tag("b", "&")) == "<b>&amp;</b>\n"
    nested = {"a": {"b": [1, 2]}, "c": None, "gpus": [{"joules": 3.5}, {"joules": 4}]}
    assert dict(flat(nested)) == {"a.b": "1, 2", "c": "\N{EN DASH}", "gpus.0.joules": "3.5", "gpus.1.joules": "4"}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "\N{EN DASH}"),
        (0.0, "0 s"),
        (1.234, "1.23 s"),
        (123.4, "123 s"),
        (12.34, "12.3 s"),
        (0.0123, "12.3 ms"),
        (0.9996, "1.00 s"),
        (-0.000699, "-699 \N{MICRO SIGN}s"),
        (3e-9, "0.003 \N{MICRO SIGN}s"),
    ],
)
def test_seconds_in_words(value: float | None, shown: str) -> None:
    assert seconds(value) == shown
