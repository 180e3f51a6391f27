"""One run on a device, from its settings to its directory; and the same from what a cut-off run left behind.

While it is served, a run is its recording alone, a hidden file beside its directory. The directory is made from the
recording by a replay: of a whole run, whose records must come out as they were, and of one that was interrupted,
whose finished part is thereby saved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from policies.api import Policy, simulated_only
from profiler.kernelsum import KernelSumModel
from real.comparison import FACTS
from real.executor import DeviceExecutor
from real.lanes import Lanes
from real.launches import LAUNCHES, LaunchLog, write_launches
from real.recording import Recorder, RecordingEnds, ReplayDiffers, Replayer, read_recording
from real.residents import Residents
from sim.columns import int_column, text_column, write_columns
from sim.config import RunConfig, checked, read_json
from sim.instance import PolicyError
from sim.metrics import summarise
from sim.records import RunResult
from sim.rundir import complete_or_absent, fill_run, replacing, write_json
from sim.simulate import Prepared, Progress, prepare

ANSWERS = "answers.jsonl"
TOKENS = "tokens.parquet"


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """A recording gone through again.

    result: the run's. finished: whether the recording was of a whole run. answers, decisions: how many there were.
    """

    result: RunResult
    launches: LaunchLog
    tokens: Mapping[int, list[int]]
    finished: bool
    answers: int
    decisions: int


def serve(
    prepared: Prepared,
    lanes: Lanes,
    target: Path,
    *,
    facts: Mapping[str, Any],
    afterwards: Callable[[], Mapping[str, Any]] = dict,
    temperature: float = 0.0,
    progress: Progress | None = None,
) -> Replayed:
    """Serves the run on ``lanes`` and leaves it at ``target``, replacing a run that is there.

    ``facts``, and what ``afterwards`` says when it has ended, are written to its real.json. Raises what stops it,
    DeviceError or an interruption, after its finished part has been saved, and ReplayDiffers where a replay comes to
    other records than the run.
    """
    check_servable(prepared)
    if isinstance(prepared.estimator, KernelSumModel):
        prepared.estimator.make_ready()
    executor = _executor(prepared, lanes, temperature)
    target.parent.mkdir(parents=True, exist_ok=True)
    recording = recording_of(target)
    recording.unlink(missing_ok=True)
    settings = {"config": prepared.config.model_dump(mode="json"), "facts": dict(facts)}
    # A recording that cannot be begun is none to make a run of.
    recorder = Recorder(executor, recording, settings)
    result = None
    try:
        with recorder:
            result = prepared.loop(executor=recorder, progress=progress).run()
        executor.settle()
    finally:
        # Also on the way out: what had finished is kept.
        replayed = recover(recording, target, afterwards())
    difference = different(result, replayed.result)
    if difference:
        raise ReplayDiffers(f"{target}: its replay differs from the run in {difference}")
    return replayed


def _executor(prepared: Prepared, lanes: Lanes, temperature: float) -> DeviceExecutor:
    model, config = prepared.latency.model, prepared.config
    residents = Residents(instances=config.instances, slots=lanes.slots, vocab=model.vocab, seed=config.seed)
    return DeviceExecutor(lanes, residents, layers=model.layers, temperature=temperature)


def check_servable(prepared: Prepared) -> None:
    """Raises ValueError for what a simulator can do and a device cannot."""
    check_policy(prepared.policy)
    if prepared.limits.reuse_preempted:
        raise ValueError("reuse_preempted is simulated only: on a device a request that gives way loses its slot")
    if prepared.limits.prefixes is not None:
        raise ValueError("prefix_cache is simulated only: on a device every request has a slot of its own")
    if prepared.config.tensor_parallel != 1:
        raise ValueError(f"tensor_parallel is {prepared.config.tensor_parallel}; a device run has one GPU an instance")


def check_policy(policy: Policy) -> None:
    """Raises ValueError for a policy that a device cannot show what it needs."""
    if policy.needs_truth:
        raise ValueError(
            f"policy {policy.name} needs to know how long answers will be, which a device cannot tell; simulate it, or "
            f"take another policy"
        )
    if reason := simulated_only(policy):
        raise ValueError(f"policy {policy.name} is simulated only: {reason}; take another policy")


def recover(recording: Path, target: Path, facts: Mapping[str, Any] | None = None) -> Replayed:
    """Makes the directory of the run whose recording this is; the recording moves into it.

    ``facts`` are added to those that were recorded.
    Raises ValueError for a file that is no recording, or of another version's decisions.
    """
    settings, _ = read_recording(recording)
    replayed = replay(recording)
    prepared = prepare(checked(RunConfig, settings["config"], str(recording)))
    config = prepared.config
    metrics = summarise(replayed.result, config.slo.value(), config.gpus, config.window.value())
    names = replayed.result.records.request_id
    with complete_or_absent(target) as directory:
        fill_run(directory, config, replayed.result, metrics)
        write_launches(directory / LAUNCHES, replayed.launches)
        _write_tokens(directory / TOKENS, {names[index]: found for index, found in replayed.tokens.items()})
        replay_facts = {"answers": replayed.answers, "decisions": replayed.decisions}
        known = {**settings["facts"], **(facts or {}), "finished": replayed.finished, "replay": replay_facts}
        write_json(directory / FACTS, known)
        (directory / ANSWERS).write_bytes(recording.read_bytes())
    recording.unlink()
    return replayed


def note(target: Path, facts: Mapping[str, Any]) -> None:
    """Adds to what the real.json of a run says."""
    path = target / FACTS
    known = read_json(path)
    with replacing(path) as partial:
        write_json(partial, {**known, **facts})


def replay(recording: Path) -> Replayed:
    """Gives a recording's answers to the loop again, as far as they go.

    Raises ReplayDiffers where the loop decides otherwise than when it was recorded, and ValueError for a file that is
    no recording or settings that cannot be run here.
    """
    settings, answers = read_recording(recording)
    loop = prepare(checked(RunConfig, settings["config"], str(recording)))
    replayer = Replayer(iter(answers))
    serving = loop.loop(executor=replayer)
    try:
        result, finished = serving.run(), True
        if replayer.given < len(answers):
            raise ReplayDiffers(f"{recording}: {len(answers) - replayer.given} answers follow after the run has ended")
    except RecordingEnds:
        result, finished = serving.result(), False
    except PolicyError:
        # With nothing answered after it, this is what ended the run itself.
        if replayer.given < len(answers):
            raise
        result, finished = serving.result(), False
    launches, tokens = _device_side(answers)
    came = len(result.records)
    if strange := tokens.keys() - range(came):
        raise ValueError(f"{recording}: a token of request {min(strange)}, and {came} requests came; it is damaged")
    return Replayed(result, launches, tokens, finished, replayer.given, replayer.decisions)


def recording_of(target: Path) -> Path:
    """Where a run is recorded that will be left at ``target``."""
    return target.with_name(f".{target.name}.{ANSWERS}")


def different(one: RunResult | None, other: RunResult) -> str:
    """The first of the two runs' record or step columns that are not equal; empty where all are."""
    if one is None:
        return ""
    for table in ("records", "steps"):
        for part in fields(getattr(one, table)):
            mine, theirs = (getattr(getattr(run, table), part.name) for run in (one, other))
            same = np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f") if hasattr(mine, "dtype") else None
            if not (mine == theirs if same is None else same):
                return f"{table}.{part.name}"
    return ""


