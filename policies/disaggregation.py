"""xPyD disaggregation: prompts on some instances, answers on others, KV over a link between them.

DistServe (OSDI 2024), Splitwise (ISCA 2024), Mooncake (FAST 2025). A prefill instance runs whole prompts in order of
arrival and gives the first token; the KV stays there until the decode instance that the router chose has blocks for
it and has fetched it, one request at a time. A request that a decode instance pushes out is prefilled anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from policies.admission import blocks_for, fill, relieve
from policies.api import LINK, Decision, RequestProgress, Role, Router, Step, View
from policies.routing import LeastLoaded

PREFILL, DECODE = "prefill", "decode"

new = tuple.__new__


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    """``prefill_instances`` P and ``decode_instances`` D.

    batch_tokens: prompts are batched up to this many tokens; a longer one runs alone (DistServe, section 4.3: beyond
        the length that saturates the device, batching only delays).
    max_resident: requests that a decode instance may hold.
    layerwise: whether KV leaves layer by layer while later layers are computed (Splitwise; Mooncake's layer-wise
        prefill). With a transfer of T seconds that begins with a prefill of P seconds, T / layers of it are left at the
        prefill's end, or T - P if that is more. Blocks for it are taken on the decode instance as it begins.
    """

    name: ClassVar[str] = "disaggregation"
    needs_truth: ClassVar[bool] = False
    reads_slo: ClassVar[bool] = False

    prefill_instances: int = 1
    decode_instances: int = 1
    batch_tokens: int = 1024
    max_resident: int = 1024
    layerwise: bool = False
    router: Router = field(default_factory=LeastLoaded)

    def __post_init__(self) -> None:
        for name in ("prefill_instances", "decode_instances", "batch_tokens", "max_resident"):
            if getattr(self, name) < 1:
                raise ValueError(f"disaggregation: {name} is {getattr(self, name)}; it must be 1 or more")

    @property
    def fewest_instances(self) -> int:
        return self.prefill_instances + self.decode_instances

    def roles(self, instances: int) -> tuple[Role, ...]:
        x, y = self.prefill_instances, self.decode_instances
        if instances != x + y:
            raise ValueError(
                f"disaggregation is set to {x}P{y}D, {x + y} instances, and was given {instances}; "
                "set prefill_instances and decode_instances to add up to it"
            )
        prefill: tuple[Role, ...] = ("prefill",)
        decode: tuple[Role, ...] = ("decode",)
        return prefill * x + decode * y

    def lanes(self, role: Role) -> tuple[str, ...]:
        return (PREFILL,) if role == "prefill" else (DECODE, LINK)

    def decide(self, view: View) -> Decision:
        if view.role == "prefill":
            steps = self._prefill(view) if view.waiting else ()
        else:
            lanes = view.lanes
            steps = self._decode(view) if view.decoding and not lanes[DECODE].busy else ()
            if view.incoming and not lanes[LINK].busy:
                steps = (*steps, *self._fetch(view))
        # Its own constructor, and a Step's, take three times as long, and most of a run's decisions are made here.
        return new(Decision, (steps, None))

    def _prefill(self, view: View) -> tuple[Step, ...]:
        chunks = fill(
            view,
            budget_tokens=self.batch_tokens,
            free_blocks=view.free_blocks,
            max_resident=self.max_resident,
            whole_prompts=True,
        )
        step = (PREFILL, view.sms, chunks, None, False, (), None, False, None, False, self.layerwise)
        return (new(Step, step),) if chunks else ()

    def _decode(self, view: View) -> tuple[Step, ...]:
        relief = relieve(view)
        if not relief.decodes:
            return ()
        again = not view.incoming
        return (new(Step, (DECODE, view.sms, (), None, True, relief.victims, None, again, None, False, False)),)

    @property
    def simulated_only(self) -> str:
        """Why no device can serve it; empty for one that can."""
        return "no device runner here moves KV layer by layer; set layerwise to false" if self.layerwise else ""

    def _fetch(self, view: View) -> tuple[Step, ...]:
        incoming = view.incoming.values()
        streaming = [request for request in incoming if request.fetched_layers] if self.layerwise else []
        for request in streaming:
            if _prefilled(request):
                return (_transfer(request),)
        waiting = next((request for request in incoming if not request.fetched_layers), None)
        if waiting is None or len(view.decoding) + len(streaming) >= self.max_resident:
            return ()
        layers = None if _prefilled(waiting) else view.latency.model.layers - 1
        needed = blocks_for(waiting.prefill_tokens, view.block_tokens)
        if layers == 0 or needed + view.decode_block_demand > view.free_blocks:
            return ()
        return (_transfer(waiting, layers),)


def _transfer(request: RequestProgress, layers: int | None = None) -> Step:
    return new(Step, (LINK, 0, (), layers, False, (), request, False, None, False, False))


def _prefilled(request: RequestProgress) -> bool:
    return request.prefilled_tokens == request.prefill_tokens
