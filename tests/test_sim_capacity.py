"""Capacity: what is found is what a fine grid finds, in few simulations, and what is said to be certain is."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

import sim.capacity
from sim.capacity import Question, Search
from sim.config import PolicySettings, RunConfig, SloSettings, WindowSettings
from sim.intervals import interval
from sim.metrics import Window, knee
from sim.simulate import measure, prepare
from sim.sizing import best_setting, fewest_instances, split_row, xy_row
from sim.verdict import Cut, Verdict
from traces.progress import Progress

QUESTION = Question(seeds=3)


def config(policy: str = "chunked", **changes: object) -> RunConfig:
    return RunConfig(
        trace="workload:chat",
        requests=100,
        policy=PolicySettings(name=policy),
        model="tiny",
        device="A100-80G",
        slo=SloSettings(ttft_s=0.05, tpot_s=0.0012),
    ).model_copy(update=changes)


def grid_attainment(run: RunConfig, rate: float) -> float:
    """The mean attainment over the seeds of QUESTION, each run to its end."""
    found = []
    for seed in range(QUESTION.seeds):
        one = run.model_copy(update={"rate": rate, "seed": seed})
        prepared = prepare(one)
        arrivals = prepared.arrivals.apply(prepared.trace, seed).arrival_s
        assert arrivals is not None
        window = Cut(warmup=QUESTION.warmup, drain=QUESTION.drain).window(arrivals)
        settings = WindowSettings(warmup_s=window.warmup_s, drain_s=window.drain_s)
        attainment = measure(one.model_copy(update={"window": settings})).attainment
        assert attainment is not None
        found.append(attainment)
    return sum(found) / len(found)


def test_capacity_is_the_knee_of_a_fine_grid_in_a_tenth_of_its_simulations() -> None:
    foreseen: list[int] = []
    search = Search(
        question=QUESTION, tell=lambda text: foreseen.append(search.tested.simulations + search.outlook.ahead)
    )
    found = search.capacity(config())
    assert search.outlook.ahead == 0
    # The last halvings and refinements, of which it is known about how many there will be.
    assert foreseen[-4:] == pytest.approx([search.tested.simulations] * 4, abs=4)
    rates = [found.rate * 1.015**step for step in (-15, -5, -3, -1, 1, 3, 5, 15)]  # of the grid, for the test's time
    expected = knee(rates, [grid_attainment(config(), rate) for rate in rates]).rate
    assert expected is not None
    assert found.rate == pytest.approx(expected, rel=0.02)
    # A grid at 1.5 % over the decade that the search began with, from nothing known.
    assert search.tested.simulations <= 0.1 * math.log(10) / math.log(1.015) * QUESTION.seeds


def steep(at: float, noise: dict[int, float]) -> Callable[..., Verdict]:
    """Runs of 1,000 requests whose attainment falls from 1 at half of ``at`` to 0.9 there, some points off by seed."""

    def judge(
        run: RunConfig, target: float, cut: Cut | None = None, *, to_the_end: bool, progress: Progress
    ) -> Verdict:
        assert run.rate is not None
        capacity = at * run.instances
        share = min(1.0, max(0.0, 1 - 0.1 * (run.rate / capacity - 0.5) * 2 + noise.get(run.seed, 0.0)))
        met, kept = round(1000 * share), share >= target
        return Verdict(kept=kept, judged=1000, met=met, missed=1000 - met, window=Window(), stopped_s=None)

    return judge


class Foreseen(Search):
    """Notes after each run how many there were to be at least."""

    def __init__(self, question: Question) -> None:
        self.totals: list[int] = []
        super().__init__(question=question, tell=self._note)

    def _note(self, text: str) -> None:
        if self.outlook.least:
            self.totals.append(self.tested.simulations + self.outlook.ahead)

    def check(self) -> None:
        """From the first run on something was foreseen, never more than came, and in the end it was all."""
        took = self.tested.simulations
        assert self.totals[0] > 2
        assert max(self.totals) <= took
        assert self.outlook.ahead == 0


def test_seeds_are_added_until_the_interval_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim.capacity, "judge", steep(10.0, {0: 0.01, 1: -0.01, 2: 0.005, 3: -0.005, 4: 0.0}))
    search = Foreseen(question=Question(seeds=5))
    found = search.capacity(config())
    search.check()
    assert found.rate == pytest.approx(10.0, rel=0.01)
    assert found.kept is not None
    assert found.missed is not None
    assert found.kept < found.rate < found.missed
    tried = {point.rate: point for point in found.points}
    assert tried[found.kept].mean > 0.9
    assert min(len(point.attainments) for point in found.points) < 5
    for point in found.points:
        assert (len(point.attainments) == 5) or point.decision != "undecided"


def test_runs_that_were_stopped_are_run_to_their_end_where_seeds_differ_widely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds are overloaded, 0.4, and three have 1: with 0.8 for what was stopped the mean would keep 0.9."""
    asked: list[tuple[int, float]] = []

    def judge(
        run: RunConfig, target: float, cut: Cut | None = None, *, to_the_end: bool, progress: Progress
    ) -> Verdict:
        asked.append((run.seed, target))
        met = 400 if run.seed in (1, 3) else 1000
        stopped_s = 7.0 if met / 1000 < target else None
        counted = 0 if stopped_s else met
        return Verdict(kept=not stopped_s, judged=1000, met=counted, missed=201, window=Window(), stopped_s=stopped_s)

    monkeypatch.setattr(sim.capacity, "judge", judge)
    question = Question(seeds=5)
    found = Search(question=question).decide(config(rate=1.0))
    assert found.attainments == (1.0, 0.4, 1.0, 0.4, 1.0)
    assert found.decision == "undecided"
    assert asked == [*((seed, question.floor) for seed in range(5)), (1, 0.0), (3, 0.0)]


