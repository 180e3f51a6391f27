"""A static split: prefill and decode side by side on one GPU, each on a share of the SMs that never changes.

MuxServe's colocation (ICML 2024) within one model: two processes under fixed SM quotas, as MPS sets them. Prefill runs
whole prompts in order of arrival and decode whole steps, each in a loop of its own on its own SMs, whatever the other
does. A process launches its whole forward pass; ``layers_per_step`` cuts prefill into groups of layers. With ``lend``
the quota is a floor: a launch that begins while the other phase has nothing to run takes all SMs. With ``prefill_sms``
prefill alone has a quota and decode runs on all SMs, as in the Bullet paper's figure 22.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from policies.admission import Relief, fill
from policies.api import Chunk, Decision, Router, Step, View
from policies.phases import DECODE, PREFILL, room, split_steps
from policies.routing import LeastLoaded
from policies.twolanes import TwoLanes


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSplit(TwoLanes):
    """Two lanes on every instance.

    decode_sms: decode's share, prefill has the rest; None takes half, in whole steps of the device's granularity.
    prefill_sms: prefill's share, with decode on all SMs; in place of ``decode_sms`` and ``lend``.
    batch_tokens: prompts are batched up to this many tokens; a longer one runs alone.
    layers_per_step: transformer layers in one prefill launch; None launches the whole model.
    lend: whether a launch with the other phase empty may have all SMs.
    max_resident: requests that may hold KV at once.
    """

    name: ClassVar[str] = "static-split"
    reads_slo: ClassVar[bool] = False

    decode_sms: int | None = None
    prefill_sms: int | None = None
    batch_tokens: int = 1024
    layers_per_step: int | None = None
    lend: bool = False
    max_resident: int = 1024
    router: Router = field(default_factory=LeastLoaded)

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "max_resident", "decode_sms", "prefill_sms", "layers_per_step"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"static-split: {name} is {value}; it must be 1 or more")
        if self.prefill_sms is not None and (self.decode_sms is not None or self.lend):
            other = "lend" if self.decode_sms is None else "decode_sms"
            raise ValueError(f"static-split: prefill_sms leaves decode all SMs; leave out {other}")

    @property
    def simulated_only(self) -> str:
        """Why no device can serve it; empty for one that can."""
        return "" if self.prefill_sms is None else "no device runner here grants shares that overlap; set decode_sms"

    def decide(self, view: View) -> Decision:
        prefill, decode = view.lanes[PREFILL], view.lanes[DECODE]
        for_prefill, for_decode = self._shares(view)
        relief, chunks = due(view, batch_tokens=self.batch_tokens, max_resident=self.max_resident)
        steps: tuple[Step, ...] = ()
        if relief.decodes and not decode.busy:
            alone = not prefill.busy and not chunks
            sms = view.sms if self.lend and alone else for_decode
            again = alone and not view.waiting
            steps = (Step(DECODE, sms, (), None, True, relief.victims, None, again),)
        if chunks:
            sms = view.sms if self.lend and not relief.decodes else for_prefill
            steps = (*steps, Step(PREFILL, sms, chunks, self._layers(view)))
        return Decision(steps)

    def _shares(self, view: View) -> tuple[int, int]:
        """SMs of prefill and of decode."""
        if self.prefill_sms is not None:
            if self.prefill_sms > view.sms:
                raise ValueError(f"prefill_sms is {self.prefill_sms} and an instance has {view.sms} SMs; give no more")
            return self.prefill_sms, view.sms
        share = self.decode_sms
        if share is None:
            step = split_steps(view, None)
            share = view.sms // 2 // step * step
        if not 0 < share < view.sms:
            raise ValueError(f"decode_sms is {share} of an instance's {view.sms} SMs; leave one or more to each phase")
        return view.sms - share, share

    def _layers(self, view: View) -> int | None:
        if self.layers_per_step is None:
            return None
        return min(self.layers_per_step, view.latency.model.layers - view.lanes[PREFILL].layers_done)


def due(view: View, *, batch_tokens: int, max_resident: int) -> tuple[Relief, tuple[Chunk, ...]]:
    """What two loops that mind nobody else have to launch now: room for a decode step, and chunks for prefill.

    While a decode step runs the room is that of the next one. No chunks while prefill runs; those of a batch in
    progress until its last layer.
    """
    prefill = view.lanes[PREFILL]
    relief = room(view)
    if prefill.busy:
        return relief, ()
    return relief, prefill.batch or fill(
        view,
        budget_tokens=batch_tokens,
        free_blocks=relief.free_blocks,
        max_resident=max_resident,
        whole_prompts=True,
        without=relief.victims,
    )
