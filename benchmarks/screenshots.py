"""Screenshots of pages for the docs, with few colours, so that they stay small.

    python benchmarks/screenshots.py SWEEP RUN --to docs/figures

SWEEP and RUN are directories of bulletsim sweep (or demo) and simulate. Leaves report-sweep.png, report-sweep-dark.png,
report-run.png and report-phone.png. Exit status 2 where there is no Chromium.
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
from sim.report.sources import kind_of, simulated_page  # noqa: E402

NO_BROWSER = 2
COLOURS = 160
TALLEST = 1500
"""CSS pixels; a page goes on below."""


def shoot(browser: Browser, page: Path, file: Path, size: tuple[int, int], *, dark: bool = False) -> None:
    """One picture of a page from its top, as PNG with a palette."""
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
    with Image.open(file) as picture:
        few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(file, optimize=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pictures and print their names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "figures")
    given = parser.parse_args(arguments)
    program = find_chromium()
    if program is None:
        print("error: no Chromium on the path; install one, or name it in CHROMIUM", file=sys.stderr)
        return NO_BROWSER
    with tempfile.TemporaryDirectory() as folder, browsing(program) as browser:
        pages = {}
        for name, directory in (("sweep", given.sweep), ("run", given.run)):
            pages[name] = Path(folder) / f"{name}.html"
            pages[name].write_text(simulated_page([directory], kind_of([directory])), encoding="utf-8")
        shoot(browser, pages["sweep"], given.to / "report-sweep.png", WIDE)
        shoot(browser, pages["sweep"], given.to / "report-sweep-dark.png", WIDE, dark=True)
        shoot(browser, pages["run"], given.to / "report-run.png", WIDE)
        shoot(browser, pages["sweep"], given.to / "report-phone.png", PHONE)
    for file in sorted(given.to.glob("report-*.png")):
        print(f"{file}: {file.stat().st_size / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
