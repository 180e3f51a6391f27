"""The contract between a policy and the serving loop, simulated or real.

A policy is a value: settings in a frozen dataclass and one method, ``decide(view)``. It reads no clock, file or
random source and keeps nothing between calls but the memo it hands back. It is asked about one instance at a
time, whenever that instance has an idle lane and something has changed. How long an answer will truly be, no view
tells, but for the :class:`TrueView` of a policy that declares its need.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

from policies.slo import SLO
from profiler.latency import LatencyModel
from profiler.work import Overlap, Work

Role = Literal["mixed", "prefill", "decode"]
Memo = Hashable

LINK = "link"
"""The lane on which a decode instance pulls KV from elsewhere; it uses no SMs."""


class RequestProgress(Protocol):
    """What a server knows of a request it holds. ``index`` counts arrivals and identifies it."""

    @property
    def index(self) -> int: ...
    @property
    def arrival_s(self) -> float: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def prefill_tokens(self) -> int:
        """Tokens to process before its next token: the prompt, and after a pre-emption what it had generated."""
        ...

    @property
    def prefilled_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int:
        """While it waits: tokens, of whole blocks, whose KV its instance still has, of others or of itself.

        They need not be prefilled: a first chunk of at most the other tokens begins after them. 0 once it has begun,
        and where the run reuses nothing.
        """
        ...

    @property
    def shared_blocks(self) -> int:
        """KV blocks that it shares: while it waits, those of its cached tokens that running requests hold.

        It needs so many fewer to begin, while the other blocks of its cached tokens are among the free ones. Once it
        has begun: those of its own that others use too, which do not become free if it is pre-empted.
        """
        ...

    @property
    def generated_tokens(self) -> int: ...
    @property
    def context_tokens(self) -> int:
        """Tokens of it in the KV cache."""
        ...

    @property
    def fetched_layers(self) -> int:
        """While it is incoming: layers whose KV has been fetched. Blocks for all of it are then taken."""
        ...

    @property
    def first_token_s(self) -> float | None: ...
    @property
    def last_token_s(self) -> float | None: ...


class Chunk(NamedTuple):
    """``tokens`` of a request's prompt, after those already prefilled."""

    request: RequestProgress
    tokens: int


class Step(NamedTuple):
    """One launch: what runs next on an idle lane of the instance asked about, and on how many SMs.

    prefill: chunks processed together. A batch launched by layer groups is given again, the same, until its
        last layer; only then do its tokens count.
    layers: how many layers to launch of it; None means all that remain. Layer groups carry no decodes.
    decode: whether every request that is decoding on the instance takes one step in this launch.
    preempt: requests pushed out before the launch, their KV freed, to be recomputed.
    transfer: on the link lane, the incoming request whose KV is fetched; ``layers`` of it, or all that remain.
    again: for a decode step alone on the instance: the policy would say the same after it, if meanwhile no request
        arrives, finishes or has to give way. The loop may then repeat it without asking.
    stream: whether the requests whose prefill this launch ends are offered to decode instances as it begins, so that
        their KV can leave layer by layer. Only a simulator can.
    overlap: kernels of the launch that run beside each other. Only a simulator can; see :func:`simulated_only`.
    suspend: ``prefill`` goes before the batch in progress on the lane, which waits between two layer groups and is
        the lane's batch again when ``prefill`` has ended. One batch can wait so. Only a simulator can.
    """

    lane: str
    sms: int
    prefill: tuple[Chunk, ...] = ()
    layers: int | None = None
    decode: bool = False
    preempt: tuple[RequestProgress, ...] = ()
    transfer: RequestProgress | None = None
    again: bool = False
    overlap: Overlap | None = None
    suspend: bool = False
    stream: bool = False


class LaneView(Protocol):
    """A stream of steps. ``sms`` is its share: of the step in flight, or of the last one."""

    @property
    def busy(self) -> bool: ...
    @property
    def sms(self) -> int: ...
    @property
    def work(self) -> Work | None:
        """The work in flight, None when idle."""
        ...

    @property
    def started_s(self) -> float: ...
    @property
    def predicted_s(self) -> float:
        """Predicted duration of the step in flight, or of the last one."""
        ...

    @property
    def batch(self) -> tuple[Chunk, ...]:
        """Chunks being prefilled, from the launch of their first layers to the end of the last; else empty."""
        ...

    @property
    def layers_done(self) -> int: ...
    @property
    def suspended(self) -> tuple[Chunk, ...]:
        """The batch that waits for ``batch`` to end; empty when there is none."""
        ...


class Observation(NamedTuple):
    """A finished step: what was predicted when it was launched, how long it took, and when it ended.

    No two are equal, as long as steps take time: a lane has one at a time.
    """

    lane: str
    work: Work
    sms: int
    beside: Work | None
    beside_sms: int
    predicted_s: float
    measured_s: float
    finish_s: float


