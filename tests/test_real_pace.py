"""How fast a device is now against its profile: layers run again, and the latency model at their pace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from policies.api import LINK
from profiler.composition import AS_ALONE
from profiler.fittedmodel import fitted
from profiler.fitting import fit_device
from profiler.measure.attention import Sequenced
from profiler.profile import Profile
from real import pace as pacing
from real.lanes import Batch, DeviceError, Done, Job
from real.pace import Pace, Session, paced
from real.probes import KINDS, TIMEOUT_S, Probe
from tests.toys import cpu_profile


class Timed:
    """Lanes whose jobs take what ``seconds`` says of (lane, SMs); None never ends. Shares are 1 and 4."""

    slots, slot_tokens = 4, 512

    def __init__(self, seconds: dict[tuple[str, int], Sequence[float] | None]) -> None:
        self.seconds = {key: iter(()) if value is None else iter(value) for key, value in seconds.items()}
        self.jobs: list[Job] = []
        self.settings: dict[str, Any] = {}

    def granted(self, instance: int, lane: str, sms: int) -> int:
        return min((1, 4), key=lambda share: (abs(share - sms), share))

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def wait(self, timeout_s: float | None) -> Done | None:
        job = self.jobs[-1]
        assert timeout_s is not None
        seconds = next(self.seconds[job.lane, job.sms], None)
        return None if seconds is None else Done(job.job_id, (), 5.0, 5.0 + seconds, 0.0, job.sms)

    def close(self) -> None: ...


def layers(kind: str, sms: int, latency_s: float, *, new: int = 1, cached: int = 0, many: int = 1) -> dict[str, Any]:
    shape = (
        {"sequences": many, "new_tokens": new, "cached_tokens": cached}
        if kind == "prefill"
        else {"decode_requests": many, "decode_context_tokens": cached + 1}
    )
    return {"kernel": f"{kind}_layers", "layers": 2, "sms": sms, "latency_s": latency_s, **shape}


def profile() -> Profile:
    """Prefill on 1 and 4 cores, decode on 4; rows that fit no slot, and on shares that are not granted."""
    rows = [
        layers("prefill", 1, 0.4, new=64),
        layers("prefill", 4, 0.1, new=64, cached=448),
        layers("prefill", 4, 9.0, new=64, cached=449),
        layers("prefill", 4, 9.0, new=16, many=5),
        layers("prefill", 2, 9.0, new=16),
        *(layers("decode", 4, 0.01 * many, cached=100 + many, many=many) for many in (1, 2, 3, 4)),
        layers("decode", 4, 0.05, cached=200, many=4),
        layers("decode", 4, 9.0, cached=512, many=2),
    ]
    return cpu_profile(4, "tiny", rows)


NAMES = [("prefill",), ("decode", LINK)]


def test_pace_is_the_mean_over_layers_run_again() -> None:
    """Every row in turns; the layers that run before it do not count."""
    rest = [77.0, 66.0, 66.5]
    prefill = {("prefill", 1): [77.0, 0.8, *rest], ("prefill", 4): [77.0, 0.3, *rest]}
    decode = [77.0, 0.05, 77.0, 0.06, 77.0, 0.03, 77.0, 0.04, 77.0, 0.02]
    lanes = Timed({**prefill, ("decode", 4): decode})
    found = paced(profile(), lanes, NAMES, 8, 1e-6)
    assert dict(found.by_sms("prefill")) == pytest.approx({1: 0.8 / 0.4, 4: 0.3 / 0.1})
    ratios = [0.05 / 0.05, 0.06 / 0.04, 0.03 / 0.03, 0.04 / 0.02, 0.02 / 0.01]
    assert dict(found.by_sms("decode")) == pytest.approx({4: fmean(ratios)})
    assert Pace.read([found.document()]) == found
    rows = found.document()["probes"]
    assert [(row["kind"], row["sms"], row["profiled_s"]) for row in rows] == [
        ("prefill", 1, 0.4),
        ("prefill", 4, 0.1),
        *(("decode", 4, seconds) for seconds in (0.05, 0.04, 0.03, 0.02, 0.01)),
    ]
    assert len(lanes.jobs) == 2 * len(rows) + 6
    assert {(job.instance, job.lane) for job in lanes.jobs} == {(0, "prefill"), (1, "decode")}
    before, first = (job.task for job in lanes.jobs[2:4])
    assert isinstance(first, Batch)
    assert isinstance(before, Batch)
    assert (first.sequences, len(first.tokens), first.first, first.last) == ((Sequenced(0, 64, 448),), 64, 0, 2)
    assert before == first._replace(last=4), "a lane goes on with its last batch alone, so from the first layer on"
    last = lanes.jobs[-7].task
    assert isinstance(last, Batch)
    assert last.sequences == (Sequenced(0, 1, 101),)
    assert found.wakes_s == (0.5, 0.5)


def test_a_lane_that_slept_takes_longer_by_the_mean_over_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same layers after a rest against in a pass, two of those that prefill.

    In descending order of their profiled times: five turns of all seven, then the third and the last.
    """
    slept: list[float] = []
    monkeypatch.setattr(pacing, "sleep", slept.append)
    rows = [layers("prefill", 4, 1e-3 * new, new=new) for new in range(1, 8)]
    times = [*([1.0] * 70), *[9.0, 0.020, 0.023], *[9.0, 0.030, 0.031]]
    lanes = Timed({("prefill", 4): times})
    found = paced(cpu_profile(4, "tiny", rows), lanes, NAMES, 8)
    assert found.wakes_s == pytest.approx((0.003, 0.001))
    assert found.wake_s == pytest.approx(0.002)
    assert slept == [pacing.REST_S] * 2
    tasks = [job.task for job in lanes.jobs[-6:]]
    assert [(len(task.tokens), task.last) for task in tasks if isinstance(task, Batch)] == [
        *((5, 4), (5, 2), (5, 2)),
        *((1, 4), (1, 2), (1, 2)),
    ]
    assert Pace.joined([found, Pace(wakes_s=(-0.001,))]).wake_s == pytest.approx(0.001)
    assert Pace(wakes_s=(-0.001,)).wake_s == 0, "a device is no faster for having slept"
    assert Pace().wake_s == 0


