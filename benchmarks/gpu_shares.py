"""Whether shares of a device are what they claim: granted, apart from each other, and at work at the same time.

    python benchmarks/gpu_shares.py --device cuda --json out/shares.json

For each split of the SMs (of the cores, on a CPU): what was granted, on which SMs a kernel was seen (which cores a
process has), and how long two batches of prompts take alone and both at once, one on each side, with as many tokens as
their side has SMs. Two that took turns would take the sum of their times. Exit status 0 where every split is disjoint
and overlaps.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import profiler  # noqa: E402
from benchmarks.paper_kernels import table  # noqa: E402
from profiler.measure.attention import Sequenced  # noqa: E402
from profiler.measure.numerics import LLAMA3  # noqa: E402
from real.lanes import Batch, DeviceError, Done, Job, Lanes  # noqa: E402
from real.model import RunnableModel  # noqa: E402

LANES = ("prefill", "decode")
LAYERS = 4
TOKENS = {"cpu": 256, "cuda": 8192}
"""Of both sides together: kernels that take far longer than their launches."""

REPEATS = 5
TURNS = 0.95
"""Of the sum of both times alone: from there on two batches count as having taken turns."""

Split = tuple[int, int]
"""SMs of the first lane and of the second."""


class Seen(NamedTuple):
    """Numbers of the SMs or cores of both sides of a split; None where nobody could look."""

    first: set[int]
    second: set[int]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--json", type=Path, help="also write it there")
    options = parser.parse_args(arguments)
    try:
        kind, rows = checked(options.device)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    document = {"device": options.device, "shares": kind, "splits": rows}
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    show(kind, rows)
    wrong = [row["sms"] for row in rows if row["disjoint"] is False or not row["overlap"]]
    if wrong:
        print(f"error: not disjoint, or at work in turns: {', '.join(map(str, wrong))}", file=sys.stderr)
    return int(bool(wrong))


def checked(device: str) -> tuple[str, list[dict[str, Any]]]:
    """What the shares are, in words, and a row a split. Raises ValueError where the device is not there."""
    seen, kind = on_cuda() if device == "cuda" else ({}, "")
    lanes: Any = _cuda_lanes() if device == "cuda" else _cpu_lanes()
    try:
        if device == "cpu":
            seen, kind = on_cores(lanes), lanes.settings["shares"]
        splits = list(seen) or [_whole(lanes)]
        return kind, [_row(split, seen.get(split), *timed(lanes, split, TOKENS[device])) for split in splits]
    finally:
        lanes.close()


def on_cuda() -> tuple[dict[Split, Seen | None], str]:
    """Where blocks were seen on each split of the first GPU; no split where the driver grants none."""
    from profiler.measure.green import asked
    from profiler.measure.shares_cuda import cuda_runtime
    from real.cuda_shares import device_shares

    runtime = cuda_runtime()
    whole = runtime.properties.multi_processor_count
    shares = device_shares(runtime, None, len(LANES), asked(whole))
    try:
        streams = [{share.sms: share.stream for share in lane.parts} for lane in shares.lanes]
        found: dict[Split, Seen | None] = {}
        for group, rest in shares.splits:
            found[rest, group] = _seen_on(streams[0][rest], streams[1][group], whole, shares.kind)
        return found, shares.kind
    finally:
        if shares.contexts is not None:
            shares.contexts.close()


def _seen_on(first: Any, second: Any, whole: int, kind: str) -> Seen | None:
    """None where the lanes could not look either, for want of triton."""
    if not kind.endswith("SM numbers checked"):
        return None
    from profiler.measure.smid import sms_of

    return Seen(sms_of(first, whole), sms_of(second, whole))


def on_cores(lanes: Any) -> dict[Split, Seen | None]:
    """The cores that the processes of each split may use, by the system's account."""
    from profiler.measure.shares_cpu import cpu_shares

    def cores(lane: str, share: int) -> set[int]:
        return set(os.sched_getaffinity(lanes._lanes[0, lane].shares[share].process.pid))

    splits = cpu_shares(len(os.sched_getaffinity(0))).splits
    return {(rest, part): Seen(cores("prefill", rest), cores("decode", part)) for part, rest in splits}


