"""What a finished step does to requests, KV blocks and token times."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final

from policies.api import Chunk, RequestProgress
from policies.slo import SLO
from profiler.work import Work
from sim.handover import Handover
from sim.instance import Instance
from sim.launch import KVHolder, Launch
from sim.requestlog import RequestLog
from sim.state import Lane, RequestState
from sim.tally import Tally
from sim.view import Clock
from traces.arrivals import ArrivalSource

PROGRESS_EVERY: Final = 64


class Effects:
    """``requests`` are those that have arrived and not left, ``answer_tokens`` of all that have arrived, by index.

    ``finished`` counts those that have finished.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        tally: Tally,
        arrivals: ArrivalSource,
        handover: Handover,
        slo: SLO,
        holder: KVHolder | None,
        odd_gaps_s: array[float],
        log: RequestLog,
        progress: Callable[[int, float], None] | None,
    ) -> None:
        self._clock = clock
        self._tally = tally
        self._arrivals = arrivals
        self._handover = handover
        self._slo = slo
        self._holder = holder
        self._odd_gaps_s = odd_gaps_s
        self._progress = progress
        # On a device a request takes far longer than to tell of it.
        self._told_every = PROGRESS_EVERY if holder is None else 1
        self._log = log
        self.requests: dict[int, RequestState] = {}
        self.answer_tokens = array("q")
        self.finished = 0

    def evict(self, instance: Instance, progress: RequestProgress) -> RequestState:
        """Takes a resident request's place and KV away."""
        request = self.requests[progress.index]
        remaining = self.answer_tokens[request.index] - request.generated_tokens
        self._tally.leaving(request)
        instance.evict(request, remaining)
        self._release(request, instance.index)
        return request

    def decoded(self, instance: Instance, requests: Sequence[RequestState]) -> None:
        """These have got their last token in a decode step."""
        for request in requests:
            instance.give_back(request)
            self._tally.leaving(request)
            instance.cohort.leave(request)
            self._release(request, instance.index)
            self._finish(instance, request)

    def prefilled(self, instance: Instance, lane: Lane, chunks: Sequence[Chunk], work: Work, end_s: float) -> None:
        """A launch that prefills has ended."""
        if not work.head:
            lane.layers_done += work.layers or 0
            return
        lane.end_batch()
        requests = self.requests
        for progress, tokens in chunks:
            request = requests[progress.index]
            request.prefilled_tokens += tokens
            instance.pending_tokens -= tokens
            if request.prefix is not None:
                request.prefix.extend(request.prefilled_tokens // instance.ledger.block_tokens)
            if request.prefilled_tokens == request.prefill_tokens:
                self._emit_first(instance, request, end_s)

    def _emit_first(self, instance: Instance, request: RequestState, end_s: float) -> None:
        """The token that ends a prefill: the request's first, or the next one after a recomputation."""
        del instance.prefilling[request.index]
        if request.first_token_s is None:
            request.first_token_s = end_s
        elif request.emitted_s is not None:
            gap = end_s - request.emitted_s
            self._odd_gaps_s.append(gap)
            request.itl_max_s = max(gap, request.itl_max_s or 0.0)
        request.emitted += 1
        request.emitted_s = end_s
        self._tally.emitted(request, end_s)
        remaining = self.answer_tokens[request.index] - request.emitted
        if remaining and instance.role == "prefill":
            self._handover.offer(request)
        elif remaining:
            instance.cohort.join(request, remaining)
        else:
            withdrawn = self._handover.withdraw(request)
            if withdrawn:
                instance.give_back(request)
                self._release(request, instance.index)
            self._finish(instance, request, on_link=not withdrawn)

    def transferred(self, instance: Instance, launch: Launch) -> None:
        """A KV transfer has ended."""
        assert launch.step.transfer is not None
        request = self.requests[launch.step.transfer.index]
        if self._handover.land(instance, request, launch.work.layers):
            self._release(request, request.instance)
            if request.state == "finished":
                self._forget(request)
            else:
                request.instance = instance.index
                instance.cohort.join(request, self.answer_tokens[request.index] - request.emitted)

    def left(self, request: RequestState, *, on_link: bool = False) -> None:
        """It has finished or was rejected: a row is all that stays of it, once none of its KV is on the link."""
        self._arrivals.finished(request.index, self._clock.now_s)
        if not on_link:
            self._forget(request)

    def _forget(self, request: RequestState) -> None:
        self._log.add(request, self.answer_tokens[request.index])
        del self.requests[request.index]

    def _release(self, request: RequestState, instance: int) -> None:
        if self._holder is not None:
            self._holder.release(request.index, instance)

    def _finish(self, instance: Instance, request: RequestState, *, on_link: bool = False) -> None:
        request.state = "finished"
        instance.outcomes.append(request.outcome(self._slo))
        self.finished += 1
        self.left(request, on_link=on_link)
        if self._progress is not None and self.finished % self._told_every == 0:
            self._progress(self.finished, self._clock.now_s)
