"""Bullet's resource provisioning: the searches for a split of the SMs, Algorithm 1's three branches."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from policies.api import Outcome, View
from policies.bulletplan import PrefillPlan
from policies.forecast import TtftForecast, fewest, missed, within
from policies.phases import whole_steps
from policies.recalibration import UNCORRECTED, Alphas
from profiler.latency import decode_beside

USEFUL = 1.02
"""A step this close to the shortest there is counts as the shortest."""


class SplitSettings(Protocol):
    """Those of policies.bullet.Bullet that the searches read."""

    @property
    def percentile(self) -> float: ...
    @property
    def queue_horizon(self) -> int: ...
    @property
    def sm_step(self) -> int | None: ...
    @property
    def hurry_for_kv(self) -> bool: ...
    @property
    def cap_at_drain(self) -> bool: ...


class State(NamedTuple):
    """Bullet's memo: the split, and whether the TPOT percentile of the requests finished of late is within its limit.

    ``saturating_sms``, the fewest that draw nearly all of the bandwidth, never change.
    """

    prefill_sms: int
    decode_sms: int
    saturating_sms: int
    latest: Outcome | None = None
    past_tpot_held: bool = True
    alphas: Alphas = UNCORRECTED

    def split(self, prefill_sms: int, decode_sms: int) -> State:
        """This state with other shares."""
        return tuple.__new__(State, (prefill_sms, decode_sms, *self[2:]))


def first_state(view: View, step: int) -> State:
    """All SMs for both; and how many draw nine tenths of the bandwidth: decode's share without a TPOT SLO."""
    total = view.sms
    _, all_bytes = view.latency.ceilings(total)
    sms = fewest(step, total - step, step, lambda n: view.latency.ceilings(n)[1] >= 0.9 * all_bytes)
    return State(total, total, max(1, total // 2) if sms is None else sms)


class DecodeClock:
    """Seconds of the next decode step by its SMs, with a plan's layer group on all others; each worked out once."""

    __slots__ = ("_alpha", "_known", "_splits")

    def __init__(self, view: View, plan: PrefillPlan, alpha: float) -> None:
        decodes = len(view.decoding)
        self._alpha = alpha
        self._splits = decode_beside(view.latency, decodes, view.decode_context_tokens + decodes, plan.group)
        self._known: dict[int, float] = {}

    def on(self, sms: int) -> float:
        """Times alpha."""
        found = self._known.get(sms)
        if found is None:
            found = self._known[sms] = self._alpha * self._splits.seconds(sms)
        return found

    def least(self, sms: int) -> float:
        """What ``on`` is not below."""
        return self._alpha * self._splits.bounds(sms)[0]

    def within(self, sms: int, limit_s: float) -> bool:
        """Whether ``on`` is no more than ``limit_s``: mostly its bounds tell, which cost less."""
        found = self._known.get(sms)
        if found is None:
            least, most = self._splits.bounds(sms)
            if self._alpha * most <= limit_s:
                return True
            if self._alpha * least > limit_s:
                return False
            found = self.on(sms)
        return found <= limit_s


def split(
    settings: SplitSettings, view: View, plan: PrefillPlan, clock: DecodeClock, slack_s: float, before: State
) -> State:
    """Shares for the layer group of a plan and a decode step that may last ``slack_s``."""
    total, step = view.sms, whole_steps(view, settings.sm_step)
    if view.slo.tpot_s is None:
        sms = before.saturating_sms
        return before.split(total - sms, sms)
    before = _with_past(settings, view, before)
    limit_s = _decode_limit_s(settings, view, plan, slack_s, clock, before.saturating_sms)
    fit = fewest_sms(clock, before, limit_s, step, total)
    if fit is not None and before.past_tpot_held:
        return before.split(total - fit, fit)
    forecast = plan.forecast(view)

    def held(sms: int) -> bool:
        return forecast.held(settings.percentile, plan.pace(sms))

    least = None
    if held(plan.reference_sms):
        # Where decode is what is late, prefill mostly has time.
        least = step if held(step) else fewest(2 * step, total - step, step, held, before.prefill_sms)
    if least is not None:
        sms = useful_sms(clock, step, total - least)
    else:
        savable = forecast.savable(plan.pace(total - step))
        sms = _balanced_sms(settings, view, plan, savable, clock, step, before.decode_sms)
    return before.split(total - sms, sms)


def _decode_limit_s(
    settings: SplitSettings, view: View, plan: PrefillPlan, slack_s: float, clock: DecodeClock, saturating_sms: int
) -> float:
    """How long the next decode step is to last; on ``saturating_sms`` it takes about as short as it could."""
    limit_s = min(slack_s, view.slo.tpot_limit_s)
    if plan.starved and settings.hurry_for_kv:
        return min(limit_s, clock.on(saturating_sms))
    if settings.cap_at_drain:
        return min(limit_s, max(plan.drain_s(view, settings.queue_horizon), clock.on(saturating_sms)))
    return limit_s


def fewest_sms(clock: DecodeClock, before: State, limit_s: float, step: int, total: int) -> int | None:
    """The fewest SMs with which a decode step lasts no longer than its limit; None where none are enough."""
    last = before.decode_sms
    on_grid = last <= total - step and last % step == 0
    if on_grid and clock.within(last, limit_s) and (last == step or not clock.within(last - step, limit_s)):
        # Mostly the share of last time is still enough, and no more than that.
        return last
    # Below saturation a step takes time in inverse proportion to its SMs.
    saturating = before.saturating_sms
    guess = math.ceil(min(total, saturating * clock.least(saturating) / limit_s)) if limit_s > 0 else total
    return fewest(step, total - step, step, lambda sms: clock.within(sms, limit_s), guess)


def _balanced_sms(
    settings: SplitSettings,
    view: View,
    plan: PrefillPlan,
    savable: TtftForecast,
    clock: DecodeClock,
    step: int,
    guess: int,
) -> int:
    """Decode SMs of the split with the least max(TTFT / SLO, TPOT / SLO); ``guess`` is where to look first.

    Both are of what can still be changed: TTFT of requests that can still meet it, TPOT of the tokens to come.
    Counting what is lost already would hand all SMs to the phase that is further behind and keep them there.
    """
    total, limit_s, share = view.sms, view.slo.tpot_limit_s, settings.percentile

    def tpot(sms: int) -> float:
        return clock.on(sms) / limit_s

    def ttft(sms: int) -> float:
        return max(1.0, savable.pending_ratio(share, plan.pace(total - sms)))

    crossing = fewest(step, total - step, step, lambda sms: tpot(sms) <= ttft(sms), guess)
    if crossing is None:
        return useful_sms(clock, step, total - step)
    # The crossing lies between two splits; the one before it may have the smaller maximum.
    if crossing > step and tpot(crossing - step) < ttft(crossing):
        return crossing - step
    return crossing


def _with_past(settings: SplitSettings, view: View, state: State) -> State:
    """The state with what finished requests say of TPOT, counted anew only when one has finished."""
    outcomes = view.outcomes
    latest = outcomes[-1] if outcomes else None
    if latest is state.latest:
        return state
    _, late, judged = missed(outcomes)
    return state._replace(latest=latest, past_tpot_held=within(settings.percentile, late, judged))


def useful_sms(clock: DecodeClock, step: int, most: int) -> int:
    """Decode SMs beyond which a step gets no shorter: taking more from prefill would help nobody."""
    # The last tenth is often of no use, and what comes before it is.
    enough_s = USEFUL * clock.on(most) if most >= step else math.inf
    useful = fewest(step, most, step, lambda sms: clock.within(sms, enough_s), most - most // 10)
    return most if useful is None else useful
