"""A page in headless Chromium, driven over the DevTools Protocol by a pipe: no driver, no port and no network.

Used by benchmarks/report.py, benchmarks/screenshots.py and the tests of pages.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
WIDE, PHONE = (1100, 900), (390, 844)
LONGEST_S = 60.0
DRAWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(document.URL))))"
"""Kept once two frames are drawn: events of what was just changed, scrolling among them, are through by then."""
ON_3_AND_4 = """
import os, sys
reading, writing = (os.dup(int(descriptor)) for descriptor in sys.argv[1:3])
while min(reading, writing) < 5:
    reading, writing = os.dup(reading), os.dup(writing)
os.dup2(reading, 3)
os.dup2(writing, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Starts a program with the protocol's pipe where it looks for that."""


def find_chromium() -> str | None:
    """The program, from $CHROMIUM or the path; None where there is none."""
    named = os.environ.get("CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One tab. Raises RuntimeError with what the browser said where a command fails."""

    def __init__(self, to_browser: IO[bytes], from_browser: BufferedReader) -> None:
        self._out, self._in = to_browser, from_browser
        self._number = 0
        self._unread = b""
        self._session: str | None = None
        self.requested: list[str] = []
        """Addresses that the page asked for."""
        self.complaints: list[str] = []
        """Errors that its scripts raised."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command of the protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        found: dict[str, Any] = answer["result"]
        return found

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            more = self._in.read1(1 << 16)
            if not more:
                raise RuntimeError("the browser has ended")
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Network.requestWillBeSent":
            self.requested.append(event["params"]["request"]["url"])
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(event["params"]["exceptionDetails"]))

    def look(self, size: tuple[int, int], *, dark: bool = False, scale: float = 1.0) -> None:
        """The size of the window in CSS pixels, and the scheme that the reader prefers."""
        width, height = size
        mobile = size == PHONE
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, page: Path) -> float:
        """Opens a file; the seconds until it was loaded and drawn, by the clock."""
        began = time.perf_counter()
        self.call("Page.navigate", url=page.resolve().as_uri())
        ready = f"document.readyState === 'complete' ? {DRAWN} : 'loading'"
        while self.value(ready) != page.resolve().as_uri():
            if time.perf_counter() - began > LONGEST_S:
                raise RuntimeError(f"{page} did not load in {LONGEST_S:g} s")
            time.sleep(0.005)
        return time.perf_counter() - began

    def value(self, expression: str) -> Any:
        """What a JavaScript expression comes to in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def click(self, selector: str) -> None:
        """A real click in the middle of the first element that a CSS selector finds, scrolled into view."""
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def point(self, selector: str) -> None:
        """Moves the pointer there."""
        x, y = self._middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def _middle(self, selector: str) -> tuple[float, float]:
        found = self.value(
            f"(async () => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null; "
            f"e.scrollIntoView({{block: 'center'}}); await {DRAWN}; const b = e.getBoundingClientRect(); "
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        if found is None:
            raise RuntimeError(f"nothing on the page is {selector}")
        return found[0], found[1]

    def screenshot(self, file: Path) -> None:
        """What is in the window, as PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browsing(program: str) -> Iterator[Browser]:
    """A browser that ends with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, ExitStack() as ours:
        (read_ours, write_theirs), (read_theirs, write_ours) = os.pipe(), os.pipe()
        flags = [*FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [sys.executable, "-c", ON_3_AND_4, str(read_theirs), str(write_theirs), program, *flags],
            pass_fds=(read_theirs, write_theirs),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for descriptor in (read_theirs, write_theirs):
            os.close(descriptor)
        ours.callback(process.wait, timeout=LONGEST_S)
        ours.callback(process.terminate)
        to_browser = ours.enter_context(os.fdopen(write_ours, "wb", buffering=0))
        yield Browser(to_browser, ours.enter_context(os.fdopen(read_ours, "rb")))
