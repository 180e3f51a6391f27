"""Fetching by name, against a server on the loopback: checked, cached, and refused without leaving anything."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import traces
from traces import PublicTrace, TraceError
from traces.catalogue import CATALOGUE, fetched

CONTENT = b"prompt_tokens,output_tokens\n5,6\n"


class Quiet(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        """A folder's files, but for short.csv, whose connection breaks off, odd.csv and rude.csv."""
        if self.path == "/odd.csv":
            self.send_response(302)
            self.send_header("Location", f"http://{'a' * 70}.invalid/")
            self.end_headers()
            return
        if self.path == "/rude.csv":
            self.send_response(404, "\x1b[31m" + 100 * "no")
            self.end_headers()
            return
        if self.path != "/short.csv":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a folder with good.csv and changed.csv, known to the catalogue with and without a hash."""
    served = tmp_path / "served"
    served.mkdir()
    (served / "good.csv").write_bytes(CONTENT)
    (served / "changed.csv").write_bytes(b"something else")
    digest = hashlib.sha256(CONTENT).hexdigest()
    for name, sha256 in (("good", digest), ("changed", digest), ("gone", digest)):
        entry = PublicTrace(name=name, url=f"http://127.0.0.1:9/{name}.csv", about="", licence="", sha256=sha256)
        monkeypatch.setitem(CATALOGUE, name, entry)
    unchecked = PublicTrace(name="unchecked", url="http://127.0.0.1:9/good.csv", about="", licence="")
    monkeypatch.setitem(CATALOGUE, "unchecked", unchecked)
    (served / "empty.csv").write_bytes(b"")
    for name in ("short", "odd", "rude", "empty"):
        entry = PublicTrace(name=name, url=f"http://127.0.0.1:9/{name}.csv", about="", licence="")
        monkeypatch.setitem(CATALOGUE, name, entry)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(served)))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_is_fetched_once_and_checked(mirror: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert fetched("good", cache) is None
    heard: list[int] = []
    path = traces.fetch("good", cache, mirror, progress=heard.append)
    assert path == cache / "good.csv" == fetched("good", cache)
    assert path.read_bytes() == CONTENT
    assert heard[-1] == len(CONTENT)
    assert traces.fetch("good", cache, "http://127.0.0.1:9/") == path  # no server needed any more
    assert traces.fetch("unchecked", tmp_path / "other", mirror).read_bytes() == CONTENT


def test_a_changed_cache_file_is_fetched_again(mirror: str, tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_bytes(b"cut off")
    assert traces.fetch("good", tmp_path, mirror).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("changed", "is not the file known by SHA-256"),
        ("gone", "cannot fetch http.*gone.csv.*404"),
        ("short", "cannot fetch http.*short.csv"),
        ("odd", r"cannot fetch http.*odd.csv \(no address\)"),
        ("rude", r"cannot fetch http.*rude.csv \(HTTP 404 \[31m(no){28}\)"),
        ("empty", r"cannot fetch http.*empty.csv \(an empty answer\)"),
    ],
)
def test_a_wrong_or_missing_file_is_refused_and_nothing_kept(
    mirror: str, tmp_path: Path, name: str, message: str
) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(TraceError, match=message) as caught:
        traces.fetch(name, cache, mirror)
    assert "\n" not in str(caught.value)
    assert list(cache.iterdir()) == []


def test_an_unreachable_server_is_one_clear_error(mirror: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(TraceError, match=r"cannot fetch http.*check the connection"):
        traces.fetch("good", tmp_path / "cache", f"http://127.0.0.1:{port}")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_malformed_mirror_is_one_clear_error(mirror: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot fetch nowhere/good\.csv"):
        traces.fetch("good", tmp_path / "cache", "nowhere")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(TraceError, match="no public trace is called 'nope'; known: azure-code-2023"):
        traces.fetch("nope")


def test_catalogue_addresses_are_pinned() -> None:
    for entry in CATALOGUE.values():
        assert entry.url.startswith("https://")
        assert entry.sha256 is None or len(entry.sha256) == 64
        parts = entry.url.split("/")
        assert "releases" in parts or any(len(part) == 40 for part in parts), entry.name


def test_a_fetched_name_opens(mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    with pytest.raises(TraceError, match="has not been fetched; run: bulletsim traces fetch good"):
        traces.open_trace("good")
    traces.fetch("good", base_url=mirror)
    assert len(traces.open_trace("good")) == 1
