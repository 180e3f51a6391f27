"""What a stored result depends on besides its settings: this code, and the files that the settings name.

A version number alone would let a sweep go on with results of a policy that has been edited since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from sim.config import RunConfig

ROOMS = ("traces", "profiler", "policies", "sim")
ROOT = Path(__file__).resolve().parent.parent


def fingerprint(config: RunConfig) -> str:
    """SHA-256 over settings, version, the code of the rooms that a run goes through, and the files it reads."""
    digest = hashlib.sha256((config.digest() + code_hash()).encode())
    planned = config.estimator and config.estimator.model
    own = config.policy.name.rpartition(":")[0]
    for text in (config.trace, config.model, own, config.latency.model or "", planned or ""):
        path = Path(text)
        if text and path.exists():
            digest.update(_contents_hash(path).encode())
    return digest.hexdigest()


@cache
def code_hash() -> str:
    """SHA-256 over the sources and data of the rooms that a run goes through, figures apart."""
    found = (path for room in ROOMS for path in (ROOT / room).rglob("*") if path.suffix in (".py", ".json"))
    return _hash(sorted(path for path in found if "plots" not in path.parts))


def _contents_hash(path: Path) -> str:
    files = [path] if path.is_file() else sorted(part for part in path.rglob("*") if part.is_file())
    stamped = [(file.resolve(), file.stat()) for file in files]
    return _hash_unchanged(tuple((file, stat.st_size, stat.st_mtime_ns) for file, stat in stamped))


@cache
def _hash_unchanged(files: tuple[tuple[Path, int, int], ...]) -> str:
    # Read once while size and time stay: a trace may be large, and every cell of a sweep names it.
    return _hash(path for path, _, _ in files)


def _hash(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
