"""Bullet's resource provisioning: the searches for a split of the SMs, Algorithm 1's three branches."""

from __future__ import annotations

import math
from typing import Final

from policies.api import Outcome, View
from policies.bulletplan import PrefillPlan
from policies.bulletterms import State, Terms
from policies.forecast import TtftForecast, fewest, missed, within
from profiler.series import DecodeSplits

USEFUL: Final = 1.02
"""A step this close to the shortest there is counts as the shortest."""


class DecodeClock:
    """Seconds of the next decode step by its SMs, with a plan's layer group on all others; each worked out once."""

    __slots__ = ("_alpha", "_known", "_splits")

    def __init__(self, splits: DecodeSplits, alpha: float) -> None:
        self._alpha = alpha
        self._splits = splits
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
    terms: Terms, view: View, plan: PrefillPlan, clock: DecodeClock, slack_s: float, before: State, past_held: bool
) -> int:
    """Decode's SMs beside the layer group of a plan, for a step that may last ``slack_s``.

    ``past_held`` is whether finished requests are within the TPOT limit.
    """
    total, step = terms.sms, terms.step
    if not terms.limits_tpot:
        return terms.saturating_sms
    limit_s = _decode_limit_s(terms, view, plan, slack_s, clock)
    fit = fewest_sms(clock, before.decode_sms, terms.saturating_sms, limit_s, step, total)
    if fit is not None and past_held:
        return fit
    forecast, share = plan.forecast(terms, view), terms.percentile
    least = None
    if forecast.held(share, plan.pace(plan.reference_sms)):
        # Where decode is what is late, prefill mostly has time.
        least = step
        if not forecast.held(share, plan.pace(step)):
            least = fewest(
                2 * step, total - step, step, lambda sms: forecast.held(share, plan.pace(sms)), before.prefill_sms
            )
    if least is not None:
        return useful_sms(clock, step, total - least)
    savable = forecast.savable(plan.pace(total - step))
    return _balanced_sms(terms, plan, savable, clock, before.decode_sms)


def _decode_limit_s(terms: Terms, view: View, plan: PrefillPlan, slack_s: float, clock: DecodeClock) -> float:
    """How long the next decode step is to last; on the saturating SMs it takes about as short as it could."""
    limit_s = min(slack_s, terms.tpot_limit_s)
    if plan.starved and terms.hurry_for_kv:
        return min(limit_s, clock.on(terms.saturating_sms))
    if terms.cap_at_drain:
        return min(limit_s, max(plan.drain_s(terms, view), clock.on(terms.saturating_sms)))
    return limit_s


def fewest_sms(clock: DecodeClock, last: int, saturating: int, limit_s: float, step: int, total: int) -> int | None:
    """The fewest SMs with which a decode step lasts no longer than its limit; None where none are enough.

    ``last`` are those of last time, ``saturating`` the fewest that draw nearly all of the bandwidth.
    """
    on_grid = last <= total - step and last % step == 0
    if on_grid and clock.within(last, limit_s) and (last == step or not clock.within(last - step, limit_s)):
        # Mostly the share of last time is still enough, and no more than that.
        return last
    # Below saturation a step takes time in inverse proportion to its SMs.
    guess = math.ceil(min(total, saturating * clock.least(saturating) / limit_s)) if limit_s > 0 else total
    return fewest(step, total - step, step, lambda sms: clock.within(sms, limit_s), guess)


def _balanced_sms(terms: Terms, plan: PrefillPlan, savable: TtftForecast, clock: DecodeClock, guess: int) -> int:
    """Decode SMs of the split with the least max(TTFT / SLO, TPOT / SLO); ``guess`` is where to look first.

    Both are of what can still be changed: TTFT of requests that can still meet it, TPOT of the tokens to come.
    Counting what is lost already would hand all SMs to the phase that is further behind and keep them there.
    """
    total, step, limit_s, share = terms.sms, terms.step, terms.tpot_limit_s, terms.percentile

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


def past_tpot(terms: Terms, view: View, before: State) -> tuple[Outcome | None, bool]:
    """The newest finished request, and whether those of late hold TPOT: counted anew only when one has finished."""
    outcomes = view.outcomes
    latest = outcomes[-1] if outcomes else None
    if latest is before.latest:
        return latest, before.past_tpot_held
    _, late, judged = missed(outcomes)
    return latest, within(terms.percentile, late, judged)


def useful_sms(clock: DecodeClock, step: int, most: int) -> int:
    """Decode SMs beyond which a step gets no shorter: taking more from prefill would help nobody."""
    # The last tenth is often of no use, and what comes before it is.
    enough_s = USEFUL * clock.on(most) if most >= step else math.inf
    useful = fewest(step, most, step, lambda sms: clock.within(sms, enough_s), most - most // 10)
    return most if useful is None else useful
