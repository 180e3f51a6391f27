"""Passes of a profile's shapes beside each other, on lanes whose times are known; and what they say of losses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from profiler.fittedmodel import fitted
from profiler.fitting import fit_device
from profiler.losses import CoRun, Losses, losses
from profiler.measure.attention import Sequenced
from profiler.profile import Profile
from real.company import Company, accompanied, losses_now
from real.lanes import Batch, DeviceError, Done, Job
from real.probes import Place, Probe
from tests.toys import cpu_profile

SLOWED = {"prefill": 1.5, "decode": 1.2}
ALONE_S = {"prefill": 0.4, "decode": 0.1}


def kind_of(job: Job) -> str:
    assert isinstance(job.task, Batch)
    return "decode" if job.task.sequences[0].new == 1 else "prefill"


class Neighbourly:
    """Lanes whose jobs take ``ALONE_S``, and ``SLOWED`` times as long while the other lane is at work."""

    slots, slot_tokens = 4, 512

    def __init__(self) -> None:
        self.now_s = 0.0
        self.jobs: list[Job] = []
        self.begun: dict[Place, tuple[Job, float, float]] = {}
        self.settings: dict[str, Any] = {}

    def granted(self, instance: int, lane: str, sms: int) -> int:
        return min((1, 2), key=lambda share: abs(share - sms))

    def submit(self, job: Job) -> None:
        place = job.instance, job.lane
        assert place not in self.begun, "one at a time"
        self.jobs.append(job)
        self.begun[place] = job, self.now_s, ALONE_S[kind_of(job)]

    def wait(self, timeout_s: float | None) -> Done | None:
        assert timeout_s is not None
        if not self.begun:
            return None
        pace = {place: SLOWED[kind_of(job)] if len(self.begun) > 1 else 1.0 for place, (job, *_) in self.begun.items()}
        first = min(self.begun, key=lambda place: self.begun[place][2] * pace[place])
        passed_s = self.begun[first][2] * pace[first]
        self.now_s += passed_s
        job, begin_s, _ = self.begun.pop(first)
        for place, (other, since_s, left_s) in self.begun.items():
            self.begun[place] = other, since_s, left_s - passed_s / pace[place]
        return Done(job.job_id, (), begin_s, self.now_s, 0.0, job.sms)

    def close(self) -> None: ...


def row(
    new: int, requests: int, *, sms: int = 1, other_sms: int = 1, cached: int = 0, latency_s: float = 1.0
) -> dict[str, Any]:
    """Two layers of a prompt of ``new`` tokens beside two of ``requests`` decodes."""
    own = {"kernel": "prefill_layers", "layers": 2, "sms": sms, "latency_s": latency_s}
    shape = {"sequences": 1, "new_tokens": new, "cached_tokens": cached}
    other = {"beside_layers": 2, "beside_decode_requests": requests, "beside_decode_context_tokens": 100}
    return {**own, **shape, "beside": "decode_layers", "beside_sms": other_sms, **other}


def alone(new: int) -> dict[str, Any]:
    return {
        **{"kernel": "prefill_layers", "layers": 2, "sms": 1, "latency_s": 0.5},
        **{"sequences": 1, "new_tokens": new, "cached_tokens": 0},
    }


def profile(*rows: dict[str, Any]) -> Profile:
    return cpu_profile(2, "tiny", [alone(64), *rows])


TWO_LANES: tuple[Place, Place] = ((0, "prefill"), (0, "decode"))
TWO_INSTANCES: tuple[Place, Place] = ((0, "prefill"), (1, "decode"))


def test_each_side_is_timed_alone_and_then_while_the_other_is_at_work() -> None:
    """Beside each other a prompt takes 0.6 s and a step 0.12 s; each runs twice alone, of which the second counts."""
    lanes = Neighbourly()
    prefill, decode = accompanied(profile(row(64, 2)), lanes, TWO_LANES, 8, 0)
    assert (prefill.own.kind, prefill.own.seconds, prefill.seconds) == ("prefill", *map(pytest.approx, (0.4, 0.6)))
    assert (decode.own.kind, decode.own.seconds, decode.seconds) == ("decode", *map(pytest.approx, (0.1, 0.12)))
    assert (prefill.other, decode.other) == (decode.own, prefill.own)
    assert not lanes.begun, "nothing is left on the lanes"
    kinds = list(map(kind_of, lanes.jobs))
    assert kinds[:6] == ["prefill"] * 2 + ["decode"] * 2 + ["prefill", "decode"]
    assert kinds.count("prefill") == 4, "twice alone and twice beside"
    assert {job.task.last for job in lanes.jobs if isinstance(job.task, Batch)} == {8}, "passes"
    assert Company.read(prefill.document()) == prefill


@pytest.mark.parametrize(("places", "slot"), [(TWO_LANES, 1), (TWO_INSTANCES, 0)])
def test_two_lanes_of_an_instance_have_kv_of_their_own(places: tuple[Place, Place], slot: int) -> None:
    lanes = Neighbourly()
    accompanied(profile(row(64, 2)), lanes, places, 8, 0)
    together = [job.task for job in lanes.jobs[4:]]
    decodes = {task.sequences for task in together if isinstance(task, Batch) and len(task.sequences) == 2}
    assert decodes == {(Sequenced(slot, 1, 99), Sequenced(slot + 1, 1, 99))}


def test_pairs_take_turns_and_only_those_that_lanes_can_run() -> None:
    """Not on cores in common, nor where slots are too few or too short; the shortest, as far as they are counted."""
    rows = [
        *(row(128, 1, latency_s=9.0), row(64, 1), row(32, 3, latency_s=2.0), row(16, 2, latency_s=3.0)),
        *(row(64, 4), row(64, 2, other_sms=2), row(64, 2, cached=449), row(8, 1, latency_s=4.0)),
    ]
    found = [
        [side.own.new_tokens for side in accompanied(profile(*rows), Neighbourly(), TWO_LANES, 8, session)[::2]]
        for session in (0, 1)
    ]
    assert found == [[64, 16], [32, 8]]
    two = accompanied(profile(row(64, 4)), Neighbourly(), TWO_INSTANCES, 8, 0)
    assert len(two) == 2, "an instance of its own has all slots"
    assert accompanied(profile(row(64, 1)), Neighbourly(), ((0, "main"), (0, "main")), 8, 0) == []
    gpus = profile(row(64, 1))
    gpus = replace(gpus, provenance=gpus.provenance.model_copy(update={"device": "H100"}))
    assert accompanied(gpus, Neighbourly(), TWO_INSTANCES, 8, 0) == [], "GPUs of their own"
    assert len(accompanied(gpus, Neighbourly(), TWO_LANES, 8, 0)) == 2


def test_layers_that_never_end_beside_others_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Neighbourly, "wait", lambda self, timeout_s: None)
    with pytest.raises(DeviceError, match=r"^layers that took 1 s when profiled took over 120 s$"):
        accompanied(profile(row(64, 1)), Neighbourly(), TWO_LANES, 8, 0)


MODEL = fitted("tiny", fit_device(cpu_profile(2, "tiny")))
PROMPTS = [Probe("prefill", 1, 1, new, 0, 2, 1.0) for new in (16, 64, 256)]
STEPS = [Probe("decode", 1, many, 1, 99, 2, 1.0) for many in (1, 4, 16)]


def slowdown(own: Probe, other: Probe, known: Losses) -> float:
    work, beside = (one.work._replace(layers=None, head=True) for one in (own, other))
    drawn = MODEL.dram_share(beside, other.sms) * MODEL.dram_bound_share(work, own.sms)
    return 1 + known.anyway + known.ceiling * drawn


def test_losses_are_found_from_what_pairs_took() -> None:
    """Those by which the pairs were made, of each kind; from the means of several times that differ."""
    known = {"prefill": Losses(0.1, 0.05), "decode": Losses(0.02, 0.3)}
    company = []
    for prompt in PROMPTS:
        for step in STEPS:
            for own, other in ((prompt, step), (step, prompt)):
                took = slowdown(own, other, known[own.kind])
                for alone_s, late_s in ((0.1, 0.02), (0.3, -0.02)):
                    company.append(Company(own._replace(seconds=alone_s), other, alone_s * took + late_s))
    found = losses_now(MODEL, company)
    assert found.keys() == known.keys()
    for kind, expected in known.items():
        assert found[kind] == pytest.approx(expected, abs=1e-6)
    with_them = MODEL.calibration.with_losses(found).contention
    assert (with_them.prefill_any, with_them.decode) == pytest.approx((0.1, 0.3), abs=1e-6)
    assert with_them.table == MODEL.calibration.contention.table


def test_losses_are_none_where_nothing_ran_beside_another() -> None:
    assert losses_now(MODEL, []) == {}
    assert MODEL.calibration.with_losses({}).contention == MODEL.calibration.contention
    common = CoRun(PROMPTS[0].work, 2, STEPS[0].work, 1, 3.0)
    assert losses(MODEL, [common]) == Losses(), "on cores in common they take turns"


def test_nobody_gains_by_company_nor_loses_more_than_half_of_its_pace() -> None:
    step, prompt = STEPS[0], PROMPTS[0]
    for took, bound in ((0.8, 0.0), (9.0, 1.0)):
        anyway, ceiling = losses(MODEL, [CoRun(step.work, 1, prompt.work, 1, took)])
        assert anyway == pytest.approx(bound, abs=1e-6)
        assert 0 <= ceiling <= 1
