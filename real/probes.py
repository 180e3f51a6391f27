"""Whole layers that a profile has, as jobs on lanes that serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from profiler.measure.attention import Sequenced
from profiler.work import Work
from real.lanes import Batch, DeviceError, Done, Job, Lanes

KINDS = ("prefill", "decode")

TIMEOUT_S = 120.0

Place = tuple[int, str]
"""An instance and the name of one of its lanes."""


class Probe(NamedTuple):
    """Layers of the profile and how long they took now.

    Each of ``sequences`` has as many new tokens, one where it decodes, and as many cached ones.
    """

    kind: str
    sms: int
    sequences: int
    new_tokens: int
    cached_tokens: int
    layers: int
    profiled_s: float
    seconds: float = 0.0

    @classmethod
    def of(cls, row: Mapping[Any, Any], prefix: str = "") -> Probe:
        """The layers of a profile's row, or with ``beside_`` those beside which they ran."""
        kind = str(row["beside" if prefix else "kernel"]).removesuffix("_layers")
        if kind == "prefill":
            shape = row[f"{prefix}sequences"], row[f"{prefix}new_tokens"], row[f"{prefix}cached_tokens"]
        else:
            shape = row[f"{prefix}decode_requests"], 1, row[f"{prefix}decode_context_tokens"] - 1
        count, new, cached = map(int, shape)
        sms, layers = int(row[f"{prefix}sms"]), int(row[f"{prefix}layers"])
        return cls(kind, sms, count, new, cached, layers, float(row["latency_s"]))

    @property
    def ratio(self) -> float:
        return self.seconds / self.profiled_s

    @property
    def work(self) -> Work:
        if self.kind == "prefill":
            chunks = ((self.new_tokens, self.cached_tokens),) * self.sequences
            return Work(chunks, layers=self.layers, head=False)
        context = self.sequences * (self.cached_tokens + 1)
        return Work((), self.sequences, context, layers=self.layers, head=False)

    def fits(self, lanes: Lanes, place: Place, slots: int | None = None) -> bool:
        """Whether a lane takes them, on the SMs that they are of and with ``slots`` (all by default) for them."""
        tokens = self.new_tokens + self.cached_tokens
        room = self.sequences <= (lanes.slots if slots is None else slots) and tokens <= lanes.slot_tokens
        return room and lanes.granted(*place, self.sms) == self.sms

    def job(self, place: Place, *, job_id: int = -1, layers: int | None = None, slot: int = 0) -> Job:
        """The first ``layers``, of as many as the probe has by default, with KV from ``slot`` on."""
        each = self.new_tokens, self.cached_tokens
        sequences = tuple(Sequenced(slot + place, *each) for place in range(self.sequences))
        tokens = (1,) * (self.sequences * self.new_tokens)
        return Job(job_id, *place, self.sms, Batch(sequences, tokens, 0, layers or self.layers))


def run(lanes: Lanes, place: Place, probe: Probe, layers: int | None = None) -> float:
    """Seconds of the first ``layers``, of as many as the probe has by default."""
    lanes.submit(probe.job(place, layers=layers))
    done = awaited(lanes, probe)
    return done.finish_s - done.begin_s


def awaited(lanes: Lanes, probe: Probe) -> Done:
    """The next to end. Raises DeviceError where nothing does."""
    done = lanes.wait(TIMEOUT_S)
    if done is None:
        raise DeviceError(f"layers that took {probe.profiled_s:.3g} s when profiled took over {TIMEOUT_S:g} s")
    return done
