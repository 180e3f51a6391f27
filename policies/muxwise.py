"""MuxWise: decode's SLO first, on the fewest SMs that hold it even at worst; prefill, by layers, on the rest.

Cui et al. (first as Drift), ASPLOS 2026, arXiv 2504.14489. Decisions fall when a prefill batch ends and when a decode
step ends. Decode gets the fewest SMs, in steps of 16, with which a step keeps the TPOT limit by a worst-case estimate,
prefill the rest. Per decode step as many layers of the prefill batch are launched as it is estimated to hide,
N_PL = ceil(T_d * N_T / T_P): T_d the decode step's time, T_P the whole batch's, N_T layers. A waiting prompt that is
estimated to be shorter than what is left of the batch may go before it, once a batch.

The estimator is two least-squares forms for each share, fitted from the latency model on a fixed grid at the first
decision: prefill = t1*sum(n^2) + t2*sum(n*r) + t3*sum(n) + t4 and decode = t1*sum(r) + t2*bs + t3, with n new and r
cached tokens of each request; decode times one plus the largest slowdown seen beside prefill (20 % on A100, 30 % on
H100).

Plainest choices: fits are of relative errors, and an estimate is never below that of the smallest grid point; a layer
group that ends before its decode step is followed by another, sized for what is left of that step; prompts are batched
in order of arrival up to a token budget; a phase alone has all SMs, prefill its whole batch at once; without a TPOT
limit decode gets one step of SMs, and where none holds it all but one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from policies.admission import Relief, blocks_to_begin, fill
from policies.api import Chunk, Decision, RequestProgress, Router, Step, View
from policies.forecast import prefill_shape
from policies.phases import DECODE, PREFILL, next_decode, room, split_steps
from policies.routing import LeastLoaded
from policies.twolanes import TwoLanes
from profiler.latency import LatencyModel
from profiler.work import Work

NEW_TOKENS = (1, 64, 256, 1024, 4096, 16384)
CACHED_TOKENS = (0, 1024, 8192)
DECODES = (1, 8, 32, 128)
CONTEXT_TOKENS = (128, 1024, 8192)
"""The grid: of a request being prefilled, and of decode batches and each of their requests."""


class Fit(NamedTuple):
    """The two forms on one share: coefficients, and the smallest times fitted."""

    prefill: tuple[float, float, float, float]
    decode: tuple[float, float, float]
    prefill_least_s: float
    decode_least_s: float

    def prefill_s(self, shapes: tuple[tuple[int, int], ...]) -> float:
        """Seconds of a whole batch of (new, cached) tokens."""
        t1, t2, t3, t4 = self.prefill
        seconds = t4 + sum(t1 * new * new + t2 * new * cached + t3 * new for new, cached in shapes)
        return max(seconds, self.prefill_least_s)

    def decode_s(self, work: Work) -> float:
        """Seconds of a decode step."""
        t1, t2, t3 = self.decode
        seconds = t1 * work.decode_context_tokens + t2 * work.decode_requests + t3
        return max(seconds, self.decode_least_s)


class State(NamedTuple):
    """This policy's memo: decode's share, and whether the batch in progress has let another go before it.

    ``fits`` are (decode's share, fit of prefill on the rest, fit of decode on it), ascending.
    """

    fits: tuple[tuple[int, Fit, Fit], ...]
    decode_sms: int
    gave_way: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MuxWise(TwoLanes):
    """Two lanes on every instance.

    sm_step: SMs by which shares change, at most half of them.
    slowdown: what a decode step may lose to the prefill beside it; None takes the device's ceiling.
    preempt: whether a shorter prompt may go before the batch in progress; in simulation alone.
    batch_tokens: prompts are batched up to this many tokens; a longer one runs alone.
    max_resident: requests that may hold KV at once.
    """

    name: ClassVar[str] = "muxwise"

    sm_step: int = 16
    slowdown: float | None = None
    preempt: bool = True
    batch_tokens: int = 1024
    max_resident: int = 1024
    router: Router = field(default_factory=LeastLoaded)

    def __post_init__(self) -> None:
        for name in ("sm_step", "batch_tokens", "max_resident"):
            if getattr(self, name) < 1:
                raise ValueError(f"muxwise: {name} is {getattr(self, name)}; it must be 1 or more")
        if self.slowdown is not None and not self.slowdown >= 0:
            raise ValueError(f"muxwise: slowdown is {self.slowdown}; it must be 0 or more, or None for the device's")

    @property
    def simulated_only(self) -> str:
        return "no device runner here puts a batch aside; set preempt=false" if self.preempt else ""

    def decide(self, view: View) -> Decision:
        prefill, decode = view.lanes[PREFILL], view.lanes[DECODE]
        state = view.memo if isinstance(view.memo, State) else self._first_state(view)
        relief = room(view)
        chunks, begins = prefill.batch, not prefill.batch
        if begins:
            chunks, state = self._next_batch(view, relief), state._replace(gave_way=False)
        if not relief.decodes or not chunks:
            return Decision(self._alone(view, relief, chunks), state)
        work = next_decode(view)
        if begins or not decode.busy:
            state = state._replace(decode_sms=self._decode_sms(view, state, work))
        steps: tuple[Step, ...] = ()
        if not decode.busy:
            steps = (Step(DECODE, state.decode_sms, (), None, True, relief.victims),)
        if not prefill.busy:
            step, state = self._layers(view, state, relief, chunks, work)
            steps = (*steps, step)
        return Decision(steps, state)

    def _alone(self, view: View, relief: Relief, chunks: tuple[Chunk, ...]) -> tuple[Step, ...]:
        """All SMs for the phase that has something to run."""
        if chunks:
            return () if view.lanes[PREFILL].busy else (Step(PREFILL, view.sms, chunks),)
        if view.lanes[DECODE].busy or not relief.decodes:
            return ()
        return (Step(DECODE, view.sms, (), None, True, relief.victims, None, not view.waiting),)

    def _next_batch(self, view: View, relief: Relief) -> tuple[Chunk, ...]:
        return fill(
            view,
            budget_tokens=self.batch_tokens,
            free_blocks=relief.free_blocks,
            max_resident=self.max_resident,
            whole_prompts=True,
            without=relief.victims,
        )

    def _decode_sms(self, view: View, state: State, work: Work) -> int:
        """The fewest SMs with which a step holds the TPOT limit at worst; all but one step of them where none does."""
        slowdown = view.latency.device.contention_ceiling if self.slowdown is None else self.slowdown
        limit_s = view.slo.tpot_limit_s / (1 + slowdown)
        for sms, _, decoding in state.fits:
            if decoding.decode_s(work) <= limit_s:
                return sms
        return state.fits[-1][0]

    def _layers(
        self, view: View, state: State, relief: Relief, chunks: tuple[Chunk, ...], work: Work
    ) -> tuple[Step, State]:
        """The next layers of the batch, or the first of a shorter prompt that goes before it."""
        decode, lane, total_layers = view.lanes[DECODE], view.lanes[PREFILL], view.latency.model.layers
        prefilling, decoding = next((p, d) for sms, p, d in state.fits if sms == state.decode_sms)
        step_s = decoding.decode_s(work)
        if decode.busy:
            step_s = max(0.0, decode.predicted_s - (view.now_s - decode.started_s))
        left, suspend = total_layers - lane.layers_done, False
        batch_s = prefilling.prefill_s(_shapes(chunks))
        if self.preempt and lane.layers_done and not state.gave_way and not relief.victims:
            shorter = self._shorter(view, relief, prefilling, batch_s * left / total_layers)
            if shorter is not None:
                chunks, left, suspend = (shorter,), total_layers, True
                batch_s = prefilling.prefill_s(_shapes(chunks))
                state = state._replace(gave_way=True)
        layers = min(left, max(1, math.ceil(step_s * total_layers / batch_s)))
        sms = max(view.sms - state.decode_sms, view.sms - decode.sms if decode.busy else 0)
        return Step(PREFILL, sms, chunks, layers, suspend=suspend), state

    def _shorter(self, view: View, relief: Relief, prefilling: Fit, left_s: float) -> Chunk | None:
        """The shortest waiting prompt, if it can be admitted and is over before what is left of the batch would be."""
        if not view.waiting or len(view.decoding) + len(view.prefilling) >= self.max_resident:
            return None

        def tokens(request: RequestProgress) -> int:
            return prefill_shape(request)[0]

        request = min(view.waiting.values(), key=tokens)
        if blocks_to_begin(request, view.block_tokens) > relief.free_blocks:
            return None
        return Chunk(request, tokens(request)) if prefilling.prefill_s((prefill_shape(request),)) < left_s else None

    def _first_state(self, view: View) -> State:
        total, step = view.sms, split_steps(view, self.sm_step)
        fits = tuple(
            (sms, fitted(view.latency, total - sms), fitted(view.latency, sms)) for sms in range(step, total, step)
        )
        return State(fits, fits[0][0], False)


def _shapes(chunks: tuple[Chunk, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((chunk.tokens, prefill_shape(chunk.request)[1]) for chunk in chunks)


def fitted(latency: LatencyModel, sms: int) -> Fit:
    """Both forms on ``sms`` SMs, by least squares of relative errors over the grid."""
    prefill_rows, prefill_s = [], []
    for new in NEW_TOKENS:
        for cached in CACHED_TOKENS:
            prefill_rows.append((new * new, new * cached, new, 1))
            prefill_s.append(latency.estimate(Work(prefill=((new, cached),)), sms).seconds)
    decode_rows, decode_s = [], []
    for requests in DECODES:
        for context in CONTEXT_TOKENS:
            work = Work(decode_requests=requests, decode_context_tokens=requests * context)
            decode_rows.append((work.decode_context_tokens, requests, 1))
            decode_s.append(latency.estimate(work, sms).seconds)
    t1, t2, t3, t4 = _least_squares(prefill_rows, prefill_s)
    d1, d2, d3 = _least_squares(decode_rows, decode_s)
    return Fit((t1, t2, t3, t4), (d1, d2, d3), min(prefill_s), min(decode_s))


def _least_squares(rows: Sequence[tuple[int, ...]], seconds: list[float]) -> list[float]:
    times = np.array(seconds)
    scaled = np.array(rows, dtype=np.float64) / times[:, None]
    found: list[float] = np.linalg.lstsq(scaled, np.ones_like(times), rcond=None)[0].tolist()
    return found
