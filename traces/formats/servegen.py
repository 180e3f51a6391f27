"""ServeGen folders (Apache-2.0): clients described by rates and distributions, from which requests are generated.

Client i has chunk-i-trace.csv without a header: t_seconds, rate_per_s, cv, pattern, shape, scale, one row a
window, and chunk-i-dataset.json: per 6 hours, each field a Python dict literal {tokens: probability} in a
string. In a window of w seconds, round(rate * w) requests arrive; their gaps are drawn from the window's
Gamma or Weibull shape and rescaled to fill the window, because scale and rate of the files disagree. The
first gap begins at a uniform phase, as for a process already under way. The prompt is the sum of one draw
for each token column that is not the output's. Clients without a dataset are left out and named.
"""

from __future__ import annotations

import ast
import csv
import json
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from traces.chance import generator
from traces.errors import TraceError
from traces.formats.rows import ReadOptions, Rows
from traces.request import MAX_ARRIVAL_S, FloatColumn, IntColumn

MOST_REQUESTS = 5_000_000
_PATTERNS = ("Gamma", "Weibull")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    start_s: float
    width_s: float
    rate: float
    pattern: str
    shape: float


def is_folder(path: Path) -> bool:
    """Whether a folder is of one ServeGen model."""
    return any(path.glob("chunk-*-trace.csv"))


def read(path: Path, options: ReadOptions) -> Rows:
    """Requests drawn from the clients of a ServeGen model's folder. Raises TraceError naming file and fault."""
    if not path.is_dir() or not is_folder(path):
        raise TraceError(f"{path}: no folder of chunk-*-trace.csv; give the folder of one ServeGen model")
    if not (0 < options.scale < float("inf")):
        raise TraceError(f"scale is {options.scale}; give a factor on the rates, above 0")
    clients = {_number(file): _windows(file, options) for file in path.glob("chunk-*-trace.csv")}
    load = {number: sum(w.rate * w.width_s for w in clients[number]) for number in sorted(clients)}
    described = [number for number in load if _dataset(path, number).exists()]
    notes = _notes(load, described, options)
    expected = sum(load[number] for number in described) * options.scale
    if expected > MOST_REQUESTS:
        raise TraceError(
            f"{path}: this span has about {expected:.3g} requests, more than {MOST_REQUESTS}; read a slice "
            "of it (start_s, end_s) or scale it down"
        )
    drawn = []
    for place, number in enumerate(described, start=1):
        if load[number]:
            drawn.append(_client(path, number, clients[number], options))
        options.progress(place / len(described))
    if not sum(len(columns[0]) for columns in drawn):
        raise TraceError(f"{path}: no client has a request in this span; read a longer or another one")
    arrivals, prompts, outputs = (np.concatenate(column) for column in zip(*drawn, strict=True))
    order = np.argsort(arrivals, kind="stable")
    return Rows(arrival_s=arrivals[order], prompt_tokens=prompts[order], output_tokens=outputs[order], notes=notes)


def _notes(load: dict[int, float], described: list[int], options: ReadOptions) -> tuple[str, ...]:
    end = "the end" if options.end_s is None else f"{options.end_s:g} s"
    notes = [
        f"generated with seed {options.seed} from {len(described)} clients, {options.start_s:g} s to {end}, "
        f"rates times {options.scale:g}"
    ]
    absent = [number for number in load if number not in described]
    if absent:
        share = sum(load[number] for number in absent) / (sum(load.values()) or 1.0)
        named = ", ".join(map(str, absent))
        notes.append(f"clients without a dataset left out: {named} ({100 * share:.1f} % of the load)")
    return tuple(notes)


def _number(file: Path) -> int:
    return int(file.name.split("-")[1])


def _dataset(path: Path, number: int) -> Path:
    return path / f"chunk-{number}-dataset.json"


def _windows(file: Path, options: ReadOptions) -> list[_Window]:
    """The windows of one client that touch the span asked for."""
    end_s = float("inf") if options.end_s is None else options.end_s
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [(number, row) for number, row in enumerate(csv.reader(lines), start=1) if row]
    starts = [_float(file, number, row, 0, MAX_ARRIVAL_S) for number, row in rows]
    width_s = starts[1] - starts[0] if len(starts) > 1 else 600.0
    windows = []
    for (number, row), start_s in zip(rows, starts, strict=True):
        rate = _float(file, number, row, 1)
        if rate == 0 or start_s + width_s <= options.start_s or start_s >= end_s:
            continue
        if len(row) < 5 or row[3] not in _PATTERNS:
            raise TraceError(f"{file}: line {number}: pattern of {row} is none of {', '.join(_PATTERNS)}")
        shape = _float(file, number, row, 4)
        windows.append(_Window(start_s=start_s, width_s=width_s, rate=rate, pattern=row[3], shape=max(shape, 1e-3)))
    return windows


