"""One replica of the model: its queue, lanes, KV blocks and decoding requests, and what a step does to them."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from policies.api import LINK, Chunk, Load, Memo, RequestProgress, Role, Step
from profiler.work import Overlap, Work
from sim.ledger import BlockLedger
from sim.observed import ObservedSteps
from sim.outcomes import Outcomes
from sim.prefixcache import CachedPrefix, PrefixCache
from sim.state import DecodeCohort, Lane, RequestState

new: Final = tuple.__new__


class PolicyError(ValueError):
    """A policy asked for something that cannot be done, or left requests waiting with nothing running."""


class Instance:
    """The loop's own state of one instance. Methods that take a step or a request from a policy check it first.

    ``incoming`` requests were prefilled elsewhere and wait to be fetched, ``arriving`` ones are on the link.
    ``pending_tokens`` are those still to be prefilled, of requests waiting or part-way. ``unseen`` says that a request
    has come since the policy was last asked, ``coasting`` that decode steps are being repeated (:mod:`sim.coasts`).
    ``cache`` is None where the run reuses no KV, and of an instance that only decodes.
    """

    def __init__(
        self,
        *,
        index: int,
        role: Role,
        lanes: Sequence[str],
        ledger: BlockLedger,
        odd_gaps_s: array[float],
        model_layers: int,
        device_sms: int,
        tpot_s: float | None,
        caches: bool = False,
    ) -> None:
        self.index = index
        self.role = role
        self.ledger = ledger
        self.cohort = DecodeCohort(ledger.block_tokens, odd_gaps_s, tpot_s)
        self.lanes = {name: Lane(name) for name in lanes}
        self.busy_lanes = 0
        computing = [lane for name, lane in self.lanes.items() if name != LINK]
        if not 1 <= len(computing) <= 2:
            raise PolicyError(f"an instance has one or two lanes that use SMs; this policy asks for {lanes}")
        self.peers = {lane.name: next((o for o in computing if o is not lane), None) for lane in computing}
        self.waiting: OrderedDict[int, RequestState] = OrderedDict()
        self.pending_tokens = 0
        self.prefilling: dict[int, RequestState] = {}
        self.incoming: dict[int, RequestState] = {}
        self.arriving: dict[int, RequestState] = {}
        self.observed = ObservedSteps()
        self.outcomes = Outcomes()
        self.memo: Memo = None
        self.unseen = False
        self.coasting = False
        self.model_layers = model_layers
        self._device_sms = device_sms
        # Nothing begins on an instance that only decodes; one that it pushes out is prefilled elsewhere.
        self.cache = PrefixCache(ledger) if caches and role != "decode" else None

    def enqueue(self, request: RequestState, *, first: bool = False) -> None:
        """Puts a request in the queue, at its end or, after a pre-emption, at its head."""
        self.unseen = True
        request.instance = self.index
        request.state = "waiting"
        self.waiting[request.index] = request
        if first:
            self.waiting.move_to_end(request.index, last=False)
        self.pending_tokens += request.prefill_tokens
        if self.cache is not None and request.chain is not None:
            request.prefix = CachedPrefix(self.cache, request.chain, request.prefill_tokens)

    def offer(self, request: RequestState) -> None:
        """Announces a request prefilled elsewhere."""
        self.incoming[request.index] = request

    def load(self, request: RequestState) -> Load:
        """How busy it is, and what it has of ``request`` in its cache."""
        residents = sum(map(len, (self.prefilling, self.cohort.members, self.incoming, self.arriving)))
        cached = 0
        if self.cache is not None and request.chain is not None:
            cached = CachedPrefix(self.cache, request.chain, request.prefill_tokens).tokens
        # The step that a coasting instance is in the middle of has its blocks, as one in flight has.
        free = self.ledger.free - (self.cohort.block_demand if self.coasting else 0)
        return Load(self.index, len(self.waiting), self.pending_tokens, residents, free, cached)

    def idle_lane(self, step: Step) -> Lane:
        """The lane a step asks for."""
        lane = self.lanes.get(step.lane)
        if lane is None or lane.busy:
            raise PolicyError(f"lane {step.lane!r} is {'busy' if lane else 'unknown'}")
        on_link = step.lane == LINK
        if (step.transfer is not None) != on_link:
            raise PolicyError(f"transfers, and they alone, run on lane {LINK!r}")
        if not on_link and not (isinstance(step.sms, int) and 1 <= step.sms <= self._device_sms):
            raise PolicyError(f"a step on {step.sms!r} SMs; it takes a whole number, 1 to {self._device_sms}")
        return lane

    def begin(self, step: Step, lane: Lane, now_s: float) -> Work:
        """Takes the KV blocks that a computing step needs, moves its requests, and says what it amounts to."""
        if step.suspend:
            self._suspend(step, lane)
        chunks = self._claim_chunks(step, lane, now_s) if step.prefill else ()
        lane.batch = step.prefill
        # A whole model at once is the common case by far.
        whole = step.layers is None and not lane.layers_done
        layers, head = (None, True) if whole else self._layer_span(step, lane)
        decoding = context = 0
        if step.decode:
            cohort = self.cohort
            if cohort.started != cohort.completed:
                raise PolicyError("two decode steps at once on one instance")
            demand = cohort.block_demand
            if demand:
                self._take(demand, "a decode step")
            decoding = cohort.start_step()
            context = cohort.context_tokens
        if not chunks and not decoding:
            raise PolicyError(f"a step with nothing in it on lane {step.lane!r}")
        overlap = step.overlap
        if overlap is not None and not isinstance(overlap, Overlap):
            raise PolicyError(f"an overlap of {overlap!r}; it is a profiler.Overlap, or None")
        return new(Work, (chunks, decoding, context, layers, head, 0, overlap))

    @staticmethod
    def _suspend(step: Step, lane: Lane) -> None:
        if not lane.layers_done or lane.suspended or not step.prefill:
            raise PolicyError(f"nothing to suspend on lane {lane.name!r}, or a batch is suspended there already")
        lane.suspend()

    def begin_transfer(self, progress: RequestProgress, layers: int | None) -> tuple[Work, int]:
        """Reserves blocks for an incoming request that has none; the work, and the instance its KV comes from."""
        request = self.incoming.get(progress.index)
        if request is None:
            raise PolicyError(f"request {progress.index} is not waiting to come here")
        left = self.model_layers - request.fetched_layers
        known = left if request.prefilled_tokens == request.prefill_tokens else left - 1
        wanted = left if layers is None else layers
        if not (isinstance(wanted, int) and 1 <= wanted <= known):
            raise PolicyError(f"KV of {wanted!r} layers of request {request.index}, of which {known} can be fetched")
        if not request.fetched_layers:
            self._take(self.ledger.blocks_for(request.prefill_tokens), "a KV transfer")
        self.arriving[request.index] = self.incoming.pop(request.index)
        part = None if wanted == self.model_layers else wanted
        return new(Work, ((), 0, 0, part, True, request.prefill_tokens, None)), request.instance

    def turn_down(self, request: RequestState) -> None:
        """Drops what has come of a request that has ended elsewhere."""
        self.incoming.pop(request.index, None)
        if request.fetched_layers:
            self.ledger.give(self.ledger.blocks_for(request.prefill_tokens))
            request.fetched_layers = 0

    def _layer_span(self, step: Step, lane: Lane) -> tuple[int | None, bool]:
        """(layers to launch, None for the whole model; whether the LM head follows)."""
        left = self.model_layers - lane.layers_done
        layers = left if step.layers is None else step.layers
        if layers == self.model_layers:
            return None, True
        if step.decode or not step.prefill or not 1 <= layers <= left:
            raise PolicyError(f"{layers} layers of a batch with {left} left (layer groups carry no decodes)")
        return layers, layers == left

    def _claim_chunks(self, step: Step, lane: Lane, now_s: float) -> tuple[tuple[int, int], ...]:
        if lane.layers_done:
            if step.prefill != lane.batch:
                raise PolicyError("another batch was launched before the last layer of the one in progress")
            return tuple((chunk.tokens, chunk.request.prefilled_tokens) for chunk in step.prefill)
        taken: set[int] = set()
        for other in self.lanes.values():
            if other.batch or other.held:
                taken.update(chunk.request.index for chunk in (*other.batch, *other.suspended))
        shapes = []
        for chunk in step.prefill:
            if chunk.request.index in taken:
                raise PolicyError(f"request {chunk.request.index} is in two chunks at once")
            taken.add(chunk.request.index)
            shapes.append(self._claim_chunk(chunk, now_s))
        return tuple(shapes)

    def take_back(self, steps: Sequence[Step]) -> None:
        """Takes over what is cached of the waiting requests that ``steps`` prefill.

        That is done for a whole decision before its first launch: no launch may take a block on which the policy
        counted for another.
        """
        for step in steps:
            for chunk in step.prefill:
                request = self.waiting.get(chunk.request.index)
                if request is not None and request.prefix is not None and isinstance(chunk.tokens, int):
                    self._take_back(request, request.prefix, chunk)

    def _take_back(self, request: RequestState, prefix: CachedPrefix, chunk: Chunk) -> None:
        """Takes over what is cached of a request's KV, but for what the chunk computes anew."""
        size = self.ledger.block_tokens
        blocks = max(0, min(prefix.tokens, request.prefill_tokens - chunk.tokens)) // size
        prefix.begin(blocks, request.prefill_tokens)
        request.blocks = blocks
        request.prefilled_tokens = blocks * size
        request.reused_tokens += blocks * size
        self.pending_tokens -= blocks * size

    def _claim_chunk(self, chunk: Chunk, now_s: float) -> tuple[int, int]:
        index = chunk.request.index
        request = self.waiting.get(index) or self.prefilling.get(index)
        if request is None:
            raise PolicyError(f"request {index} has no prompt to prefill on instance {self.index}")
        done = request.prefilled_tokens
        left = request.prefill_tokens - done
        if not (isinstance(chunk.tokens, int) and 1 <= chunk.tokens <= left):
            raise PolicyError(f"a chunk of {chunk.tokens!r} tokens; request {index} has {left} left")
        needed = -(-(done + chunk.tokens) // self.ledger.block_tokens)
        self._take(needed - request.blocks, "a prefill chunk")
        request.blocks = needed
        if request.state == "waiting":
            self._dequeue(request, now_s)
        return chunk.tokens, done

    def _dequeue(self, request: RequestState, now_s: float) -> None:
        del self.waiting[request.index]
        self.prefilling[request.index] = request
        request.state = "running"
        if request.scheduled_s is None:
            request.scheduled_s = now_s

    def _take(self, blocks: int, what: str) -> None:
        if blocks > self.ledger.free:
            raise PolicyError(f"{what} needs {blocks} KV blocks of instance {self.index}, {self.ledger.free} are free")
        self.ledger.take(blocks)

    def evict(self, progress: RequestProgress, remaining_tokens: int) -> RequestState:
        """Drops the KV of a resident request that no launch is using, to be recomputed."""
        index = progress.index
        request = self.cohort.members.get(index) or self.prefilling.get(index)
        lanes = self.lanes.values()
        launched = any(chunk.request is request for lane in lanes for chunk in (*lane.batch, *lane.suspended))
        stepping = request is not None and request.cohort is not None and self.cohort.started > self.cohort.completed
        if request is None or stepping or launched:
            raise PolicyError(f"request {index} cannot be pre-empted now on instance {self.index}")
        self.give_back(request, to_return=True)
        if request.cohort is not None:
            self.cohort.evict(request, remaining_tokens)
        else:
            del self.prefilling[index]
            self.pending_tokens -= request.prefill_tokens - request.prefilled_tokens
        request.blocks = request.prefilled_tokens = 0
        request.prefill_tokens = request.prompt_tokens + request.emitted
        request.preemptions += 1
        return request

    def give_back(self, request: RequestState, *, to_return: bool = False) -> None:
        """Frees the blocks of a request that leaves; what the cache can find of them it goes on finding.

        ``to_return``: whether it comes back, so that also what nobody else has in common with it is worth finding.
        """
        held, prefix = self.held_blocks(request), request.prefix
        request.blocks = 0
        if prefix is None:
            self.ledger.give(held)
            return
        prefix.extend(request.context_tokens // self.ledger.block_tokens, leaving=True, own=to_return)
        self.ledger.give(held - prefix.blocks)
        prefix.leave()
        request.prefix = None

    def held_blocks(self, request: RequestState) -> int:
        """KV blocks that a resident request holds here, those that it shares included."""
        return request.blocks if request.cohort is None else self.cohort.blocks(request)

    def check(self, outgoing: Sequence[RequestState] = ()) -> None:
        """Raises AssertionError unless the counts are those of the requests here, ``outgoing`` ones included."""
        # A waiting request holds what it has just taken back.
        residents = [*self.waiting.values(), *self.prefilling.values(), *self.cohort.members.values(), *outgoing]
        held = sum(self.held_blocks(request) - request.cache_blocks for request in residents)
        if self.cache is not None:
            held += self.cache.held
            kept = self.cache.kept_blocks
            assert kept <= self.ledger.free, f"{kept} blocks kept for others and {self.ledger.free} free"
        coming = [*self.arriving.values(), *(r for r in self.incoming.values() if r.fetched_layers)]
        held += sum(self.ledger.blocks_for(request.prefill_tokens) for request in coming)
        free = self.ledger.free
        assert held + free == self.ledger.total, f"{held} blocks held and {free} free of {self.ledger.total}"
        pending = sum(
            r.prefill_tokens - r.prefilled_tokens for r in [*self.waiting.values(), *self.prefilling.values()]
        )
        assert pending == self.pending_tokens, f"{pending} tokens to prefill, {self.pending_tokens} counted"
