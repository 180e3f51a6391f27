"""What the serving loop knows of each request, of the requests decoding together, and of each lane.

A decode step advances every decoding request of an instance by one token. Touching each of them at each step would
make the loop's cost that of the tokens; so a request that joins notes the step counter, and everything about it
(tokens generated, KV held, when it ends, whether it needs a block) follows from the counter. A step costs the same
for one request as for two hundred.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence
from operator import sub
from typing import Final

import numpy as np

from policies.admission import blocks_for
from policies.api import Chunk, Outcome
from policies.slo import SLO
from profiler.work import Work
from sim.distinct import Counts, Floats, counted
from sim.growing import GrowingColumns
from sim.prefixcache import CachedPrefix, Chain

new: Final = tuple.__new__


class RequestState:
    """A request in the loop. How long its answer truly is, is kept elsewhere: policies receive these objects."""

    __slots__ = (
        "arrival_s",
        "blocks",
        "chain",
        "cohort",
        "emitted",
        "emitted_s",
        "fetched_layers",
        "first_token_s",
        "index",
        "instance",
        "itl_max_s",
        "joined_step",
        "preemptions",
        "prefill_tokens",
        "prefilled_tokens",
        "prefix",
        "prompt_tokens",
        "reason",
        "request_id",
        "reused_tokens",
        "scheduled_s",
        "state",
    )

    def __init__(self, *, index: int, request_id: str, arrival_s: float, prompt_tokens: int) -> None:
        self.index = index
        self.request_id = request_id
        self.arrival_s = arrival_s
        self.prompt_tokens = prompt_tokens
        self.prefill_tokens = prompt_tokens
        self.prefilled_tokens = 0
        self.blocks = 0
        self.instance = -1
        self.cohort: DecodeCohort | None = None
        self.joined_step = 0
        self.emitted = 0
        self.emitted_s: float | None = None
        self.first_token_s: float | None = None
        self.scheduled_s: float | None = None
        self.itl_max_s: float | None = None
        self.preemptions = 0
        self.fetched_layers = 0
        self.chain: Chain | None = None
        self.prefix: CachedPrefix | None = None
        self.reused_tokens = 0
        self.state = "waiting"
        self.reason = ""

    @property
    def decode_steps(self) -> int:
        """Decode steps finished since it joined its cohort."""
        return 0 if self.cohort is None else max(0, self.cohort.completed - self.joined_step)

    @property
    def generated_tokens(self) -> int:
        return self.emitted + self.decode_steps

    @property
    def context_tokens(self) -> int:
        return self.prefilled_tokens + self.decode_steps

    @property
    def cached_tokens(self) -> int:
        return 0 if self.prefix is None else self.prefix.tokens

    @property
    def shared_blocks(self) -> int:
        return 0 if self.prefix is None else self.prefix.shared_blocks

    def outcome(self, slo: SLO) -> Outcome:
        """How it did, once it has finished."""
        first, last = self.first_token_s, self.emitted_s
        assert first is not None
        assert last is not None
        tpot_ratio = None if self.emitted == 1 else (last - first) / (self.emitted - 1) / slo.tpot_limit_s
        return new(Outcome, ((first - self.arrival_s) / slo.ttft_limit_s(self.prompt_tokens), tpot_ratio))

    @property
    def cache_blocks(self) -> int:
        """KV blocks of it that the cache counts, once for all who share them."""
        return 0 if self.prefix is None else self.prefix.blocks

    @property
    def last_token_s(self) -> float | None:
        return self.emitted_s if self.cohort is None or not self.decode_steps else self.cohort.end_s[-1]


KEPT_STEPS: Final = 1 << 15
"""Steps noted one by one, at least as many as there have been since the oldest member joined."""

SPAN_STEPS: Final = 16
"""Steps over which the longest gap is kept."""

NOBODY: Sequence[RequestState] = ()


class DecodeCohort:
    """The requests that decode together on one instance.

    Steps are numbered from 1; ``started`` and ``completed`` count them. ``end_s`` and ``gap_s`` hold the end of each
    step and its distance from the end of the one before, ``gap_count`` how many members had that as their inter-token
    time; they begin with step ``noted`` (step 0 is a placeholder). A member that joined at step j has KV for
    ``prefill_tokens + started - j`` tokens. ``growing[p]`` counts the members that need a block in steps of which the
    number leaves p over a block, ``ending[k]`` are those whose last step is k, and ``fresh`` those who have yet to
    begin their first.
    """

    __slots__ = (
        "_archive",
        "_block_tokens",
        "_fresh_in_flight",
        "_odd_gaps_s",
        "_slack_keys",
        "_span_longest_s",
        "_stepping",
        "_tpot_s",
        "completed",
        "context_tokens",
        "end_s",
        "ending",
        "fresh",
        "gap_count",
        "gap_s",
        "growing",
        "members",
        "noted",
        "started",
    )

    def __init__(self, block_tokens: int, odd_gaps_s: array[float], tpot_s: float | None = None) -> None:
        self._block_tokens = block_tokens
        self._tpot_s = tpot_s
        self._slack_keys: list[float] | None = None
        self._span_longest_s: list[float] = []
        self._archive = GrowingColumns({"gap_s": np.float64, "gap_count": np.int32})
        self.noted = 0
        self._odd_gaps_s = odd_gaps_s
        self.ending: dict[int, list[RequestState]] = {}
        self.growing = [0] * block_tokens
        self.fresh: list[RequestState] = []
        self._fresh_in_flight: list[RequestState] = []
        self._stepping = 0
        self.members: dict[int, RequestState] = {}
        self.started = 0
        self.completed = 0
        self.context_tokens = 0
        self.end_s = [0.0]
        self.gap_s = [0.0]
        self.gap_count = [0]

    def join(self, request: RequestState, remaining_tokens: int) -> None:
        """Adds a request whose prefill is done; it takes part from the next step to start."""
        request.cohort = self
        request.joined_step = self.started
        self.members[request.index] = request
        self.context_tokens += request.prefill_tokens
        self.growing[self._phase(request)] += 1
        self.ending.setdefault(self.started + remaining_tokens, []).append(request)
        self.fresh.append(request)
        if self._slack_keys is not None:
            insort(self._slack_keys, self._slack_key(request))

    def leave(self, request: RequestState) -> None:
        """Removes a member and fixes its token count, last token time and longest gap on it."""
        steps = request.decode_steps
        if self._slack_keys is not None:
            del self._slack_keys[bisect_left(self._slack_keys, self._slack_key(request))]
        if steps > 1:
            longest = self._longest_gap_s(request.joined_step + 2, request.joined_step + steps + 1)
            request.itl_max_s = max(longest, request.itl_max_s or 0.0)
        if steps:
            request.emitted += steps
            request.emitted_s = self.end_s[request.joined_step + steps - self.noted]
        del self.members[request.index]
        if len(self.end_s) >= KEPT_STEPS:
            self._forget()
        self.context_tokens -= request.prefill_tokens + self.started - request.joined_step
        self.growing[self._phase(request)] -= 1
        request.prefilled_tokens += steps
        request.cohort = None

    def _forget(self) -> None:
        """Puts away what was noted before any member joined: a long run has more steps than memory for lists."""
        oldest = min((request.joined_step for request in self.members.values()), default=self.completed)
        spans = (oldest - self.noted) // SPAN_STEPS
        old = spans * SPAN_STEPS
        if old < KEPT_STEPS // 2:
            return
        gap_s, counts = counted([(np.array(self.gap_s[:old]), np.array(self.gap_count[:old], np.int32))])
        self._archive.extend((gap_s, counts))
        for noted in (self.end_s, self.gap_s, self.gap_count):
            del noted[:old]
        del self._span_longest_s[:spans]
        self.noted += old

    def take_gaps(self) -> list[tuple[Floats, Counts]]:
        """Inter-token times of whole steps and how many had them, in parts of shape (k,); to be asked for once."""
        archived = self._archive.whole()
        archive = (archived["gap_s"], archived["gap_count"])
        return [archive, (np.array(self.gap_s), np.array(self.gap_count, np.int32))]

    def ends_s(self, first: int, end: int) -> list[float]:
        """Ends of steps ``first`` to ``end`` - 1, none of which is from before the oldest member joined."""
        return self.end_s[first - self.noted : end - self.noted]

    def _longest_gap_s(self, first: int, end: int) -> float:
        """Of steps ``first`` to ``end`` - 1: the longest of whole spans are kept, so that long answers cost no more."""
        gap_s, longest = self.gap_s, self._span_longest_s
        first, end = first - self.noted, end - self.noted
        if end - first <= 2 * SPAN_STEPS:
            return max(gap_s[first:end])
        while (len(longest) + 1) * SPAN_STEPS <= end:
            begin = len(longest) * SPAN_STEPS
            longest.append(max(gap_s[begin : begin + SPAN_STEPS]))
        one, other = -(-first // SPAN_STEPS), end // SPAN_STEPS
        ends = gap_s[first : one * SPAN_STEPS] + gap_s[other * SPAN_STEPS : end]
        whole_s = max(longest[one:other])
        return max(whole_s, max(ends)) if ends else whole_s

    def evict(self, request: RequestState, remaining_tokens: int) -> None:
        """Removes a member before its last token. No step may be in flight."""
        ending = self.ending[self.started + remaining_tokens]
        ending.remove(request)
        if request in self.fresh:
            self.fresh.remove(request)
        self.leave(request)

    def blocks(self, request: RequestState) -> int:
        """KV blocks a member holds, that of the step in flight included."""
        tokens = request.prefill_tokens + self.started - request.joined_step
        return blocks_for(tokens, self._block_tokens)

    @property
    def block_demand(self) -> int:
        """Blocks that the next step needs: members whose KV ends at a block border."""
        return self.growing[(self.started + 1) % self._block_tokens]

    @property
    def joining(self) -> int:
        """How many take their first step of this cohort in the step in flight."""
        return len(self._fresh_in_flight)

    def start_step(self) -> int:
        """Begins a step of all members; their number."""
        self.started += 1
        self.context_tokens += len(self.members)
        self._fresh_in_flight, self.fresh = self.fresh, []
        self._stepping = len(self.members)
        return self._stepping

    def finish_step(self, end_s: float) -> Sequence[RequestState]:
        """Ends the step in flight; the members that got their last token."""
        gap = end_s - self.end_s[-1]
        self.completed += 1
        self.end_s.append(end_s)
        self.gap_s.append(gap)
        fresh = self._fresh_in_flight
        self.gap_count.append(self._stepping - len(fresh))
        if fresh:
            self._first_gaps(fresh, end_s)
        return self.ending.pop(self.completed, NOBODY)

    def _first_gaps(self, fresh: list[RequestState], end_s: float) -> None:
        for request in fresh:
            first_gap = end_s - (request.emitted_s or 0.0)
            self._odd_gaps_s.append(first_gap)
            if request.itl_max_s is None or first_gap > request.itl_max_s:
                request.itl_max_s = first_gap

    def coasted(self, ends_s: list[float], context_tokens: int) -> Sequence[RequestState]:
        """Steps of all members that ended at these times, one after another; as ``finish_step`` of the last."""
        steps, decodes = len(ends_s), len(self.members)
        self.gap_s += map(sub, ends_s, [self.end_s[-1], *ends_s[:-1]])
        self.gap_count += [decodes] * steps
        self.end_s += ends_s
        fresh, self.fresh, self._fresh_in_flight = self.fresh, [], []
        if fresh:
            self.gap_count[-steps] -= len(fresh)
            self._first_gaps(fresh, ends_s[0])
        self.started += steps
        self.completed += steps
        self.context_tokens = context_tokens
        return self.ending.pop(self.completed, NOBODY)

    def slack_s(self, share: float, now_s: float) -> float:
        """See :meth:`policies.api.View.decode_slack_s`.

        A member's slack is tpot * tokens - (now - first). Tokens grow with the step counter alone, so the order of
        members by slack never changes while they stay, and one sorted list serves every step, once anybody has asked.
        """
        if self._tpot_s is None or not self.members:
            return math.inf
        if self._slack_keys is None:
            self._slack_keys = sorted(map(self._slack_key, self.members.values()))
        keys = self._slack_keys
        return keys[len(keys) - math.ceil(share * len(keys))] + self._tpot_s * self.completed - now_s

    def _slack_key(self, request: RequestState) -> float:
        assert request.first_token_s is not None
        assert self._tpot_s is not None
        return self._tpot_s * (request.emitted - request.joined_step) + request.first_token_s

    def _phase(self, request: RequestState) -> int:
        return (request.joined_step + 1 - request.prefill_tokens) % self._block_tokens


class Lane:
    """A stream of steps on one instance, as a policy sees it and as the loop keeps it.

    ``held`` is the batch that another
    goes before and the layers done of it, None when there is none. ``ended_s``: when its last step ended.
    """

    __slots__ = ("batch", "busy", "ended_s", "held", "layers_done", "name", "predicted_s", "sms", "started_s", "work")

    def __init__(self, name: str) -> None:
        self.name = name
        self.busy = False
        self.sms = 0
        self.work: Work | None = None
        self.started_s = 0.0
        self.ended_s = -math.inf
        self.predicted_s = 0.0
        self.batch: tuple[Chunk, ...] = ()
        self.layers_done = 0
        self.held: tuple[tuple[Chunk, ...], int] | None = None

    @property
    def suspended(self) -> tuple[Chunk, ...]:
        return () if self.held is None else self.held[0]

    def suspend(self) -> None:
        """Puts the batch in progress aside."""
        self.held, self.batch, self.layers_done = (self.batch, self.layers_done), (), 0

    def ended(self, started_s: float, ended_s: float, predicted_s: float, sms: int) -> None:
        """A step of the policy's last decision has run from start to end without being seen in flight."""
        self.started_s, self.ended_s, self.predicted_s, self.sms = started_s, ended_s, predicted_s, sms

    def end_batch(self) -> None:
        """The last layer is done: the batch that was put aside, if any, is in progress again."""
        self.batch, self.layers_done = self.held or ((), 0)
        self.held = None
