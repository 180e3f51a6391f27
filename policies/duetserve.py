"""DuetServe: chunked prefill by default, and a split of the SMs for the iterations that would break the TBT SLO.

Gao et al., arXiv 2511.04791. Each iteration takes one token of every decoding request and fills a token budget with
prompt chunks, as chunked prefill does. If the forecast of that iteration, attention over its real contexts included, is
above the TBT SLO (here the TPOT limit), its prefill and its decodes run side by side instead: k decode steps while the
chunks are prefilled, launched ahead and not synchronised in between. Every split whose decode step keeps the SLO is
tried, and the one with the most tokens a second, prompt and output, is taken. The next iteration begins when both have
ended.

Plainest choices: the forecast is the view's latency model; k is how many decode steps fit the prefill, at least one;
where no split keeps the SLO the iteration runs as one batch; look-ahead steps end early where KV is short.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from policies.admission import fill, relieve
from policies.api import Chunk, Decision, Router, Step, View
from policies.forecast import prefill_shape
from policies.phases import DECODE, PREFILL, next_decode, whole_steps
from policies.routing import LeastLoaded
from policies.twolanes import TwoLanes
from profiler.work import Work

NOTHING = Decision()


class Ahead(NamedTuple):
    """This policy's memo: decode steps of the split iteration that are still to be launched, and their SMs."""

    steps: int
    sms: int


class Split(NamedTuple):
    """What one split of an iteration gives: decode's SMs, decode steps beside the prefill, tokens a second."""

    decode_sms: int
    decode_steps: int
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DuetServe(TwoLanes):
    """Two lanes on every instance; an iteration that is not split runs on the prefill lane, on all SMs.

    budget_tokens: tokens of one iteration, decodes included.
    sm_step: SMs by which splits differ, at most half of them; None takes the device's granularity.
    max_resident: requests that may hold KV at once.
    """

    name: ClassVar[str] = "duetserve"

    budget_tokens: int = 2048
    sm_step: int | None = None
    max_resident: int = 1024
    router: Router = field(default_factory=LeastLoaded)

    def __post_init__(self) -> None:
        for name in ("budget_tokens", "sm_step", "max_resident"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"duetserve: {name} is {value}; it must be 1 or more")

    def decide(self, view: View) -> Decision:
        prefill, decode = view.lanes[PREFILL], view.lanes[DECODE]
        ahead = view.memo if isinstance(view.memo, Ahead) else Ahead(0, 0)
        if decode.busy:
            return Decision((), ahead)
        if prefill.busy:
            return self._look_ahead(view, ahead)
        relief = relieve(view)
        chunks: tuple[Chunk, ...] = ()
        if view.waiting or view.prefilling:
            chunks = fill(
                view,
                budget_tokens=self.budget_tokens - relief.decodes,
                free_blocks=relief.free_blocks,
                max_resident=self.max_resident,
                without=relief.victims,
            )
        if not chunks and not relief.decodes:
            return NOTHING
        # Whom relief pushes out is still in the forecast's decode batch: no split in such a decision.
        split = self._split(view, chunks) if chunks and relief.decodes and not relief.victims else None
        if split is None:
            again = not chunks and not view.waiting
            return Decision((Step(PREFILL, view.sms, chunks, None, relief.decodes > 0, relief.victims, None, again),))
        steps = (
            Step(DECODE, split.decode_sms, decode=True),
            Step(PREFILL, view.sms - split.decode_sms, chunks),
        )
        return Decision(steps, Ahead(split.decode_steps - 1, split.decode_sms))

    @staticmethod
    def _look_ahead(view: View, ahead: Ahead) -> Decision:
        """The next decode step of a split iteration whose prefill is in flight."""
        if not ahead.steps or not view.decoding or view.decode_block_demand > view.free_blocks:
            return Decision((), Ahead(0, 0))
        return Decision((Step(DECODE, ahead.sms, decode=True),), ahead._replace(steps=ahead.steps - 1))

    def _split(self, view: View, chunks: tuple[Chunk, ...]) -> Split | None:
        """The split with the most tokens a second under the SLO, None where one batch keeps it or no split does."""
        limit_s, estimate, total = view.slo.tpot_limit_s, view.latency.estimate, view.sms
        shapes = tuple((chunk.tokens, prefill_shape(chunk.request)[1]) for chunk in chunks)
        prefill, decode = Work(prefill=shapes), next_decode(view)
        if estimate(decode._replace(prefill=shapes), total).seconds <= limit_s:
            return None
        step, best = whole_steps(view, self.sm_step), None
        for sms in range(step, total, step):
            decode_s = estimate(decode, sms, prefill, total - sms).seconds
            if decode_s > limit_s:
                continue
            prefill_s = estimate(prefill, total - sms, decode, sms).seconds
            steps = max(1, int(prefill_s / decode_s))
            tokens = prefill.new_tokens + steps * decode.decode_requests
            found = Split(sms, steps, tokens / max(prefill_s, steps * decode_s))
            if best is None or found.tokens_per_s > best.tokens_per_s:
                best = found
        return best