@pytest.mark.parametrize(("seconds", "repeats"), [(1e-3, 5), (0.14, 4), (0.19, 3), (0.4, 1), (3.0, 1)])
def test_layers_are_repeated_as_often_as_two_seconds_allow(seconds: float, repeats: int) -> None:
    """Of the repeats the median counts."""
    turns = [*[99.0, seconds] * (repeats - 1), 99.0, (repeats == 1) * seconds or 55.0]
    lanes = Timed({("prefill", 4): [*turns, 1.0, 1.0, 1.0]})
    found = paced(cpu_profile(4, "tiny", [layers("prefill", 4, seconds, new=64)]), lanes, NAMES, 3)
    assert len(lanes.jobs) == 2 * repeats + 3
    before = lanes.jobs[-5].task
    assert isinstance(before, Batch)
    assert (before.first, before.last) == (0, 3), "no more than there are"
    if repeats > 2:
        assert dict(found.by_sms("prefill")) == pytest.approx({4: 1.0})


@pytest.mark.parametrize(
    ("each_s", "of", "parts"), [(0.01, 12, 1), (0.15, 12, 2), (0.4, 12, 4), (9.0, 12, 4), (9.0, 2, 2), (9.0, 1, 1)]
)
def test_layers_that_take_too_long_take_turns_over_sessions(each_s: float, of: int, parts: int) -> None:
    """Eight rows; each runs as often as every other over a policy's sessions."""
    ran: list[int] = []
    for number in range(of):
        lanes = Timed({("prefill", 4): [each_s] * 500})
        rows = [layers("prefill", 4, each_s, new=new) for new in range(1, 9)]
        found = paced(cpu_profile(4, "tiny", rows), lanes, NAMES, 8, 0.0, Session(number, of))
        assert len(found.probes) == 8 / parts
        ran += [probe.new_tokens for probe in found.probes]
    assert set(Counter(ran).values()) == {of / parts}
    assert set(ran) == set(range(1, 9))


def test_the_model_at_its_pace_says_what_layers_take_now() -> None:
    """Single rows of the profile are too slow or too fast, and the device is another since, by size too."""
    shapes = [*(("prefill", 4, new, 1) for new in (64, 16)), *(("decode", 4, 1, many) for many in (1, 3))]
    shapes.append(("decode", 1, 1, 3))
    plain, rows, probes = fitted("tiny", fit_device(cpu_profile(4))), [], []
    for (kind, sms, new, many), then, now in zip(shapes, (1.3, 0.8, 1.2, 1, 1), (1.1, 1.2, 1.4, 0.9, 1.5), strict=True):
        probe = Probe(kind, sms, many, new, 0, 2, 0.0)
        seconds = plain.device_seconds(probe.work, sms)
        rows.append(layers(kind, sms, then * seconds, new=new, many=many))
        of_row = probe._replace(profiled_s=then * seconds)
        probes += [of_row._replace(seconds=late * now * seconds) for late in (0.4, 1, 1.6)]
    calibration, found = fit_device(cpu_profile(4, "tiny", rows)), Pace(tuple(probes))
    model = fitted("tiny", calibration)
    costs = model.layer_costs.at_pace(*(tuple(found.by_sms(kind)) for kind in KINDS))
    now_model = replace(model, layer_costs=costs, calibration=calibration.with_products(found.products(model)))
    assert dict(found.by_sms("decode")) == pytest.approx({1: 1.5, 4: fmean([1.4 / 1.2, 0.9])})
    for row in probes[1::3]:
        told = now_model.device_seconds(row.work, row.sms) + calibration.host_in_layers_s
        assert told == pytest.approx(row.seconds, rel=1e-6)
    assert Pace().products(model) == AS_ALONE


def test_pace_is_unknown_where_nothing_of_the_profile_fits() -> None:
    found = paced(cpu_profile(4), Timed({}), NAMES, 8)
    assert found.probes == ()
    assert found.document() == {"prefill": [], "decode": [], "probes": [], "wakes_s": [], "company": []}


def test_layers_that_never_end_are_one_line() -> None:
    with pytest.raises(DeviceError, match=r"^layers that took 0.4 s when profiled took over 120 s$"):
        paced(profile(), Timed({("prefill", 1): None}), NAMES, 8)
    assert TIMEOUT_S == 120