def _float(file: Path, number: int, row: list[str], column: int, most: float = math.inf) -> float:
    try:
        value = float(row[column])
    except (ValueError, IndexError):
        value = -1.0
    if not (0 <= value <= most and math.isfinite(value)):
        raise TraceError(
            f"{file}: line {number}: value {column + 1} of {row} is no number from 0 to {most:g}; wanted: "
            "t_seconds,rate_per_s,cv,pattern,shape,scale"
        )
    return value


def _client(
    path: Path, number: int, windows: list[_Window], options: ReadOptions
) -> tuple[FloatColumn, IntColumn, IntColumn]:
    """Arrivals in seconds of the source, prompt and output tokens of one client."""
    lengths = _Lengths(_dataset(path, number))
    parts = [_window(lengths, number, window, options) for window in windows]
    arrivals, prompts, outputs = (np.concatenate(column) for column in zip(*parts, strict=True))
    end_s = float("inf") if options.end_s is None else options.end_s
    inside = (arrivals >= options.start_s) & (arrivals < end_s)
    return arrivals[inside], prompts[inside], outputs[inside]


def _window(
    lengths: _Lengths, number: int, window: _Window, options: ReadOptions
) -> tuple[FloatColumn, IntColumn, IntColumn]:
    # A generator for each window: a slice of a span has the very requests that the whole span has there.
    rng = generator(options.seed, f"servegen client {number} at {window.start_s}")
    load = window.rate * window.width_s * options.scale
    # A load that is not whole is rounded up as often as its fraction says; counts of the files are whole.
    count = int(load + rng.random()) if abs(load - round(load)) > 1e-6 else round(load)
    draw_gaps = rng.standard_gamma if window.pattern == "Gamma" else rng.weibull
    # A very small shape gives gaps of exactly 0; all of them 0 could not be stretched to the window.
    ends = np.cumsum(draw_gaps(window.shape, count) + 1e-12)
    shift = rng.random() * ends[:1].sum()
    arrivals = window.start_s + (ends - shift) * (window.width_s / ends[-1] if count else 0.0)
    prompts, outputs = lengths.draw(window.start_s, count, rng)
    return arrivals, prompts, outputs


class _Lengths:
    """The length distributions of one client, a literal parsed when first needed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self._entries: dict[str, dict[str, str]] = json.loads(file.read_text(encoding="utf-8"))
            self._starts = sorted((float(key), key) for key in self._entries)
        except (ValueError, TypeError) as error:
            raise TraceError(f"{file}: not a ServeGen dataset ({error}); fetch it again") from None
        self._parsed: dict[str, list[tuple[str, IntColumn, FloatColumn]]] = {}

    def draw(self, time_s: float, count: int, rng: np.random.Generator) -> tuple[IntColumn, IntColumn]:
        """Prompt and output tokens of ``count`` requests in the span that ``time_s`` is in, shape (count,) each."""
        prompt, output = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for field, values, cumulative in self._span(time_s):
            drawn = values[np.searchsorted(cumulative, rng.random(count), side="right")]
            if field == "output_tokens":
                output = drawn
            else:
                prompt = prompt + drawn
        return prompt, output

    def _span(self, time_s: float) -> list[tuple[str, IntColumn, FloatColumn]]:
        if not self._starts:
            raise TraceError(f"{self._file}: the dataset is empty; fetch it again")
        index = max(bisect_right(self._starts, (time_s, "~")) - 1, 0)
        key = self._starts[index][1]
        if key not in self._parsed:
            self._parsed[key] = list(self._columns(key))
        return self._parsed[key]

    def _columns(self, key: str) -> Iterator[tuple[str, IntColumn, FloatColumn]]:
        fields = {name: text for name, text in self._entries[key].items() if name.endswith("_tokens")}
        for name, text in fields.items():
            try:
                shares: dict[int, float] = ast.literal_eval(text)
                values = np.array(list(shares), np.int64)
                weights = np.array(list(shares.values()), float)
                good = len(values) > 0 and bool(np.all(values >= 0) and np.all(weights >= 0) and weights.sum() > 0)
            except (ValueError, SyntaxError, TypeError, AttributeError):
                good = False
            if not good:
                raise TraceError(
                    f"{self._file}: entry {key!r}: {name} is {text[:60]!r}; wanted: {{tokens: probability}} "
                    "of the requests there; fetch the file again or read another slice"
                )
            cumulative = np.cumsum(weights) / weights.sum()
            cumulative[-1] = 1.0
            yield name, values, cumulative
