"""xPyD disaggregation: prompts on some instances, answers on others, KV over a link between them.

DistServe (OSDI 2024), Splitwise (ISCA 2024), Mooncake (FAST 2025). A prefill instance runs whole prompts in order of
arrival and gives the first token; the KV stays there until the decode instance that the router chose has blocks for
it and has fetched it, one request at a time. A request that a decode instance pushes out is prefilled anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from policies.api import LINK, Decision, Role, Router, View
from policies.disaggregationdecision import decide
from policies.phases import DECODE, PREFILL
from policies.routing import LeastLoaded


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
        return decide(self, view)

    @property
    def simulated_only(self) -> str:
        """Why no device can serve it; empty for one that can."""
        return "no device runner here moves KV layer by layer; set layerwise to false" if self.layerwise else ""
