"""The journal of a measurement: one JSON document a line, on disk before the next point is measured.

The first line says what is measured with which settings; each other line is a point with its times. A process that
dies, however it dies, loses at most the line it was writing; the same command goes on after it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from profiler.measure.device import Sample
from profiler.measure.grid import Target, Variant

FORMAT = 1


class Header(NamedTuple):
    """What a journal is of.

    settings: all that must be the same for a measurement to be continued, by name.
    about: what else the profile's provenance will say; of the first start.
    """

    settings: dict[str, Any]
    about: dict[str, Any]


class Journal:
    """A file being written. Use :meth:`open`, and close it, or use it as a context."""

    def __init__(self, path: Path, file: Any, header: Header, samples: list[Sample]) -> None:
        self.path, self.header, self.samples = path, header, samples
        self._file = file

    @classmethod
    def open(cls, path: Path, header: Header) -> Self:
        """A new journal, or the one at ``path`` to be continued.

        Raises ValueError for a journal of other settings, naming the first that differs, for one that another
        process writes, and for one that is damaged elsewhere than in its last line. OSError where it cannot be
        written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise ValueError(
                f"{path} is being written by another process; wait for it, or take another --out"
            ) from None
        try:
            found, samples = _read(path, file)
            if found is not None:
                _compare(path, found.settings, header.settings)
        except ValueError:
            file.close()
            raise
        if found is None:
            journal = cls(path, file, header, [])
            journal._write({"journal": FORMAT, "settings": header.settings, "about": header.about})
            return journal
        return cls(path, file, found, samples)

    def add(self, sample: Sample) -> None:
        """Written and on disk when this returns."""
        self.samples.append(sample)
        own, variant = sample.target, sample.variant
        line: dict[str, Any] = {"kernel": own.kernel, "shape": own.shape, "sms": variant.sms}
        if variant.beside is not None:
            line["beside"] = {
                "kernel": variant.beside.kernel,
                "shape": variant.beside.shape,
                "sms": variant.beside_sms,
            }
        line["seconds"] = sample.seconds
        if sample.gap is not None:
            line["gap"] = round(sample.gap, 4)
        if sample.failed:
            line["failed"] = sample.failed
        self._write(line)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, document: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(document, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read_journal(path: Path) -> tuple[Header, list[Sample]]:
    """What a journal holds. Raises ValueError for a file that is none, OSError where it cannot be read."""
    header, samples, _ = _parsed(path, path.read_bytes())
    if header is None:
        raise ValueError(f"{path} holds nothing yet; measure again")
    return header, samples


def _read(path: Path, file: Any) -> tuple[Header | None, list[Sample]]:
    """What a file holds; its torn last line is cut off, so that the next is written on a line of its own."""
    file.seek(0)
    header, samples, torn = _parsed(path, file.read())
    if torn:
        file.truncate(file.tell() - torn)
    return header, samples


def _parsed(path: Path, content: bytes) -> tuple[Header | None, list[Sample], int]:
    """Header, samples, and the length of a last line that was not finished."""
    lines = content.split(b"\n")
    torn = len(lines.pop())
    if not lines:
        return None, [], torn
    documents = [_document(path, number, line) for number, line in enumerate(lines, 1)]
    head = documents[0]
    if "journal" not in head:
        raise ValueError(f"{path} is no journal of bulletsim profile; take another --out, or remove it")
    if head["journal"] != FORMAT:
        raise ValueError(f"{path} has format {head['journal']}, this version writes {FORMAT}; take another --out")
    try:
        return Header(head["settings"], head["about"]), [_sample(document) for document in documents[1:]], torn
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error} is missing or wrong; remove it and measure again") from None


def _document(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ValueError(f"{path}, line {number} is damaged; remove that line, or the file to measure all again")
    return document


def _sample(line: Mapping[str, Any]) -> Sample:
    beside = line.get("beside")
    variant = Variant(line["sms"])
    if beside is not None:
        variant = Variant(line["sms"], Target(beside["kernel"], tuple(beside["shape"])), beside["sms"])
    target = Target(line["kernel"], tuple(line["shape"]))
    return Sample(target, variant, tuple(line["seconds"]), line.get("gap"), line.get("failed", ""))


def _compare(path: Path, found: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    # What is asked for may hold tuples, which JSON does not.
    asked = json.loads(json.dumps(asked))
    for name in {**found, **asked}:
        if found.get(name) != asked.get(name):
            raise ValueError(
                f"{path} was begun with {name} = {_shown(found.get(name))}, this run has {_shown(asked.get(name))}; "
                f"go on with the settings it was begun with, or take another --out"
            )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
