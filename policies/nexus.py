"""Nexus: one engine, two streams, and a split that a cost model chooses before each batch.

Shi et al., arXiv 2507.06608. The cost model gives the time of a prefill or decode batch on a share of the SMs beside
the other: the larger of compute and memory time of each operator, returns that diminish with SMs, and a bandwidth that
both draw on. That is what the project's latency models are, so the view's is used. One phase is put first: prefill, or,
once more than ``kv_switch`` of the KV blocks are taken, decode, whose ending frees them. The phase put first gets the
most SMs with which the other still takes no longer than ``slack`` times what it would with as many SMs as it could
have. The search is greedy: from the split in force, step by step. Hysteresis: the split found replaces the one in force
only if it differs by ``hysteresis`` of the SMs or more.

Prefill takes the shortest prompt first, less ``age_tokens_per_s`` for each second it has waited, in chunks up to a
token budget; decode takes everybody. Numbers that the paper tunes per system (kv_switch, slack, hysteresis, ageing) are
settings with defaults of ours, as is the form of the slack. A phase alone has all SMs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from policies.admission import Relief, fill
from policies.api import Chunk, Decision, RequestProgress, Router, Step, View
from policies.forecast import prefill_shape
from policies.phases import DECODE, PREFILL, next_decode, room, split_steps
from policies.routing import LeastLoaded
from policies.twolanes import TwoLanes
from profiler.work import Work


class Split(NamedTuple):
    """This policy's memo: decode's SMs while both phases have something to run."""

    decode_sms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Nexus(TwoLanes):
    """Two lanes on every instance.

    slack: how many times its shortest time the phase that is not put first may take.
    kv_switch: the part of the KV blocks beyond which decode is put first.
    hysteresis: the part of the SMs by which a split must differ to replace the one in force.
    age_tokens_per_s: how much shorter a prompt counts for each second it has waited.
    sm_step: SMs by which shares change, at most half of them; None takes the device's granularity.
    batch_tokens: prompt tokens of one prefill launch.
    max_resident: requests that may hold KV at once.
    """

    name: ClassVar[str] = "nexus"

    slack: float = 1.3
    kv_switch: float = 0.8
    hysteresis: float = 0.05
    age_tokens_per_s: float = 100.0
    sm_step: int | None = None
    batch_tokens: int = 2048
    max_resident: int = 1024
    router: Router = field(default_factory=LeastLoaded)

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "max_resident", "sm_step"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"nexus: {name} is {value}; it must be 1 or more")
        if not self.slack >= 1:
            raise ValueError(f"nexus: slack is {self.slack}; it must be 1 or more")
        for name in ("kv_switch", "hysteresis"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"nexus: {name} is {getattr(self, name)}; it must be 0 to 1")
        if not self.age_tokens_per_s >= 0:
            raise ValueError(f"nexus: age_tokens_per_s is {self.age_tokens_per_s}; it must be 0 or more")

    def decide(self, view: View) -> Decision:
        prefill, decode = view.lanes[PREFILL], view.lanes[DECODE]
        relief = room(view)
        chunks = () if prefill.busy else self._batch(view, relief)
        split = view.memo if isinstance(view.memo, Split) else Split(view.sms // 2)
        prefilling = prefill.work if prefill.busy else _work(chunks)
        if prefilling is not None and relief.decodes:
            split = self._split(view, split, prefilling)
            decode_sms, prefill_sms = split.decode_sms, view.sms - split.decode_sms
        else:
            decode_sms = prefill_sms = view.sms
        steps: tuple[Step, ...] = ()
        if relief.decodes and not decode.busy:
            again = prefilling is None and not view.waiting
            steps = (Step(DECODE, decode_sms, (), None, True, relief.victims, None, again),)
        if chunks:
            # Where nobody is left to decode, there is no step of theirs to take out those who give way to the chunks.
            victims = () if relief.decodes else relief.victims
            steps = (*steps, Step(PREFILL, prefill_sms, chunks, None, False, victims))
        return Decision(steps, split)

    def _batch(self, view: View, relief: Relief) -> tuple[Chunk, ...]:
        now, ageing = view.now_s, self.age_tokens_per_s

        def length(request: RequestProgress) -> float:
            return prefill_shape(request)[0] - ageing * (now - request.arrival_s)

        return fill(
            view,
            budget_tokens=self.batch_tokens,
            free_blocks=relief.free_blocks,
            max_resident=self.max_resident,
            without=relief.victims,
            queue=sorted(view.waiting.values(), key=length),
        )

    def _split(self, view: View, split: Split, prefilling: Work) -> Split:
        total, step, decoding = view.sms, split_steps(view, self.sm_step), next_decode(view)
        estimate = view.latency.estimate

        def decode_s(sms: int) -> float:
            return estimate(decoding, sms, prefilling, total - sms).seconds

        def prefill_s(sms: int) -> float:
            return estimate(prefilling, sms, decoding, total - sms).seconds

        if view.total_blocks - view.free_blocks > self.kv_switch * view.total_blocks:
            found = total - self._fewest(prefill_s, total - split.decode_sms, total, step)
        else:
            found = self._fewest(decode_s, split.decode_sms, total, step)
        return split if abs(found - split.decode_sms) < self.hysteresis * total else Split(found)

    def _fewest(self, seconds: Callable[[int], float], start: int, total: int, step: int) -> int:
        """SMs near ``start`` from which one step fewer would take longer than the slack allows."""
        most = total - step
        sms, limit_s = min(max(start, step), most), self.slack * seconds(most)
        while sms + step <= most and seconds(sms) > limit_s:
            sms += step
        while sms - step >= step and seconds(sms - step) <= limit_s:
            sms -= step
        return sms


def _work(chunks: tuple[Chunk, ...]) -> Work | None:
    if not chunks:
        return None
    return Work(prefill=tuple((chunk.tokens, prefill_shape(chunk.request)[1]) for chunk in chunks))