def timed(lanes: Lanes, split: Split, tokens: int) -> tuple[list[float], float, float]:
    """Seconds of both batches alone, of both at once, and of these while both ran: the shortest times of several."""
    jobs = [
        _job(lane, slot, sms, tokens * sms // sum(split))
        for slot, (lane, sms) in enumerate(zip(LANES, split, strict=True))
    ]
    for job in jobs:
        _run(lanes, [job])
    alone = [min(_busy_s(_run(lanes, [job])) for _ in range(REPEATS)) for job in jobs]
    both = min((_run(lanes, jobs) for _ in range(REPEATS)), key=_busy_s)
    return alone, _busy_s(both), min(done.finish_s for done in both) - max(done.begin_s for done in both)


def _busy_s(found: Sequence[Done]) -> float:
    """From the first that began to the last that finished."""
    return max(done.finish_s for done in found) - min(done.begin_s for done in found)


def _job(lane: str, slot: int, sms: int, tokens: int) -> Job:
    batch = Batch((Sequenced(slot, tokens, 0),), tuple(index % 512 for index in range(tokens)), 0, LAYERS)
    return Job(slot, 0, lane, sms, batch)


def _run(lanes: Lanes, jobs: Sequence[Job]) -> list[Done]:
    for job in jobs:
        lanes.submit(job)
    found = [lanes.wait(60.0) for _ in jobs]
    if None in found:
        raise DeviceError("a batch of a few layers took over a minute; see what else is on the device")
    return [done for done in found if done is not None]


def _whole(lanes: Lanes) -> Split:
    """Both lanes on everything: what is left where no shares are granted."""
    most = 1 << 20
    return lanes.granted(0, LANES[0], most), lanes.granted(0, LANES[1], most)


def _row(split: Split, seen: Seen | None, alone: Sequence[float], together: float, overlap: float) -> dict[str, Any]:
    common = None if seen is None else sorted(seen.first & seen.second)
    return {
        "sms": list(split),
        "seen": None if seen is None else [sorted(side) for side in seen],
        "common": common,
        "disjoint": None if common is None else not common,
        "alone_s": list(alone),
        "together_s": together,
        "overlap_s": overlap,
        "overlap": overlap > min(alone) / 2 and together < TURNS * sum(alone),
    }


def show(kind: str, rows: Sequence[dict[str, Any]]) -> None:
    """Prints the table."""
    lines = []
    for row in rows:
        seen = "unchecked" if row["seen"] is None else " + ".join(str(len(side)) for side in row["seen"])
        apart = {None: "unchecked", True: "yes", False: f"no, {len(row['common'] or ())} common"}[row["disjoint"]]
        times = [1e3 * seconds for seconds in (*row["alone_s"], row["together_s"], row["overlap_s"])]
        granted = " + ".join(map(str, row["sms"]))
        lines.append((granted, seen, apart, *times, "yes" if row["overlap"] else "NO"))
    head = ("granted", "seen", "disjoint", "alone, ms", "alone, ms", "together, ms", "both at work, ms", "overlap")
    table(f"Shares: {kind}", head, lines)


def _cuda_lanes() -> Lanes:
    from profiler.measure.green import asked
    from profiler.measure.shares_cuda import cuda_runtime
    from real.cuda import CudaLanes

    spec = replace(profiler.model("Llama-3.1-8B"), layers=LAYERS, vocab=8192)
    whole, most = cuda_runtime().properties.multi_processor_count, TOKENS["cuda"]
    model = RunnableModel(spec, LLAMA3, seed=0)
    return CudaLanes(
        model, lanes=[LANES], slots=2, slot_tokens=most, launch_tokens=most, splits=asked(whole), graphs={}
    )


def _cpu_lanes() -> Lanes:
    from real.cpu import CpuLanes

    spec = replace(profiler.model("tiny"), layers=LAYERS)
    cores, most = len(os.sched_getaffinity(0)), TOKENS["cpu"]
    model = RunnableModel(spec, LLAMA3, seed=0)
    return CpuLanes(model, lanes=[LANES], cores_each=cores, slots=2, slot_tokens=most, launch_tokens=most)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
