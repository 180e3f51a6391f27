"""Launches that ask for the same SMs, their thread blocks in the order in which kernels were launched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiler import Work, roofline
from sim.config import LatencySettings, checked

MODEL = replace(roofline("Llama-3.1-8B", "A100-80G"), pass_overhead_s=0.0, launch_overhead_s=0.0, sharing="in-order")
SMS = MODEL.device.sms
DECODE = Work(decode_requests=32, decode_context_tokens=32 * 1024)
GROUP = Work(prefill=((2048, 0),), layers=4, head=False)


def alone(work: Work, sms: int = SMS) -> float:
    return MODEL.estimate(work, sms).seconds


def test_on_the_same_sms_a_layer_waits_for_a_layer() -> None:
    """32 layers of decode wait for eight groups of four; a group waits for an eighth of a decode step."""
    assert MODEL.estimate(DECODE, SMS, GROUP, SMS).seconds == pytest.approx(alone(DECODE) + 8 * alone(GROUP))
    assert MODEL.estimate(GROUP, SMS, DECODE, SMS).seconds == pytest.approx(alone(GROUP) + alone(DECODE) / 8)


def test_what_the_other_leaves_is_used_where_that_is_sooner() -> None:
    """Prefill on 84 SMs leaves 24: decode is as fast there as with 24 of its own."""
    beside = MODEL.estimate(DECODE, SMS, GROUP, 84).seconds
    assert beside == MODEL.estimate(DECODE, 24, GROUP, 84).seconds
    assert alone(DECODE) < beside < alone(DECODE) + 8 * alone(GROUP, 84)


def test_two_sms_that_are_left_are_no_use() -> None:
    assert MODEL.estimate(DECODE, SMS, GROUP, 106).seconds == pytest.approx(alone(DECODE) + 8 * alone(GROUP, 106))


def test_shares_of_their_own_are_as_ever() -> None:
    turns = replace(MODEL, sharing="turns")
    assert MODEL.estimate(DECODE, 24, GROUP, 84) == turns.estimate(DECODE, 24, GROUP, 84)
    assert MODEL.estimate(DECODE, SMS) == turns.estimate(DECODE, SMS)


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(ValueError, match="sharing is 'fair'; known: turns, in-order"):
        replace(MODEL, sharing="fair")
    with pytest.raises(ValueError, match="latency: sharing is 'fair'"):
        checked(LatencySettings, {"sharing": "fair"}, "latency")
