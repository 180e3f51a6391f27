"""The journal of a measurement: one JSON document a line, on disk before the next point is measured.

The first line says what is measured with which settings; each other line is a point with its times. A process that
dies, however it dies, loses at most the line it was writing; the same command goes on after it.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from profiler.measure.device import Sample
from profiler.measure.grid import Target, Variant
from profiler.profile import DTYPES, LARGEST, SHAPES, parsed_json

FORMAT = 1

SETTINGS: dict[str, type] = {
    "device": str,
    "machine": str,
    "sms": int,
    "dtype": str,
    "model": str,
    "quick": bool,
    "kernels": list,
    "repeats": int,
    "rounds": int,
    "grid": str,
}
ABOUT: dict[str, type] = {"date": str, "points": int}
"""What the profile is written from: a header that lacks any of it would fail only after the measurement."""

_NAMES = {str: "a text", int: "a number, 1 or more", bool: "true or false", list: "a list"}


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
        process writes, and for one with a line, other than an unfinished last one, that no measurement wrote.
        OSError where it cannot be written.
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
    header = _header(path, head)
    samples = [_sample(path, number, line, header.settings["sms"]) for number, line in enumerate(documents[1:], 2)]
    return header, samples, torn


def _document(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        document = parsed_json(line)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        remedy = "remove the file" if number == 1 else "remove that line, or the file"
        raise ValueError(f"{path}, line {number} is damaged; {remedy} to measure all again")
    return document


def _header(path: Path, head: Mapping[str, Any]) -> Header:
    """Raises ValueError where what the profile will need is not there."""
    settings, about = head.get("settings"), head.get("about")
    fault = _fault("settings", settings, SETTINGS) or _fault("about", about, ABOUT)
    if settings is None or about is None or fault:
        raise ValueError(f"{path}, line 1: {fault}; remove the file to measure all again")
    return Header(settings, about)


def _fault(part: str, found: Any, needed: Mapping[str, type]) -> str:
    """What is wrong with a part of the header; empty for nothing."""
    if not isinstance(found, dict):
        return f"{part} is {_brief(found)}; it must be an object"
    for name, kind in needed.items():
        value = found.get(name)
        empty = value == "" or (isinstance(value, int) and kind is int and not 1 <= value <= LARGEST)
        if type(value) is not kind or empty:
            return f"{name} in {part} is {_brief(value)}; it must be {_NAMES[kind]}"
        if name == "dtype" and value not in DTYPES:
            return f"dtype in {part} is {_brief(value)}; known: {', '.join(DTYPES)}"
    return ""


def _sample(path: Path, number: int, line: Mapping[str, Any], whole: int) -> Sample:
    """``whole``: the device's SMs. Raises ValueError for a line that would make no row of a profile."""
    try:
        target, sms = _target(line, "", whole)
        variant = Variant(sms)
        if line.get("beside") is not None:
            if not isinstance(line["beside"], dict):
                raise ValueError(f"beside is {_brief(line['beside'])}; it must be an object")
            variant = Variant(sms, *_target(line["beside"], "beside: ", whole))
        return Sample(target, variant, *_timed(line))
    except ValueError as error:
        raise ValueError(
            f"{path}, line {number}: {error}; remove that line, or the file to measure all again"
        ) from None


def _target(line: Mapping[str, Any], where: str, whole: int) -> tuple[Target, int]:
    kernel, shape, sms = line.get("kernel"), line.get("shape"), line.get("sms")
    if not isinstance(kernel, str) or kernel not in SHAPES:
        raise ValueError(f"{where}kernel is {_brief(kernel)}; known: {', '.join(SHAPES)}")
    names = SHAPES[kernel]
    if not isinstance(shape, list) or len(shape) != len(names):
        raise ValueError(f"{where}shape is {_brief(shape)}; {kernel} has {', '.join(names)}")
    for name, size in zip(names, shape, strict=True):
        least = 0 if name == "cached_tokens" else 1
        if type(size) is not int or not least <= size <= LARGEST:
            raise ValueError(f"{where}{name} in shape is {_brief(size)}; it must be a whole number, {least} or more")
    if type(sms) is not int or not 1 <= sms <= whole:
        raise ValueError(f"{where}sms is {_brief(sms)}; it must be 1 to the device's {whole}")
    return Target(kernel, tuple(shape)), sms


def _timed(line: Mapping[str, Any]) -> tuple[tuple[float, ...], float | None, str]:
    """Seconds, gap, and why there are none."""
    seconds, gap, failed = line.get("seconds"), line.get("gap"), line.get("failed", "")
    if not isinstance(failed, str):
        raise ValueError(f"failed is {_brief(failed)}; it must be a text")
    if not isinstance(seconds, list) or not (seconds or failed) or not all(_is_time(value) for value in seconds):
        raise ValueError(f"seconds is {_brief(seconds)}; it must be a list of times above 0")
    if gap is not None and not (_is_time(gap) or gap == 0):
        raise ValueError(f"gap is {_brief(gap)}; it must be a share, 0 or more, or absent")
    return tuple(seconds), gap, failed


def _is_time(value: Any) -> bool:
    # An int that no float can hold is none either.
    return type(value) in (int, float) and 0 < value < 1e300 and math.isfinite(value)


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


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
