"""Bullet: prefill and decode at once on one GPU, each on its own SMs, moved layer by layer to hold the SLOs.

Lin et al., ASPLOS 2026, sections 3.2 and 3.3, Algorithm 1. Prefill runs in groups of layers and decode in whole
steps, on two lanes. Whenever a lane falls idle the scheduler forecasts the TTFT of what is being prefilled (or, before
a new batch, of the whole queue) and the TPOT of what is decoding, and splits the SMs:

- TPOT holds: decode gets the fewest SMs with which it still will, prefill the rest (prefill first: the shorter the
  prefill, the larger the decode batches);
- TPOT does not hold but TTFT does: decode gets all that it can use, prefill no fewer than keep its TTFT;
- neither holds: the split with the least max(TTFT / SLO, TPOT / SLO), over what can still be changed.

The queue is taken shortest prefill first when that breaks no TTFT SLO that would hold. A batch takes requests until it
makes use of its SMs. In a burst, when a queue waits behind the batch or TTFTs are in danger, decode pauses for as long
as its own SLO allows. A decode step that will outlast the last prefill layers gets part of their SMs from the start, so
shares may overlap for a moment instead of leaving SMs idle. With one phase empty the other has all SMs. Predictions
are corrected by alpha, refreshed from finished steps (policies.recalibration).

Left open by the text, and settings here: layers a group (4), the percentile (P90) and its population (pending requests
and the last 100 finished), how much of a long queue is forecast, when a batch makes use of its SMs, what a burst is.
The ablations of the paper's figure 23 switch off ``partition`` (w/Scheduler), or what the scheduler does, ``move_sms``,
``reorder`` and ``pause_decode`` (w/Partition), or ``partition`` and the last two (Naive).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from policies.admission import Relief
from policies.api import Decision, LaneView, RequestProgress, Router, Step, View
from policies.bulletplan import Planning, PrefillPlan
from policies.bulletsplit import Clock, Splitting, State, decode_clock, first_state
from policies.routing import LeastLoaded
from policies.twolanes import DECODE, PREFILL, TwoLanes, room, whole_steps

new = tuple.__new__
"""For what each decision makes: their own constructors take three times as long."""

PLAIN = Step(PREFILL, 1)[4:]
"""What else there is to a step that prefills."""


def decode_step(sms: int, victims: tuple[RequestProgress, ...], again: bool = False) -> Step:
    """A step of all that decode."""
    return new(Step, (DECODE, sms, (), None, True, victims, None, again, *PLAIN[4:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullet(TwoLanes, Planning, Splitting):
    """Two lanes on every instance.

    layers_per_step: transformer layers in one prefill launch.
    percentile: the share of requests whose TTFT and TPOT must be within SLO for it to count as held.
    queue_horizon: how many waiting requests are forecast and reordered; those behind them wait longer anyway.
    batch_fill: a prefill batch takes requests until it runs at this part of the FLOP/s that a long prompt attains.
    sm_step: SMs by which shares change, at most half of them; None takes the device's granularity.
    max_resident: requests that may hold KV at once.
    partition: whether the phases have shares; without, both are launched on all SMs.
    move_sms: whether shares follow the state; without, each phase has half of the SMs while both have work.
    reorder, pause_decode, recalibrate: switch these parts off to see what they are worth.
    pause_on_queue: whether a queue behind the batch is reason enough to pause; else TTFTs must be in danger.
    on_time, hurry_for_kv, cap_at_drain: not the paper's; see policies.bullet_eager.
    """

    name: ClassVar[str] = "bullet"

    layers_per_step: int = 4
    percentile: float = 0.9
    queue_horizon: int = 64
    batch_fill: float = 0.9
    sm_step: int | None = None
    max_resident: int = 1024
    partition: bool = True
    move_sms: bool = True
    reorder: bool = True
    pause_decode: bool = True
    pause_on_queue: bool = True
    recalibrate: bool = True
    on_time: bool = False
    hurry_for_kv: bool = False
    cap_at_drain: bool = False
    router: Router = field(default_factory=LeastLoaded)

    def __post_init__(self) -> None:
        for name in ("layers_per_step", "queue_horizon", "max_resident"):
            if getattr(self, name) < 1:
                raise ValueError(f"{self.name}: {name} is {getattr(self, name)}; it must be 1 or more")
        for name in ("percentile", "batch_fill"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{self.name}: {name} is {getattr(self, name)}; it must be above 0 and at most 1")
        if self.sm_step is not None and self.sm_step < 1:
            raise ValueError(f"{self.name}: sm_step is {self.sm_step}; it must be 1 or more, or None for the device's")

    def decide(self, view: View) -> Decision:
        lanes, memo = view.lanes, view.memo
        prefill, decode = lanes[PREFILL], lanes[DECODE]
        before = memo if isinstance(memo, State) else first_state(view, whole_steps(view, self.sm_step))
        if not view.decoding:
            if prefill.busy:
                return new(Decision, ((), before))
            if prefill.batch:
                return new(Decision, ((self._next_group(view, prefill, decode, before),), before))
        elif decode.busy and prefill.batch and not prefill.busy:
            return new(Decision, ((self._next_group(view, prefill, decode, before),), before))
        if self.recalibrate:
            alphas = before.alphas.after(view.observed)
            if alphas is not before.alphas:
                before = new(State, (*before[:-1], alphas))
        relief = room(view)
        plan = None
        if prefill.batch or view.waiting:
            plan = self._plan(view, prefill, relief, before.prefill_sms, before.alphas.prefill)
        if plan is not None:
            return self._share(view, plan, relief, before)
        sms = view.sms
        state = before if before[0] == before[1] == sms else before.split(sms, sms)
        if decode.busy or not relief.decodes:
            return new(Decision, ((), state))
        return new(Decision, ((decode_step(sms, relief.victims, not view.waiting),), state))

    def _next_group(self, view: View, prefill: LaneView, decode: LaneView, before: State) -> Step:
        """The next layers of the batch in progress, with nothing else to decide.

        The share of a decode step in flight is settled until its end. What it leaves is prefill's; where that is less
        than prefill's part (decode had the GPU to itself when it started), the two overlap for the rest of the step.
        """
        layers = min(self.layers_per_step, view.latency.model.layers - prefill.layers_done)
        sms = max(before.prefill_sms, view.sms - decode.sms) if decode.busy else view.sms
        return new(Step, (PREFILL, sms, prefill.batch, layers, *PLAIN))

    def _share(self, view: View, plan: PrefillPlan, relief: Relief, before: State) -> Decision:
        """Steps for the idle lanes while there is something to prefill."""
        prefill, decode = view.lanes[PREFILL], view.lanes[DECODE]
        if not relief.decodes:
            steps = () if prefill.busy else (Step(PREFILL, view.sms, plan.chunks, plan.layers),)
            return Decision(steps, before._replace(prefill_sms=view.sms))
        decode_s, slack_s = decode_clock(view, plan, before.alphas.decode), view.decode_slack_s(self.percentile)
        if not self.partition or view.sms == 1:
            state = before.split(view.sms, view.sms)
        elif not self.move_sms:
            step = whole_steps(view, self.sm_step)
            half = view.sms // 2 // step * step
            state = before._replace(prefill_sms=view.sms - half, decode_sms=half)
        else:
            state = self._split(view, plan, decode_s, slack_s, before)
        if decode.busy:
            # As in a next group: what the step in flight leaves, or this phase's part.
            sms = max(state.prefill_sms, view.sms - decode.sms)
            return new(Decision, ((new(Step, (PREFILL, sms, plan.chunks, plan.layers, *PLAIN)),), state))
        steps = ()
        if not self._may_pause(view, plan, decode_s(state.decode_sms), slack_s):
            sms = self._decode_sms(view, plan, state.decode_sms, decode_s) if self.move_sms else state.decode_sms
            steps = (decode_step(sms, relief.victims),)
        if not prefill.busy:
            sms = state.prefill_sms if steps else view.sms
            steps = (*steps, new(Step, (PREFILL, sms, plan.chunks, plan.layers, *PLAIN)))
        return new(Decision, (steps, state))

    def _may_pause(self, view: View, plan: PrefillPlan, step_s: float, slack_s: float) -> bool:
        """Whether decode can sit out the next layer group: there is a burst, and the TPOT SLO has room for it."""
        if not self.pause_decode or view.slo.tpot_s is None:
            return False
        queued = self.pause_on_queue and plan.follows
        if not queued and plan.pending(view).held(self.percentile):
            return False
        group_s = plan.alpha * view.latency.estimate(plan.group, view.sms).seconds
        return group_s + step_s <= slack_s

    @staticmethod
    def _decode_sms(view: View, plan: PrefillPlan, sms: int, decode_s: Clock) -> int:
        """Decode's share: more than its part near the last layers, by the time it will have the GPU alone."""
        if plan.follows or not plan.group.head:
            return sms
        alone = max(0.0, 1.0 - plan.left_s / decode_s(sms))
        return sms + int(alone * (view.sms - sms))
