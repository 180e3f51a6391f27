"""The seam between the serving loop's executor and a device: jobs go to lanes, and come back done.

A lane is a stream of jobs on one instance, one at a time, each on its own SMs. Slots, tokens and requests are the
executor's business; a device knows sequences in slots of a KV cache. Times are those of ``time.perf_counter``, which
all processes of a machine share.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from profiler.measure.attention import Sequenced


class DeviceError(ValueError):
    """The device, or a process of it, cannot go on; the message is one line with the remedy."""


class Batch(NamedTuple):
    """Sequences through the model's layers ``first`` to before ``last``; after all of them come LM head and sampling.

    sequences: slot, new and cached tokens of each, in the KV cache of the job's instance; chunks and decodes may mix.
    tokens: ids of the new tokens, one sequence after the other, where ``first`` is 0. Else empty: the lane takes up
        what its last batch, of the same sequences, left after layer ``first`` - 1, whatever SMs that ran on.
    temperature: of sampling; 0 takes the likeliest token.
    """

    sequences: tuple[Sequenced, ...]
    tokens: tuple[int, ...]
    first: int
    last: int
    temperature: float = 0.0


class Copy(NamedTuple):
    """The KV of the first ``tokens`` tokens of ``source_slot`` of another instance, to ``slot`` of the job's."""

    source: int
    source_slot: int
    slot: int
    tokens: int


class Job(NamedTuple):
    """What a lane is to do, on how many SMs (0 for a copy)."""

    job_id: int
    instance: int
    lane: str
    sms: int
    task: Batch | Copy


class Done(NamedTuple):
    """A finished job.

    tokens: the next token of each sequence, where the LM head ran; else empty.
    begin_s, finish_s: when the device was at it. processor_s: of that, processor time of all the lane's threads; NaN
        on a GPU.
    sms: what the job was granted.
    """

    job_id: int
    tokens: tuple[int, ...]
    begin_s: float
    finish_s: float
    processor_s: float
    sms: int


class Lanes(Protocol):
    """The devices of a run with the model on them, ready to serve.

    slots, slot_tokens: of each instance's KV cache. settings: what provenance should say of machine and shares.
    """

    slots: int
    slot_tokens: int
    settings: dict[str, Any]

    def granted(self, instance: int, lane: str, sms: int) -> int:
        """The SMs that a job on this lane gets when it asks for ``sms``; 0 on a link."""
        ...

    def submit(self, job: Job) -> None:
        """Begins a job on an idle lane and returns at once."""
        ...

    def wait(self, timeout_s: float | None) -> Done | None:
        """The next job to finish, or None after ``timeout_s`` (0 only looks; None waits on).

        Raises DeviceError where a job failed or a process died.
        """
        ...

    def close(self) -> None:
        """Ends everything that was started; may be called twice."""
        ...
