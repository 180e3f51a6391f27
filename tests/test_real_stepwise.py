"""A run step by step: who ran beside whom, steps by lane and share, lanes busy at once, what the host took."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from real.stepwise import KINDS, beside, host_times, kinds, overlap, step_groups
from tests.test_real_comparison import STEPS, launches_of, records, step_log


def test_who_ran_beside_whom() -> None:
    found = beside(STEPS)
    pairs = dict(zip(zip(found.row.tolist(), found.peer.tolist(), strict=True), found.seconds.tolist(), strict=True))
    assert pairs == {(0, 1): 0.5, (1, 0): 0.5, (0, 2): 0.5, (2, 0): 0.5}
    assert [KINDS[number] for number in kinds(STEPS)] == ["prefill", "decode", "decode", "decode", "transfer"]
    apart = replace(STEPS, instance=np.array([0, 1, 1, 1, 1]))
    assert len(beside(apart).row) == 0


def test_while_the_device_was_at_it() -> None:
    """The third step is on the device from 1.9 s: beside the prefill, whose flight ends at 2 s, for 0.1 s."""
    found = beside(STEPS, launches_of(STEPS, begin=0.4))
    seconds = dict(zip(zip(found.row.tolist(), found.peer.tolist(), strict=True), found.seconds.tolist(), strict=True))
    assert seconds[2, 0] == pytest.approx(0.1)
    assert seconds[1, 0] == pytest.approx(0.1)
    assert seconds[0, 2] == pytest.approx(0.5)


spans = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=12)


@given(spans, spans)
def test_overlaps_are_those_of_all_pairs(prefills: list[tuple[int, int]], decodes: list[tuple[int, int]]) -> None:
    rows = []
    for lane, lengths in (("prefill", prefills), ("decode", decodes)):
        now = 0.0
        for gap, length in lengths:
            rows.append((lane, 5, now + gap, now + gap + length, 1.0))
            now += gap + length
    steps = step_log(*sorted(rows, key=lambda row: row[3]))
    expected = {
        (one, other): min(a[3], b[3]) - max(a[2], b[2])
        for one, a in enumerate(sorted(rows, key=lambda row: row[3]))
        for other, b in enumerate(sorted(rows, key=lambda row: row[3]))
        if a[0] != b[0] and min(a[3], b[3]) > max(a[2], b[2])
    }
    row, peer, seconds = beside(steps)
    assert dict(zip(zip(row.tolist(), peer.tolist(), strict=True), seconds.tolist(), strict=True)) == expected
    together = overlap("x", steps, None)
    assert together.both_s == pytest.approx(sum(expected.values()) / 2)
    assert together.either_s + together.both_s == pytest.approx(sum(together.busy_s.values()))


def test_steps_by_lane_share_and_company() -> None:
    groups = {(group.lane, group.sms, group.beside): group for group in step_groups([(STEPS, None), (STEPS, None)])}
    assert set(groups) == {
        ("prefill", 6, True),
        ("prefill", None, True),
        ("decode", 4, True),
        ("decode", None, True),
        ("decode", 10, False),
        ("decode", None, False),
        ("link", 0, False),
        ("link", None, False),
    }
    decode = groups["decode", 4, True]
    assert (decode.count, decode.measured_s, decode.predicted_s) == (4, 4.0, 3.0)
    assert (decode.ratio_p50, decode.ratio_p10, decode.ratio_p90) == (1.25, 1.0, 1.5)
    assert decode.error == -0.25
    assert decode.weighted_error == 0.25
    assert decode.device_ratio is None
    alone = groups["decode", 10, False]
    assert (alone.error, alone.weighted_error) == (1.0, 1.0)
    (group,) = [g for g in step_groups([(STEPS, launches_of(STEPS, sent=0.2, notice=0.2))]) if g.sms == 10]
    assert group.device_ratio == pytest.approx(0.6 / 2.0)


def test_lanes_busy_at_once() -> None:
    found = overlap("real 1", STEPS, launches_of(STEPS, begin=0.1, notice=0.1))
    assert found.busy_s == pytest.approx({"prefill": 1.8, "decode": 0.3 + 1.3 + 0.8})
    assert found.both_s == pytest.approx(0.3 + 0.3)
    assert found.either_s == pytest.approx(1.8 + 1.0 + 0.8)
    assert found.span_s == pytest.approx(4.8)
    assert found.processor_s == pytest.approx({"prefill": 1.99, "decode": 0.49 + 1.49 + 0.99})
    apart = overlap("x", replace(STEPS, instance=np.array([0, 1, 1, 1, 1])), None)
    assert apart.busy_s == pytest.approx({"prefill 0": 2.0, "decode 1": 3.0})
    assert apart.both_s == pytest.approx(1.0)
    assert apart.processor_s is None


def test_host_time_by_part() -> None:
    """The first step follows an arrival by 0.25 s, the last the end of the third by 0.3 s, for all that came before."""
    steps = step_log(("decode", 4, 1.0, 2.0, 1.0), ("decode", 4, 2.0, 3.0, 1.0), ("decode", 4, 3.3, 4.0, 1.0))
    launches = launches_of(steps, sent=0.1, begin=0.2, notice=0.05)
    seconds = launches.host_s(np.array([0.75, 9.0]))
    assert seconds["react"] == pytest.approx([0.25, 0.0, 0.3])
    rows = {host.part: host for host in host_times([(records(("a", 0.75, 1, 2, 2)), steps, launches)])}
    assert rows["react"].mean_s == pytest.approx(0.55 / 3)
    assert rows["decide"].p50_s == pytest.approx(0.1)
    assert rows["hand_over"].p99_s == pytest.approx(0.2)
    assert rows["notice"].mean_s == pytest.approx(0.05)
    assert rows["notice"].count == 3
    assert launches.device_s == pytest.approx([0.65, 0.65, 0.35])
