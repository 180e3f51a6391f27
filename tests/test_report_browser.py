"""Pages in headless Chromium: they open alone, fit a phone, follow the reader's colours, and answer to a click."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import screenshots
from benchmarks.chromium import PHONE, WIDE, Browser, browsing, find_chromium
from benchmarks.report import write_sweep
from cli.main import run
from sim.results import load_results
from sim.sweep_spec import SweepSpec

PROGRAM = find_chromium()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium: install Debian's chromium-headless-shell, or name one in CHROMIUM"
)
SPEC = SweepSpec.model_validate(
    {
        "base": {"requests": 10, "model": "Llama-3.1-8B", "slo": {"ttft_s": 1.0, "tpot_s": 0.1}},
        "policies": ["chunked", {"name": "bullet", "label": "Bullet, with a name that is longer than a phone is wide"}],
        "grid": {"device": ["A100-80G", "H100"], "trace": ["workload:code", "workload:chat"], "rate": [4.0, 40.0]},
    }
)
OPTIONS = "--trace workload:chat --requests 12 --rate 6 --policy bullet --model Llama-3.1-8B --device A100-80G"
SHOWN = "(s => [...document.querySelectorAll(s)].filter(e => e.getClientRects().length).length)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert PROGRAM is not None
    with browsing(PROGRAM) as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of a sweep and of a run."""
    folder = tmp_path_factory.mktemp("pages")
    write_sweep(folder / "sweep", SPEC)
    limits = ["--slo-ttft", "1", "--slo-tpot", "0.05"]
    assert run(["simulate", *OPTIONS.split(), *limits, "--out", str(folder / "run"), "--quiet"]) == 0
    for name in ("sweep", "run"):
        assert run(["report", str(folder / name), "--out", str(folder / f"{name}.html")]) == 0
    return folder


@pytest.mark.parametrize("name", ["sweep", "run"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_a_page_opens_alone_and_fits(browser: Browser, folder: Path, name: str, size: tuple[int, int]) -> None:
    browser.look(size)
    browser.requested.clear()
    browser.open(folder / f"{name}.html")
    browser.value("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    assert set(browser.requested) == {(folder / f"{name}.html").as_uri()}
    assert browser.value("[innerWidth, document.documentElement.scrollWidth]") == [size[0], size[0]]
    assert browser.value(f"{SHOWN}('svg.chart')") > 4
    assert browser.complaints == []


def test_it_is_dark_where_the_reader_prefers_that(browser: Browser, folder: Path) -> None:
    brightness = []
    for dark in (False, True):
        browser.look(WIDE, dark=dark)
        browser.open(folder / "sweep.html")
        of = "(c => c.match(/[\\d.]+/g).slice(0, 3).map(Number).reduce((a, b) => a + b))"
        for style in ("getComputedStyle(document.body).backgroundColor", "getComputedStyle(document.body).color"):
            brightness.append(browser.value(f"{of}({style})"))
    paper, ink, dark_paper, dark_ink = brightness
    assert paper > 700 > 200 > ink
    assert dark_ink > 500 > 150 > dark_paper


def test_buttons_filter_by_policy_device_and_trace(browser: Browser, folder: Path) -> None:
    browser.look(WIDE)
    browser.open(folder / "sweep.html")
    browser.value("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    charts, marks = browser.value(f"{SHOWN}('svg.chart')"), browser.value(f"{SHOWN}('svg .m[data-cell]')")
    assert browser.value(f"{SHOWN}('tr[data-cell]')") == 16
    browser.click("[data-facet=policy] .chip")
    assert browser.value("document.querySelector('[data-facet=policy] .chip').ariaPressed") == "true"
    assert browser.value(f"{SHOWN}('svg .m[data-cell]')") == marks / 2
    assert browser.value("document.getElementById('count').textContent") == "8 of 16 cells"
    browser.click("[data-facet=device] .chip")
    browser.click("[data-facet=trace] .chip[value='1']")
    assert browser.value(f"{SHOWN}('svg.chart')") == charts / 4
    assert browser.value(f"{SHOWN}('tr[data-cell]')") == 2
    assert browser.value("document.querySelector('section.panel:not(.hide) h3').textContent").startswith("chat")
    for facet in ("policy", "device", "trace"):
        browser.click(f"[data-facet={facet}] .chip[aria-pressed=true]")
    assert browser.value(f"{SHOWN}('svg.chart')") == charts


def test_a_mark_tells_of_its_cell_and_a_click_of_all_its_settings(browser: Browser, folder: Path) -> None:
    browser.look(WIDE)
    browser.open(folder / "sweep.html")
    row = load_results(folder / "sweep")[2]
    browser.point("svg .m[data-cell='2']")
    assert browser.value("document.getElementById('tip').hidden") is False
    told = browser.value("document.getElementById('tip').textContent")
    assert f"policy: {row['policy']}" in told
    assert f"rate: {row['rate']:g}" in told
    assert browser.value(f"{SHOWN}('#chosen')") == 0
    browser.click("svg .m[data-cell='2']")
    chosen = browser.value("document.getElementById('chosen').innerText")
    assert row["cell"] in chosen
    assert "Llama-3.1-8B" in chosen
    browser.point("h1")
    assert browser.value("document.getElementById('tip').hidden") is True


def test_a_heat_map_tells_of_its_cells(browser: Browser, folder: Path) -> None:
    browser.look(PHONE)
    browser.open(folder / "run.html")
    browser.click("rect.h")
    assert "meet both" in browser.value("document.getElementById('tip').textContent")


def test_screenshots_are_small_pictures(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = ["--page", str(folder / "sweep"), "--page", str(folder / "run")]
    assert screenshots.main([*pages, "--to", str(tmp_path)]) == 0
    names = ["report-phone.png", "report-run.png", "report-sweep-dark.png", "report-sweep.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    printed = [line.split(": ")[0].rsplit("/", 1)[-1] for line in capsys.readouterr().out.splitlines()]
    assert sorted(printed) == names
    for name in names:
        data = (tmp_path / name).read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) < 200_000
