"""When a run's launches were where: one row a completed launch, beside the run's steps and in their order.

A launch is decided, handed to the device, run, and noticed by the loop:

    start_s <= sent_s <= begin_s <= finish_s <= end_s

``start_s`` and ``end_s`` are the step's own. What lies outside begin to finish is the host's, and so is the time
between the event that led to a decision and the decision:

    react = start - the last arrival or completion before it
    decide = sent - start
    hand_over = begin - sent
    notice = end - finish
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.columns import Columns, float_column, int_column, write_columns

Floats = NDArray[np.float64]

LAUNCHES = "launches.parquet"
HOST_PARTS = ("react", "decide", "hand_over", "notice")

_TIMES = ("start_s", "sent_s", "begin_s", "finish_s", "end_s")


@dataclass(frozen=True, kw_only=True, eq=False)
class LaunchLog:
    """Columns of shape (n,), seconds since the run's start.

    processor_s: processor time of all the lane's threads between begin and finish; NaN on a GPU. granted_sms: what
        the device gave the launch, 0 to a transfer.
    """

    start_s: Floats
    sent_s: Floats
    begin_s: Floats
    finish_s: Floats
    end_s: Floats
    processor_s: Floats
    granted_sms: NDArray[np.int64]

    def __post_init__(self) -> None:
        lengths = {part.name: len(getattr(self, part.name)) for part in fields(self)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of launches differ in length: {lengths}")

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def device_s(self) -> Floats:
        """Seconds that the device was at each launch, shape (n,)."""
        return self.finish_s - self.begin_s

    def host_s(self, arrival_s: Floats) -> dict[str, Floats]:
        """Seconds of each of HOST_PARTS, shape (n,) each; ``arrival_s`` are the run's arrivals, in any order."""
        return {
            "react": self.start_s - _latest_before(self.start_s, np.concatenate([self.end_s, arrival_s])),
            "decide": self.sent_s - self.start_s,
            "hand_over": self.begin_s - self.sent_s,
            "notice": self.end_s - self.finish_s,
        }


def write_launches(path: Path, launches: LaunchLog) -> None:
    """``launches`` as one Parquet file at ``path``."""
    columns = {name: float_column(getattr(launches, name)) for name in (*_TIMES, "processor_s")}
    write_columns(path, columns | {"granted_sms": int_column(launches.granted_sms)})


def load_launches(path: Path) -> LaunchLog:
    """The rows of a launches.parquet. Raises ValueError naming the file, and the column or row at fault."""
    file = Columns(path)
    times = {name: file.floats(name) for name in _TIMES}
    for earlier, later in pairwise(_TIMES):
        wrong = np.flatnonzero(~(times[earlier] <= times[later]))
        if len(wrong):
            row = int(wrong[0])
            values = f"{earlier} is {times[earlier][row]} and {later} is {times[later][row]}"
            raise ValueError(f"{path}, row {row}: {values}; a launch's times are there and in order")
    return LaunchLog(processor_s=file.floats("processor_s"), granted_sms=file.ints("granted_sms"), **times)


def _latest_before(at_s: Floats, events_s: Floats) -> Floats:
    """Of ``events_s`` the last at or before each of ``at_s``; where there is none, ``at_s`` itself."""
    events = np.sort(events_s)
    place = np.searchsorted(events, at_s, side="right") - 1
    if not len(events):
        return at_s
    return np.where(place >= 0, events[np.maximum(place, 0)], at_s)
