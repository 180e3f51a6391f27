"""The splits that a validation's lanes are made with: those that its policies ask for, on both sides."""

from __future__ import annotations

import pytest

import policies
from policies.api import Policy
from real.cuda_shares import LaneShares, Share
from real.machine import split_sizes

SMS = 132


def policy(name: str, **settings: object) -> Policy:
    return policies.load(name, settings)


@pytest.mark.parametrize(
    ("found", "sizes"),
    [
        ([policy("bullet", sm_step=16)], [16, 32, 48, 64, 80, 96, 112]),
        ([policy("static-split", decode_sms=40), policy("bullet", sm_step=44)], [40, 44, 88]),
        ([policy("static-split", decode_sms=200), policy("bullet", sm_step=66)], [66]),
        ([policy("chunked"), policy("static-split")], None),
    ],
)
def test_sizes_are_those_that_policies_move_to(found: list[Policy], sizes: list[int] | None) -> None:
    assert split_sizes(found, SMS) == sizes


def test_both_lanes_are_granted_what_bullet_and_a_static_split_ask_for() -> None:
    """Decode has the groups and prefill the rests, where the driver grants what was asked."""
    sizes = split_sizes([policy("bullet", sm_step=16), policy("static-split", decode_sms=48)], SMS)
    assert sizes is not None
    whole = Share(SMS, None)
    decode = LaneShares(whole, tuple(Share(size, None) for size in sizes))
    prefill = LaneShares(whole, tuple(Share(SMS - size, None) for size in sizes))
    for asked in range(16, SMS - 16 + 1, 16):
        assert decode.nearest(asked).sms == asked
        assert prefill.nearest(SMS - asked).sms == SMS - asked
