"""The window that policies see an instance by, and the instant at which they see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

from policies.api import Memo, Observation, Outcome, RequestProgress, Role
from policies.slo import SLO
from profiler.latency import LatencyModel
from sim.instance import Instance
from sim.ledger import BlockLedger
from sim.state import DecodeCohort, Lane


class Clock:
    """The loop's present, read from its executor once an iteration so that a decision sees a single instant."""

    __slots__ = ("now_s",)

    def __init__(self) -> None:
        self.now_s = 0.0


class InstanceView:
    """A read-only window on an :class:`Instance`, made once; see :class:`policies.api.View`."""

    __slots__ = (
        "_clock",
        "_cohort",
        "_instance",
        "_ledger",
        "block_tokens",
        "decoding",
        "incoming",
        "instance",
        "lanes",
        "latency",
        "observed",
        "outcomes",
        "prefilling",
        "role",
        "slo",
        "sms",
        "total_blocks",
        "waiting",
    )

    def __init__(self, instance: Instance, *, clock: Clock, slo: SLO, latency: LatencyModel) -> None:
        object.__setattr__(self, "_instance", instance)
        object.__setattr__(self, "_clock", clock)
        object.__setattr__(self, "_cohort", instance.cohort)
        object.__setattr__(self, "_ledger", instance.ledger)
        object.__setattr__(self, "instance", instance.index)
        object.__setattr__(self, "role", instance.role)
        object.__setattr__(self, "lanes", MappingProxyType(instance.lanes))
        object.__setattr__(self, "waiting", MappingProxyType(instance.waiting))
        object.__setattr__(self, "prefilling", MappingProxyType(instance.prefilling))
        object.__setattr__(self, "decoding", MappingProxyType(instance.cohort.members))
        object.__setattr__(self, "incoming", MappingProxyType(instance.incoming))
        object.__setattr__(self, "observed", instance.observed)
        object.__setattr__(self, "outcomes", cast(Sequence[Outcome], instance.outcomes))
        object.__setattr__(self, "total_blocks", instance.ledger.total)
        object.__setattr__(self, "block_tokens", instance.ledger.block_tokens)
        object.__setattr__(self, "slo", slo)
        object.__setattr__(self, "latency", latency)
        object.__setattr__(self, "sms", latency.device.sms)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a view is read-only; {name} was set to {value!r}")

    instance: int
    role: Role
    lanes: Mapping[str, Lane]
    waiting: Mapping[int, RequestProgress]
    prefilling: Mapping[int, RequestProgress]
    decoding: Mapping[int, RequestProgress]
    incoming: Mapping[int, RequestProgress]
    observed: Sequence[Observation]
    outcomes: Sequence[Outcome]
    total_blocks: int
    block_tokens: int
    slo: SLO
    latency: LatencyModel
    sms: int
    _instance: Instance
    _cohort: DecodeCohort
    _ledger: BlockLedger
    _clock: Clock

    @property
    def now_s(self) -> float:
        return self._clock.now_s

    @property
    def free_blocks(self) -> int:
        return self._ledger.free

    @property
    def decode_context_tokens(self) -> int:
        return self._cohort.context_tokens

    @property
    def decode_block_demand(self) -> int:
        return self._cohort.block_demand

    def decode_slack_s(self, share: float) -> float:
        return self._cohort.slack_s(share, self._clock.now_s)

    @property
    def memo(self) -> Memo:
        return self._instance.memo


class TrueInstanceView(InstanceView):
    """The window of a policy that needs the truth; see :class:`policies.api.TrueView`."""

    __slots__ = ("_answer_tokens",)

    def __init__(
        self, instance: Instance, *, clock: Clock, slo: SLO, latency: LatencyModel, answer_tokens: Sequence[int]
    ) -> None:
        super().__init__(instance, clock=clock, slo=slo, latency=latency)
        object.__setattr__(self, "_answer_tokens", answer_tokens)

    _answer_tokens: Sequence[int]

    def output_tokens(self, request: RequestProgress) -> int:
        return self._answer_tokens[request.index]