def test_what_no_rate_keeps_and_what_every_rate_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim.capacity, "judge", steep(10.0, {0: -1.0}))
    assert Search(question=QUESTION).capacity(config()).rate == 0.0
    monkeypatch.setattr(sim.capacity, "judge", steep(10.0, {0: 1e9}))
    assert Search(question=QUESTION).capacity(config()).rate == math.inf


@pytest.mark.parametrize("rate", [5.0, 10.2, 55.0])
def test_the_fewest_instances(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim.capacity, "judge", steep(9.99, {}))
    search = Foreseen(question=QUESTION)
    found = fewest_instances(search, config(rate=rate))
    search.check()
    assert found.instances == math.ceil(rate / 9.99)
    assert found.point.decision == "kept"
    assert (found.below is None) == (found.instances == 1)
    assert found.below is None or found.below.decision == "missed"


def test_the_peak_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefill and decode fall and rise along the row; here they meet at 24 of the 108 SMs."""

    def judge(
        run: RunConfig, target: float, cut: Cut | None = None, *, to_the_end: bool, progress: Progress
    ) -> Verdict:
        sms = run.policy.settings["decode_sms"]
        return steep(min(sms / 24, (108 - sms) / 84) * 10, {})(
            run, target, cut, to_the_end=to_the_end, progress=progress
        )

    monkeypatch.setattr(sim.capacity, "judge", judge)
    search = Foreseen(question=QUESTION)
    found = best_setting(search, split_row(config("static-split")))
    search.check()
    assert found.name == "84+24 SMs"
    assert found.capacity.rate == pytest.approx(10.0, rel=0.01)
    assert set(found.neighbours) == {"86+22 SMs", "82+26 SMs"}
    assert len(found.tried) < 12


def test_rows_of_disaggregation() -> None:
    row = xy_row(config("disaggregation", instances=4))
    assert [name for name, _ in row] == ["1P3D", "2P2D", "3P1D"]
    for _, run in row:
        prepare(run.model_copy(update={"rate": 1.0}))
    with pytest.raises(ValueError, match="needs 2 or more"):
        xy_row(config("disaggregation"))


def test_instances_of_disaggregation_are_not_added_one_by_one() -> None:
    with pytest.raises(ValueError, match="cannot be added one by one"):
        fewest_instances(Search(question=QUESTION), config("disaggregation", rate=1.0))


def test_parts_of_one_device_are_no_gpus_to_buy() -> None:
    part = config(rate=1.0).model_copy(update={"instance_sms": 1, "shared_device": True})
    with pytest.raises(ValueError, match="shared_device is true, and a search for GPUs adds them"):
        fewest_instances(Search(question=QUESTION), part)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": 1.5}, "target is 1.5"),
        ({"confidence": 1.0}, "confidence is 1"),
        ({"seeds": 1}, "seeds is 1"),
        ({"warmup": 0.5, "drain": 0.5}, "leave nothing to judge"),
    ],
)
def test_wrong_questions(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Question(**change)  # type: ignore[arg-type]


def test_without_an_slo_there_is_nothing_to_keep() -> None:
    with pytest.raises(ValueError, match="there is no SLO to keep"):
        Search(question=QUESTION).capacity(config(slo=SloSettings()))


def test_students_interval() -> None:
    found = interval([1.0, 2.0, 3.0, 4.0], 0.95)
    assert (found.low, found.high) == pytest.approx((2.5 - 2.054, 2.5 + 2.054), abs=1e-3)  # t(3) = 3.182, s = 1.291
    assert math.isinf(interval([1.0]).half_width)
    with pytest.raises(ValueError, match="at least one value"):
        interval([])