class Outcome(NamedTuple):
    """A finished request against the SLO: TTFT and TPOT over their limits, 0 where there is no limit.

    ``tpot_ratio`` is None for a single token.
    """

    ttft_ratio: float
    tpot_ratio: float | None


class View(Protocol):
    """A read-only window on the loop's own state for one instance, valid during one ``decide``."""

    @property
    def now_s(self) -> float: ...
    @property
    def instance(self) -> int: ...
    @property
    def role(self) -> Role: ...
    @property
    def sms(self) -> int:
        """SMs of each device of the instance."""
        ...

    @property
    def lanes(self) -> Mapping[str, LaneView]: ...
    @property
    def waiting(self) -> Mapping[int, RequestProgress]:
        """Requests not in any launch, by index, in queue order; pre-empted ones come first."""
        ...

    @property
    def prefilling(self) -> Mapping[int, RequestProgress]:
        """Requests part of whose prompt has been prefilled, or is being."""
        ...

    @property
    def decoding(self) -> Mapping[int, RequestProgress]:
        """Requests that have a first token and want more, oldest on this instance first."""
        ...

    @property
    def incoming(self) -> Mapping[int, RequestProgress]:
        """Requests prefilled elsewhere, or streaming from there, whose KV is not all here and not on its way."""
        ...

    @property
    def decode_context_tokens(self) -> int:
        """KV tokens of all decoding requests together."""
        ...

    @property
    def decode_block_demand(self) -> int:
        """New KV blocks that the next decode step needs."""
        ...

    @property
    def free_blocks(self) -> int: ...
    @property
    def total_blocks(self) -> int: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def slo(self) -> SLO: ...
    @property
    def latency(self) -> LatencyModel: ...
    @property
    def observed(self) -> Sequence[Observation]:
        """The last finished steps of this instance, oldest first."""
        ...

    @property
    def outcomes(self) -> Sequence[Outcome]:
        """The last finished requests of this instance, oldest first."""
        ...

    def decode_slack_s(self, share: float) -> float:
        """The longest next decode step after which ``share`` of the decoding requests have TPOT within the SLO.

        A request with g tokens whose first came t seconds ago has a TPOT of (t + T) / g after a step of T seconds.
        Infinite without a TPOT SLO or requests, negative where no step is short enough. While a step is in flight, a
        request that joined during it counts as one token behind.
        """
        ...

    @property
    def memo(self) -> Memo:
        """What this policy returned last time for this instance; None at first."""
        ...


class TrueView(View, Protocol):
    """What a policy with ``needs_truth`` is shown: answers as long as they will be. Only a simulator can."""

    def output_tokens(self, request: RequestProgress) -> int:
        """How many tokens the request's answer will have."""
        ...


class Load(NamedTuple):
    """How busy an instance is, for a router, and what it has of the request in question.

    ``pending_tokens`` are still to be prefilled, waiting or in progress. ``cached_tokens`` are those of the request
    that the instance would not have to prefill; 0 without a prefix cache.
    """

    instance: int
    waiting_requests: int
    pending_tokens: int
    resident_requests: int
    free_blocks: int
    cached_tokens: int = 0


class Router(Protocol):
    """Chooses an instance for a request, among those whose role fits. A value, like a policy."""

    def route(self, request: RequestProgress, loads: Sequence[Load]) -> int:
        """The ``instance`` of one of ``loads`` (never empty)."""
        ...


class Decision(NamedTuple):
    """Steps to launch now, at most one for each idle lane, and the memo for next time."""

    steps: tuple[Step, ...] = ()
    memo: Memo = None


class Policy(Protocol):
    """What runs next, on which SMs. Implementations are frozen dataclasses, one file each.

    ``needs_truth``: whether ``decide`` needs a :class:`TrueView`; the simulator gives one, a device cannot.
    """

    name: ClassVar[str]
    needs_truth: ClassVar[bool]

    @property
    def router(self) -> Router: ...

    @property
    def fewest_instances(self) -> int:
        """The smallest cluster that these settings can run on."""
        ...

    def roles(self, instances: int) -> tuple[Role, ...]:
        """The role of each instance. Raises ValueError where the policy cannot use that many."""
        ...

    def lanes(self, role: Role) -> tuple[str, ...]:
        """The lanes of an instance of this role: at most two that use SMs, and possibly the link."""
        ...

    def decide(self, view: View) -> Decision:
        """What to launch now on the idle lanes of ``view``'s instance."""
        ...


def simulated_only(policy: Policy) -> str:
    """Why no device can serve a policy, as its attribute of this name says; empty where it has none.

    A policy whose steps have an overlap or suspend a batch has one.
    """
    return str(getattr(policy, "simulated_only", ""))
