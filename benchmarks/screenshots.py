"""Pictures for the docs: screenshots of pages, and figures, both with few colours, so that they stay small.

    python benchmarks/screenshots.py --page DIR [DIR ...] --page FILE --figure FILE.png [--to docs/figures]

A page is what bulletsim report makes of these paths; its picture is called by its kind, such as report-run.png. Of a
sweep's page there are report-sweep-dark.png and report-phone.png besides. Figures keep their names. Exit status 2 where
pages are wanted and there is no Chromium.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.chromium import PHONE, WIDE, Browser, browsing, find_chromium  # noqa: E402
from sim.report.sources import Kind, kind_of, simulated_page  # noqa: E402

NO_BROWSER = 2
COLOURS = 160
TALLEST = 1500
"""CSS pixels; a page goes on below."""


def shoot(browser: Browser, page: Path, file: Path, size: tuple[int, int], *, dark: bool = False) -> None:
    """One picture of a page from its top."""
    browser.look(size, dark=dark)
    browser.open(page)
    tall = browser.value("document.documentElement.scrollHeight")
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=size[0],
        height=min(tall, TALLEST),
        deviceScaleFactor=1,
        mobile=size == PHONE,
    )
    browser.screenshot(file)
    shrink(file, file)


def shrink(picture: Path, file: Path) -> None:
    """Leaves a PNG at ``file`` with a palette."""
    with Image.open(picture) as found:
        few = found.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(file, optimize=True)
    print(f"{file}: {file.stat().st_size / 1e3:.0f} kB")


def shoot_page(browser: Browser, paths: Sequence[Path], folder: Path, to: Path) -> None:
    """The pictures of the page of these paths, which is made in ``folder``."""
    kind = kind_of(paths)
    page = folder / f"{kind}.html"
    if kind is Kind.validation:
        from real.report.again import validation_page

        page.write_text(validation_page(paths[0]), encoding="utf-8")
    else:
        page.write_text(simulated_page(paths, kind), encoding="utf-8")
    shoot(browser, page, to / f"report-{kind}.png", WIDE)
    if kind is Kind.sweep:
        shoot(browser, page, to / "report-sweep-dark.png", WIDE, dark=True)
        shoot(browser, page, to / "report-phone.png", PHONE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pictures and print their names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, nargs="+", action="append", default=[])
    parser.add_argument("--figure", type=Path, nargs="+", default=[])
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "figures")
    given = parser.parse_args(arguments)
    program = find_chromium()
    if given.page and program is None:
        print("error: no Chromium on the path; install one, or name it in CHROMIUM", file=sys.stderr)
        return NO_BROWSER
    for figure in given.figure:
        shrink(figure, given.to / figure.name)
    if program is not None and given.page:
        with tempfile.TemporaryDirectory() as folder, browsing(program) as browser:
            for paths in given.page:
                shoot_page(browser, paths, Path(folder), given.to)
    return 0


if __name__ == "__main__":
    sys.exit(main())
