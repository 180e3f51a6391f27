"""JSON-lines files: one object a line, each value checked with its line number."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any

from traces.errors import TraceError
from traces.progress import Progress, ToldFile, untold
from traces.request import MAX_ARRIVAL_S
from traces.table import BELOW, MAX_TOKENS, times_wanted

BUFFER_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One object of the file, with what is needed to complain about it."""

    file: str
    number: int
    values: dict[str, Any]

    def tokens(self, key: str) -> int:
        """A whole number in 0..MAX_TOKENS."""
        value = self._value(key)
        if type(value) not in (int, float) or not (0 <= value <= MAX_TOKENS and value == int(value)):
            raise self.refusal(key, f"a whole number of 0 or more, {BELOW}")
        return int(value)

    def time(self, key: str, unit_s: float = 1.0) -> float:
        """A number of 0 up to MAX_ARRIVAL_S, in the file's unit of ``unit_s`` seconds."""
        value = self._value(key)
        if type(value) not in (int, float) or not 0 <= value <= MAX_ARRIVAL_S / unit_s:
            raise self.refusal(key, times_wanted("a finite number", unit_s))
        return float(value)

    def integers(self, key: str) -> tuple[int, ...]:
        value = self._value(key)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self.refusal(key, "a list of whole numbers")
        return tuple(value)

    def _value(self, key: str) -> Any:
        if key not in self.values:
            raise TraceError(
                f"{self.file}: line {self.number}: no {key!r}; the line has {', '.join(self.values)[:200]}; "
                "name the right format or leave it to be detected"
            )
        return self.values[key]

    def refusal(self, key: str, wanted: str) -> TraceError:
        shown = json.dumps(self.values[key])[:80]
        return TraceError(
            f"{self.file}: line {self.number}: {key} is {shown}; wanted: {wanted}; correct or remove the line"
        )


def read_lines(path: Path, progress: Progress = untold) -> Iterator[Line]:
    """The objects of a file, one after another, blank lines skipped.

    Raises TraceError for an empty file or a line that is no object.
    """
    empty = True
    try:
        with TextIOWrapper(BufferedReader(ToldFile(path, progress), BUFFER_BYTES), encoding="utf-8-sig") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    empty = False
                    yield Line(file=str(path), number=number, values=_object(path, number, text))
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not a text file in UTF-8 ({error}); give a JSONL trace") from None
    if empty:
        raise TraceError(f"{path}: the file is empty; give one JSON object a line")


def _object(file: Path, number: int, text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{file}: line {number}: not JSON ({error}); correct or remove the line") from None
    if not isinstance(values, dict):
        raise TraceError(f"{file}: line {number}: {text.strip()[:80]} is no JSON object; one a line is wanted")
    return values
