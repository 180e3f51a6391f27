"""A run as a Chrome trace: steps by instance and lane, levels, and requests, to look at in Perfetto.

The JSON object form of the Trace Event Format, which ui.perfetto.dev and chrome://tracing open. Times are microseconds
from the run's start. An instance is a process and a lane a thread of it; requests are a process of their own:

    M    names of processes and threads
    X    a step: its lane is its category, its columns in steps.parquet its args
    C    by instance at each step: SMs asked for by lane, waiting requests, free KV blocks
    b e  a request's phases, queued, prefill and decode, one after the other under its number
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import IO, Any

import numpy as np

from sim.records import Records, StepLog

Event = Mapping[str, Any]

ARGS = ("sms", "prefill_tokens", "prefill_requests", "decode_requests", "context_tokens", "layers")
PHASES = ("queued", "prefill", "decode")
TELL_EVERY = 10_000


def write_events(
    file: IO[str], steps: StepLog, records: Records, tell: Callable[[int], None] = lambda done: None
) -> None:
    """The whole document, an event a line; ``tell`` hears how many steps and requests are written."""
    file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
    for place, event in enumerate(_all(steps, records, tell)):
        file.write(("" if place == 0 else ",\n") + json.dumps(event, allow_nan=False))
    file.write("\n]}\n")


def _all(steps: StepLog, records: Records, tell: Callable[[int], None]) -> Iterator[Event]:
    done = 0
    for part in (step_events(steps), request_events(records, _requests_process(steps))):
        for events in part:
            yield from events
            done += 1
            if done % TELL_EVERY == 0:
                tell(done)


def _requests_process(steps: StepLog) -> int:
    return int(steps.instance.max(initial=-1)) + 1


def step_events(steps: StepLog) -> Iterator[Iterable[Event]]:
    """The events of each step in order of start, after the names that it is the first to need.

    Steps of a lane that overlap, such as transfers over the link, are on threads beside each other, since a thread's
    events have to nest.
    """
    threads: dict[tuple[int, int, int], int] = {}
    free_at: dict[tuple[int, int], list[float]] = {}
    for row in np.argsort(steps.start_s, kind="stable").tolist():
        instance, lane = int(steps.instance[row]), int(steps.lane[row])
        busy = free_at.setdefault((instance, lane), [])
        start_s, end_s = float(steps.start_s[row]), float(steps.end_s[row])
        slot = next((slot for slot, until in enumerate(busy) if until <= start_s), len(busy))
        busy[slot : slot + 1] = [end_s]
        names: list[Event] = []
        if (instance, lane, slot) not in threads:
            if not any(key[0] == instance for key in threads):
                names.append(_name("process_name", instance, 0, f"instance {instance}"))
            threads[instance, lane, slot] = sum(key[0] == instance for key in threads) + 1
            shown = steps.lane_names[lane] + (f" {slot + 1}" if slot else "")
            names.append(_name("thread_name", instance, threads[instance, lane, slot], shown))
        yield [*names, *_step(steps, row, threads[instance, lane, slot])]


def _name(kind: str, process: int, thread: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _step(steps: StepLog, row: int, thread: int) -> Iterator[Event]:
    lane, process = steps.lane_names[int(steps.lane[row])], int(steps.instance[row])
    start_us, end_us = _microseconds(steps.start_s[row]), _microseconds(steps.end_s[row])
    args = {name: int(getattr(steps, name)[row]) for name in ARGS}
    predicted_s = float(steps.predicted_s[row])
    yield {
        "name": _work(args) or lane,
        "cat": lane,
        "ph": "X",
        "ts": start_us,
        "dur": round(end_us - start_us, 3),
        "pid": process,
        "tid": thread,
        "args": args | {"predicted_s": None if np.isnan(predicted_s) else predicted_s},
    }
    if args["sms"]:
        yield _level(f"SMs of {lane}", process, start_us, args["sms"])
        yield _level(f"SMs of {lane}", process, end_us, 0)
    yield _level("waiting requests", process, start_us, int(steps.waiting[row]))
    yield _level("free KV blocks", process, start_us, int(steps.free_blocks[row]))


def _work(args: Mapping[str, int]) -> str:
    prefill = f"prefill {args['prefill_tokens']} tokens" if args["prefill_tokens"] else ""
    decode = f"decode {args['decode_requests']}" if args["decode_requests"] else ""
    return " + ".join(part for part in (prefill, decode) if part)


def _level(name: str, process: int, at_us: float, value: int) -> Event:
    return {"name": name, "ph": "C", "ts": at_us, "pid": process, "args": {"value": value}}


def request_events(records: Records, process: int) -> Iterator[Iterable[Event]]:
    """The phases of each request that it came to the end of, on the process of this number."""
    yield [_name("process_name", process, 0, "requests")]
    times = np.column_stack((records.arrival_s, records.scheduled_s, records.first_token_s, records.last_token_s))
    for row, request_id in enumerate(records.request_id):
        ends = [_microseconds(seconds) for seconds in times[row] if not np.isnan(seconds)]
        events: list[Event] = []
        for phase, (begin, end) in zip(PHASES, pairwise(ends), strict=False):
            common = {"name": phase, "cat": "request", "id": row, "pid": process, "tid": 0}
            args = {
                "request_id": request_id,
                "prompt_tokens": int(records.prompt_tokens[row]),
                "generated_tokens": int(records.generated_tokens[row]),
                "instance": int(records.instance[row]),
            }
            events += [{**common, "ph": "b", "ts": begin, "args": args}, {**common, "ph": "e", "ts": end}]
        yield events


def _microseconds(seconds: float) -> float:
    return round(1e6 * float(seconds), 3)
