"""A run as the answers that its executor gave, written down as they are given, and given again.

The loop, the policy and the ledger are the simulator's own and read nothing but these answers; so a run on a device,
replayed from them, comes to the same decisions and the same records. A run that was cut off, however roughly, is
replayed as far as it went: that is how its finished part is saved.

The file holds one JSON list a line, written when it happens:

    ["recording", version, settings]
    ["now", seconds]
    ["start", launch, sent_s, decision]
    ["done", launch, end_s, begin_s, finish_s, processor_s, granted_sms, [[request, token], ...]]
    ["none"]                                        next() had nothing to report
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from real.executor import DeviceExecutor
from sim.launch import Completion, Launch

VERSION = 1

_DECIDED = ("instance", "lane", "sms", "prefill", "layers", "decode", "preempt", "transfer", "predicted_s")
_Decision = Annotated[list[Any], Field(min_length=len(_DECIDED), max_length=len(_DECIDED))]
_LINES: TypeAdapter[tuple[Any, ...]] = TypeAdapter(
    tuple[Literal["recording"], Any, Any]
    | tuple[Literal["now"], float]
    | tuple[Literal["start"], int, float, _Decision]
    | tuple[Literal["done"], int, float, float, float, float | None, int, list[tuple[int, int]]]
    | tuple[Literal["none"]],
    config=ConfigDict(strict=True),
)


_REPLAY = "replay with the version and the settings of the recording"


class RecordingEnds(Exception):
    """All answers have been given; a whole run asks for none after its last."""


class ReplayDiffers(ValueError):
    """The loop did something else than when it was recorded."""


class Recorder:
    """An executor that passes everything on to a device's, and writes down what it answers.

    Raises OSError, naming the file, where it cannot be written.
    """

    def __init__(self, executor: DeviceExecutor, path: Path, settings: Any) -> None:
        self._executor, self._path = executor, path
        # A line is handed to the system as it ends, so it outlives the process.
        self._file = path.open("x", buffering=1, encoding="utf-8")
        try:
            self._write(["recording", VERSION, settings])
        except OSError:
            with suppress(OSError):
                self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._file.close()
        except OSError as failed:
            # A line that could not be written is tried again.
            raise self._named(failed) from failed

    def now(self) -> float:
        now = self._executor.now()
        self._write(["now", now])
        return now

    def start(self, launch: Launch) -> None:
        sent_s = self._executor.now()
        # Before the device may fail over it: a replay then ends with this decision, not before it.
        self._write(["start", launch.launch_id, sent_s, decision(launch)])
        self._executor.start(launch)

    def next(self, until_s: float | None) -> Completion | None:
        completion = self._executor.next(until_s)
        if completion is None:
            self._write(["none"])
            return None
        times = self._executor.last
        assert times is not None
        processor_s = None if math.isnan(times.processor_s) else times.processor_s
        took = [times.begin_s, times.finish_s, processor_s, times.granted_sms]
        self._write(["done", *completion, *took, times.tokens])
        return completion

    def release(self, request: int, instance: int) -> None:
        self._executor.release(request, instance)

    def _write(self, line: list[Any]) -> None:
        try:
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        except OSError as failed:
            raise self._named(failed) from failed

    def _named(self, failed: OSError) -> OSError:
        """A failed write, of a full disk for one, does not say of which file."""
        return OSError(failed.errno, failed.strerror, str(self._path))


class Replayer:
    """An executor that gives a recording's answers again, and checks that it is asked the same.

    Raises RecordingEnds after the last answer, and ReplayDiffers where the loop decides otherwise than it did.
    """

    def __init__(self, answers: Iterator[list[Any]]) -> None:
        self._answers = answers
        self.given = 0
        self.decisions = 0
        self._flights: set[int] = set()

    def now(self) -> float:
        now: float = self._next("now")[1]
        return now

    def start(self, launch: Launch) -> None:
        _, launch_id, _, recorded = self._next("start")
        # Through JSON, as the recorded one: tuples are lists there.
        here = json.loads(json.dumps(decision(launch)))
        if launch_id != launch.launch_id or recorded != here:
            raise ReplayDiffers(
                f"launch {launch.launch_id} is {_shown(here)}, and was recorded as launch {launch_id}, "
                f"{_shown(recorded)}; {_REPLAY}"
            )
        self.decisions += 1
        self._flights.add(launch_id)

    def next(self, until_s: float | None) -> Completion | None:
        line = self._next("done", "none")
        if line[0] == "none":
            return None
        if line[1] not in self._flights:
            raise ReplayDiffers(f"launch {line[1]} is recorded as done, and is not in flight; {_REPLAY}")
        self._flights.remove(line[1])
        return Completion(line[1], line[2])

    def release(self, request: int, instance: int) -> None:
        """There is no KV in a replay."""

    def _next(self, *kinds: str) -> list[Any]:
        line = next(self._answers, None)
        if line is None:
            raise RecordingEnds
        if line[0] not in kinds:
            raise ReplayDiffers(
                f"the loop asked for {' or '.join(kinds)} after {self.given} answers, and {line[0]!r} was recorded; "
                f"{_REPLAY}"
            )
        self.given += 1
        return line


def decision(launch: Launch) -> list[Any]:
    """All that a launch decides, as JSON types."""
    step, work = launch.step, launch.work
    return [
        launch.instance,
        step.lane,
        step.sms,
        [[chunk.request.index, chunk.tokens] for chunk in step.prefill],
        work.layers,
        [request.index for request in launch.decoding],
        [request.index for request in step.preempt],
        None if step.transfer is None else step.transfer.index,
        launch.predicted.seconds,
    ]


def _shown(recorded: Sequence[Any]) -> str:
    known = zip(_DECIDED, recorded, strict=True)
    return ", ".join(f"{name} {value}" for name, value in known if value not in (None, []))


def read_recording(path: Path) -> tuple[Any, list[list[Any]]]:
    """(settings, answers) of a recording; a last line that was cut off is left out.

    Raises ValueError for a file that is none.
    """
    lines: list[list[Any]] = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                if not text.endswith("\n"):
                    break
                lines.append(_line(path, number, text))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; a recording is the answers.jsonl of a run on a device") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no recording: it is not text") from None
    if not lines or lines[0][:2] != ["recording", VERSION]:
        raise ValueError(f"{path} is no recording of version {VERSION}; it begins otherwise")
    settings = lines[0][2]
    if not isinstance(settings, dict) or not all(isinstance(settings.get(name), dict) for name in ("config", "facts")):
        raise ValueError(f"{path} holds no settings of a run on a device; the file is damaged")
    return settings, lines[1:]


def _line(path: Path, number: int, text: str) -> list[Any]:
    try:
        return list(_LINES.validate_json(text))
    except ValidationError:
        shown = repr(text[:60].rstrip())
        raise ValueError(f"{path}, line {number}: {shown} is no line of a recording; the file is damaged") from None
