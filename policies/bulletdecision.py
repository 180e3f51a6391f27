"""What Bullet does at an instant: steps for its idle lanes, by its plan for prefill and the split that follows from it.

Functions of a policy's settings and a view, so that they can be compiled where the policy itself is a dataclass.
"""

from __future__ import annotations

from typing import Final

from policies.api import Chunk, Decision, LaneView, RequestProgress, Step, View
from policies.bulletplan import PrefillPlan, plan_prefill
from policies.bulletsplit import DecodeClock, past_tpot, split
from policies.bulletterms import Settings, State, Terms
from policies.phases import DECODE, PREFILL, decode_step, room
from policies.recalibration import Alphas, refreshed

new: Final = tuple.__new__
"""For what each decision makes: their own constructors take three times as long."""


def prefill_step(sms: int, chunks: tuple[Chunk, ...], layers: int) -> Step:
    """A step of so many layers of a batch."""
    return new(Step, (PREFILL, sms, chunks, layers, False, (), None, False, None, False, False))


def decide(settings: Settings, view: View) -> Decision:
    """See :meth:`policies.api.Policy.decide`."""
    lanes, memo = view.lanes, view.memo
    prefill, decode = lanes[PREFILL], lanes[DECODE]
    before = memo if isinstance(memo, State) else State(view.sms, view.sms)
    terms = before.terms
    if terms is None or not terms.hold(settings, view):
        terms = Terms(settings, view)
        before = State(before.prefill_sms, before.decode_sms, terms, before.alphas)
    batch, decode_busy = prefill.batch, decode.busy
    if not view.decoding:
        if prefill.busy:
            return new(Decision, ((), before))
        if batch:
            return new(Decision, ((_next_group(terms, batch, prefill.layers_done, terms.sms, before),), before))
    elif decode_busy and batch and not prefill.busy:
        # The share of a decode step in flight is settled until its end. What it leaves is prefill's; where that is
        # less than prefill's part (decode had the GPU to itself when it started), the two overlap for the rest of it.
        sms = max(before.prefill_sms, terms.sms - decode.sms)
        return new(Decision, ((_next_group(terms, batch, prefill.layers_done, sms, before),), before))
    alphas = refreshed(before.alphas, view.observed) if terms.recalibrate else before.alphas
    relief = room(view)
    queue = view.waiting
    if batch or queue:
        plan = plan_prefill(terms, view, prefill, relief, before, alphas.prefill)
        if plan is not None:
            if not relief.decodes:
                return _alone(terms, plan, before, alphas, prefill.busy)
            return _share(terms, view, plan, relief.victims, before, alphas, prefill, decode)
    state, sms = before, terms.sms
    if alphas is not before.alphas or not before.prefill_sms == before.decode_sms == sms:
        state = State(sms, sms, terms, alphas, before.latest, before.past_tpot_held)
    if decode_busy or not relief.decodes:
        return new(Decision, ((), state))
    return new(Decision, ((_decode_step(terms, sms, relief.victims, not queue),), state))


def _next_group(terms: Terms, batch: tuple[Chunk, ...], done: int, sms: int, before: State) -> Step:
    """The next layers of the batch in progress, of which some are done, with nothing else to decide."""
    layers, last = min(terms.layers_per_step, terms.layers - done), before.prefill
    if last is not None and last.prefill is batch and last.sms == sms and last.layers == layers:
        return last
    return prefill_step(sms, batch, layers)


def _decode_step(terms: Terms, sms: int, victims: tuple[RequestProgress, ...], again: bool = False) -> Step:
    """A step of all that decode; one to be repeated is on all SMs."""
    if victims:
        return decode_step(sms, victims, again)
    return terms.decode_again if again else terms.decode_steps[sms]


def _alone(terms: Terms, plan: PrefillPlan, before: State, alphas: Alphas, busy: bool) -> Decision:
    """A step for prefill, unless it is ``busy``, with nobody to decode."""
    total, chunks = terms.sms, plan.chunks
    state = State(total, before.decode_sms, terms, alphas, before.latest, before.past_tpot_held, chunks, plan.groups)
    return new(Decision, (() if busy else (prefill_step(total, chunks, plan.layers),), state))


def _share(
    terms: Terms,
    view: View,
    plan: PrefillPlan,
    victims: tuple[RequestProgress, ...],
    before: State,
    alphas: Alphas,
    prefill: LaneView,
    decode: LaneView,
) -> Decision:
    """Steps for the idle lanes while there is something to prefill and somebody to decode."""
    total, chunks, layers, decodes = terms.sms, plan.chunks, plan.layers, len(view.decoding)
    beside = plan.groups.beside(layers, plan.ends, decodes, view.decode_context_tokens + decodes)
    clock, slack_s = DecodeClock(beside, alphas.decode), view.decode_slack_s(terms.percentile)
    latest, past_held = before.latest, before.past_tpot_held
    if terms.splits and terms.move_sms and terms.limits_tpot:
        latest, past_held = past_tpot(terms, view, before)
    prefill_sms, decode_sms = _shares(terms, view, plan, clock, slack_s, before, past_held)
    steps: tuple[Step, ...] = ()
    group: Step | None = None
    if decode.busy:
        # As in a next group: what the step in flight leaves, or this phase's part.
        group = prefill_step(max(prefill_sms, total - decode.sms), chunks, layers)
        steps = (group,)
    else:
        pauses = _may_pause(terms, view, plan, clock.on(decode_sms), slack_s)
        if not pauses:
            sms = _decode_sms(terms, plan, decode_sms, clock) if terms.move_sms else decode_sms
            steps = (_decode_step(terms, sms, victims),)
        if not prefill.busy:
            group = prefill_step(total if pauses else prefill_sms, chunks, layers)
            steps = (*steps, group)
    state = State(prefill_sms, decode_sms, terms, alphas, latest, past_held, chunks, plan.groups, group)
    return new(Decision, (steps, state))


def _shares(
    terms: Terms, view: View, plan: PrefillPlan, clock: DecodeClock, slack_s: float, before: State, past_held: bool
) -> tuple[int, int]:
    """SMs of prefill and of decode."""
    total = terms.sms
    if not terms.splits:
        return total, total
    if terms.move_sms:
        sms = split(terms, view, plan, clock, slack_s, before, past_held)
    else:
        sms = total // 2 // terms.step * terms.step
    return total - sms, sms


def _may_pause(terms: Terms, view: View, plan: PrefillPlan, step_s: float, slack_s: float) -> bool:
    """Whether decode can sit out the next layer group: there is a burst, and the TPOT SLO has room for it."""
    if not terms.pause_decode or not terms.limits_tpot:
        return False
    queued = terms.pause_on_queue and plan.follows
    if not queued and plan.in_time(terms, view.now_s):
        return False
    return plan.group_s(terms.sms) + step_s <= slack_s


def _decode_sms(terms: Terms, plan: PrefillPlan, sms: int, clock: DecodeClock) -> int:
    """Decode's share: more than its part near the last layers, by the time it will have the GPU alone."""
    if plan.follows or not plan.ends:
        return sms
    alone = max(0.0, 1.0 - plan.left_s / clock.on(sms))
    return sms + int(alone * (terms.sms - sms))
