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
CLIENTS, MODEL = "chunk-*", "config.json"
"""What is read of the folder of a trace (ServeGen's) and of a model's."""
ROOT = Path(__file__).resolve().parent.parent


def fingerprint(config: RunConfig) -> str:
    """SHA-256 over settings, version, the code of the rooms that a run goes through, and the files it reads."""
    digest = hashlib.sha256((config.digest() + code_hash()).encode())
    planned = config.estimator and config.estimator.model
    own = config.policy.name.rpartition(":")[0]
    named = (config.trace, config.model, own, config.latency.model or "", planned or "")
    for text, inside in zip(named, (CLIENTS, MODEL, None, None, None), strict=True):
        found = _files(Path(text), inside) if text else []
        if found:
            digest.update(_contents_hash(found).encode())
    return digest.hexdigest()


@cache
def code_hash() -> str:
    """SHA-256 over the sources and data of the rooms that a run goes through, figures apart."""
    found = (path for room in ROOMS for path in (ROOT / room).rglob("*") if path.suffix in (".py", ".json"))
    return _hash(sorted(path for path in found if "plots" not in path.parts))


def _files(path: Path, inside: str | None) -> list[Path]:
    """The file, or what of a folder is read; nothing of one that cannot be read, which the run will say."""
    if path.is_file():
        return [path]
    return sorted(part for part in path.glob(inside) if part.is_file()) if inside and path.is_dir() else []


def _contents_hash(files: Iterable[Path]) -> str:
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
