"""What Bullet does at an instant: steps for its idle lanes, by its plan for prefill and the split that follows from it.

Functions of a policy's settings and a view, so that they can be compiled where the policy itself is a dataclass.
"""

from __future__ import annotations

from typing import Final, Protocol

from policies.admission import Relief
from policies.api import Chunk, Decision, LaneView, Step, View
from policies.bulletplan import PlanSettings, PrefillPlan, plan_prefill
from policies.bulletsplit import DecodeClock, SplitSettings, State, first_state, split
from policies.phases import DECODE, PREFILL, decode_step, room, whole_steps
from policies.recalibration import refreshed

new: Final = tuple.__new__
"""For what each decision makes: their own constructors take three times as long."""


class Settings(PlanSettings, SplitSettings, Protocol):
    """Those of policies.bullet.Bullet."""

    @property
    def partition(self) -> bool: ...
    @property
    def move_sms(self) -> bool: ...
    @property
    def pause_decode(self) -> bool: ...
    @property
    def pause_on_queue(self) -> bool: ...
    @property
    def recalibrate(self) -> bool: ...


def prefill_step(sms: int, chunks: tuple[Chunk, ...], layers: int) -> Step:
    """A step of so many layers of a batch."""
    return new(Step, (PREFILL, sms, chunks, layers, False, (), None, False, None, False, False))


def decide(settings: Settings, view: View) -> Decision:
    """See :meth:`policies.api.Policy.decide`."""
    lanes, memo = view.lanes, view.memo
    prefill, decode = lanes[PREFILL], lanes[DECODE]
    before = memo if isinstance(memo, State) else first_state(view, whole_steps(view, settings.sm_step))
    if not view.decoding:
        if prefill.busy:
            return new(Decision, ((), before))
        if prefill.batch:
            return new(Decision, ((_next_group(settings, view, prefill, decode, before),), before))
    elif decode.busy and prefill.batch and not prefill.busy:
        return new(Decision, ((_next_group(settings, view, prefill, decode, before),), before))
    if settings.recalibrate:
        alphas = refreshed(before.alphas, view.observed)
        if alphas is not before.alphas:
            before = new(State, (*before[:-1], alphas))
    relief = room(view)
    plan = None
    if prefill.batch or view.waiting:
        plan = plan_prefill(settings, view, prefill, relief, before.prefill_sms, before.alphas.prefill)
    if plan is not None:
        return _share(settings, view, plan, relief, before)
    sms = view.sms
    state = before if before[0] == before[1] == sms else before.split(sms, sms)
    if decode.busy or not relief.decodes:
        return new(Decision, ((), state))
    return new(Decision, ((decode_step(sms, relief.victims, not view.waiting),), state))


def _next_group(settings: Settings, view: View, prefill: LaneView, decode: LaneView, before: State) -> Step:
    """The next layers of the batch in progress, with nothing else to decide.

    The share of a decode step in flight is settled until its end. What it leaves is prefill's; where that is less
    than prefill's part (decode had the GPU to itself when it started), the two overlap for the rest of the step.
    """
    layers = min(settings.layers_per_step, view.latency.model.layers - prefill.layers_done)
    sms = max(before.prefill_sms, view.sms - decode.sms) if decode.busy else view.sms
    return prefill_step(sms, prefill.batch, layers)


def _share(settings: Settings, view: View, plan: PrefillPlan, relief: Relief, before: State) -> Decision:
    """Steps for the idle lanes while there is something to prefill."""
    prefill, decode = view.lanes[PREFILL], view.lanes[DECODE]
    if not relief.decodes:
        alone: tuple[Step, ...] = ()
        if not prefill.busy:
            alone = (prefill_step(view.sms, plan.chunks, plan.layers),)
        return new(Decision, (alone, before._replace(prefill_sms=view.sms)))
    clock, slack_s = DecodeClock(view, plan, before.alphas.decode), view.decode_slack_s(settings.percentile)
    if not settings.partition or view.sms == 1:
        state = before.split(view.sms, view.sms)
    elif not settings.move_sms:
        step = whole_steps(view, settings.sm_step)
        half = view.sms // 2 // step * step
        state = before._replace(prefill_sms=view.sms - half, decode_sms=half)
    else:
        state = split(settings, view, plan, clock, slack_s, before)
    if decode.busy:
        # As in a next group: what the step in flight leaves, or this phase's part.
        sms = max(state.prefill_sms, view.sms - decode.sms)
        return new(Decision, ((prefill_step(sms, plan.chunks, plan.layers),), state))
    steps: tuple[Step, ...] = ()
    if not _may_pause(settings, view, plan, clock.on(state.decode_sms), slack_s):
        sms = _decode_sms(view, plan, state.decode_sms, clock) if settings.move_sms else state.decode_sms
        steps = (decode_step(sms, relief.victims),)
    if not prefill.busy:
        sms = state.prefill_sms if steps else view.sms
        steps = (*steps, prefill_step(sms, plan.chunks, plan.layers))
    return new(Decision, (steps, state))


def _may_pause(settings: Settings, view: View, plan: PrefillPlan, step_s: float, slack_s: float) -> bool:
    """Whether decode can sit out the next layer group: there is a burst, and the TPOT SLO has room for it."""
    if not settings.pause_decode or view.slo.tpot_s is None:
        return False
    queued = settings.pause_on_queue and plan.follows
    if not queued and plan.in_time(view, settings.percentile):
        return False
    group_s = plan.alpha * plan.groups.seconds(plan.layers, plan.group.head, view.sms)
    return group_s + step_s <= slack_s


def _decode_sms(view: View, plan: PrefillPlan, sms: int, clock: DecodeClock) -> int:
    """Decode's share: more than its part near the last layers, by the time it will have the GPU alone."""
    if plan.follows or not plan.group.head:
        return sms
    alone = max(0.0, 1.0 - plan.left_s / clock.on(sms))
    return sms + int(alone * (view.sms - sms))