def _device_side(answers: Iterable[list[Any]]) -> tuple[LaunchLog, dict[int, list[int]]]:
    """The launches that were completed, in that order, and the tokens of each request."""
    begun: dict[int, tuple[float, float]] = {}
    rows: list[tuple[float, ...]] = []
    tokens: defaultdict[int, list[int]] = defaultdict(list)
    now = 0.0
    for kind, *entries in answers:
        if kind == "now":
            now = entries[0]
        elif kind == "start":
            begun[entries[0]] = now, entries[1]
        elif kind == "done":
            launch, end_s, begin_s, finish_s, processor_s, sms, given = entries
            start_s, sent_s = begun.pop(launch)
            processor = float("nan") if processor_s is None else processor_s
            # The clock of another device is known to some microseconds; a launch cannot run outside its flight.
            begin_s = min(max(begin_s, sent_s), end_s)
            finish_s = min(max(finish_s, begin_s), end_s)
            rows.append((start_s, sent_s, begin_s, finish_s, end_s, processor, sms))
            for request, token in given:
                tokens[request].append(token)
    columns = np.array(rows, dtype=np.float64).reshape(-1, 7).T
    names = ("start_s", "sent_s", "begin_s", "finish_s", "end_s", "processor_s")
    times = dict(zip(names, columns, strict=False))
    return LaunchLog(**times, granted_sms=columns[6].astype(np.int64)), dict(tokens)


def _write_tokens(path: Path, tokens: Mapping[str, list[int]]) -> None:
    """One row a generated token: request_id, its place in the answer, and the token."""
    counts = [len(found) for found in tokens.values()]
    values = [token for found in tokens.values() for token in found]
    columns = {
        "request_id": text_column([name for name, count in zip(tokens, counts, strict=True) for _ in range(count)]),
        "position": int_column(np.concatenate([np.arange(count) for count in counts]) if counts else np.empty(0, int)),
        "token": int_column(np.array(values, dtype=np.int64)),
    }
    write_columns(path, columns)
