"""Real runs against a simulated one: every number of the comparison on runs small enough to work out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from real.comparison import Cell, Side, compare, judged, load_side, orders
from real.launches import LaunchLog, load_launches, write_launches
from sim.metrics import summarise
from sim.records import STATES, Records, RunResult, StepLog
from sim.rundir import Run, write_run
from tests.worlds import prepared, simulated

NAN = math.nan
CONFIG = prepared("chunked").config


def records(*rows: tuple[str, float, float, float, int]) -> Records:
    """Rows of (id, arrival, first token, last token, tokens); without a last token a request is still running."""
    ids, arrival, first, last, tokens = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    count = len(ids)
    done = [not math.isnan(at) for at in last]
    return Records(
        request_id=tuple(ids),
        arrival_s=np.array(arrival, np.float64),
        prompt_tokens=np.full(count, 10),
        output_tokens=np.array(tokens, np.int64),
        generated_tokens=np.array(tokens, np.int64),
        scheduled_s=np.array(arrival, np.float64),
        first_token_s=np.array(first, np.float64),
        last_token_s=np.array(last, np.float64),
        itl_mean_s=np.full(count, NAN),
        itl_max_s=np.full(count, NAN),
        preemptions=np.zeros(count, np.int64),
        cached_tokens=np.zeros(count, np.int64),
        instance=np.zeros(count, np.int64),
        state=np.array([STATES.index("finished" if ended else "running") for ended in done], np.int8),
        reason=("",) * count,
    )


def step_log(*rows: tuple[str, int, float, float, float], instances: Sequence[int] | None = None) -> StepLog:
    """Rows of (lane, SMs, start, end, predicted)."""
    lanes, sms, start, end, predicted = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    names = tuple(dict.fromkeys(lanes))
    prefill = np.array([lane == "prefill" for lane in lanes], np.int64)
    zeros = np.zeros(len(rows), np.int64)
    return StepLog(
        lane_names=names,
        start_s=np.array(start, np.float64),
        end_s=np.array(end, np.float64),
        instance=zeros if instances is None else np.array(instances, np.int64),
        lane=np.array([names.index(lane) for lane in lanes], np.int8),
        sms=np.array(sms, np.int64),
        prefill_tokens=10 * prefill,
        prefill_requests=prefill,
        decode_requests=1 - prefill,
        context_tokens=zeros + 20,
        layers=zeros + 4,
        predicted_s=np.array(predicted, np.float64),
        waiting=zeros,
        free_blocks=zeros,
    )


STEPS = step_log(
    ("prefill", 6, 0.0, 2.0, 1.0),
    ("decode", 4, 1.0, 1.5, 0.5),
    ("decode", 4, 1.5, 3.0, 1.0),
    ("decode", 10, 4.0, 5.0, 2.0),
    ("link", 0, 4.0, 5.0, 0.5),
)


def side(found: Records, steps: StepLog | None = None, launches: LaunchLog | None = None, **facts: Any) -> Side:
    steps = step_log() if steps is None else steps
    result = outcome(found, steps)
    summary = summarise(result, CONFIG.slo.value(), CONFIG.gpus).to_dict()
    return Side(run=Run(config=CONFIG, records=found, steps=steps, summary=summary), launches=launches, facts=facts)


def outcome(found: Records, steps: StepLog) -> RunResult:
    nothing = np.zeros(0)
    return RunResult(
        records=found,
        steps=steps,
        itl_s=nothing,
        itl_count=nothing.astype(np.int64),
        source_s={},
        end_s=10.0,
        sm_seconds=0.0,
        instances=1,
        sms=10,
    )


def launches_of(steps: StepLog, sent: float = 0.0, begin: float = 0.0, notice: float = 0.0) -> LaunchLog:
    """Launches whose host parts last so long."""
    return LaunchLog(
        start_s=steps.start_s,
        sent_s=steps.start_s + sent,
        begin_s=steps.start_s + sent + begin,
        finish_s=steps.end_s - notice,
        end_s=steps.end_s,
        processor_s=steps.end_s - steps.start_s - 0.01,
        granted_sms=steps.sms,
    )


def times(ttft: float, e2e: float, tokens: int = 11) -> tuple[str, float, float, float, int]:
    return ("a", 1.0, 1.0 + ttft, 1.0 + e2e, tokens)


def cell(real: Sequence[Side], simulated: Side, policy: str = "p", rate: float = 2.0) -> Cell:
    return Cell(policy=policy, rate=rate, real=tuple(real), simulated=simulated)


def test_a_statistic_by_hand() -> None:
    found = judged("ttft_s", "p50", 1.2, [1.0, 1.3, 1.1], 0.1)
    assert found.measured == pytest.approx(3.4 / 3), "the mean, and not the run in the middle"
    assert found.error == pytest.approx((1.2 - 3.4 / 3) / (3.4 / 3))
    assert found.repeatability == pytest.approx(0.3 / (3.4 / 3))
    assert found.spread == pytest.approx(0.3)
    assert found.within is True


@pytest.mark.parametrize(
    ("simulated", "runs", "within"),
    [
        (1.09, [1.0], True),
        (1.11, [1.0], False),
        (0.89, [1.0], False),
        (1.19, [0.9, 1.1], True),  # repeatable to 20 % only
        (1.21, [0.9, 1.1], False),
        (None, [1.0], None),
        (1.0, [None, None], None),
        (1.0, [0.0], None),
        (1.05, [None, 1.0], True),
    ],
)
def test_within_the_limit_or_what_the_machine_repeats(
    simulated: float | None, runs: list[float | None], within: bool | None
) -> None:
    assert judged("ttft_s", "p50", simulated, runs, 0.1).within is within


def test_rates_are_of_all_gpus_together() -> None:
    two = simulated("disaggregation")
    found = compare(cell([two], two))
    span_s = found.statistic("makespan_s", "whole").measured
    rate = found.statistic("requests_per_s", "whole").measured
    assert span_s is not None
    assert rate == pytest.approx(60 / span_s)


def test_only_headlines_are_judged() -> None:
    found = compare(cell([side(records(times(0.5, 1.5)))], side(records(times(0.6, 1.55)))))
    assert [(each.metric, each.part) for each in found.statistics if each.within is not None] == [
        ("ttft_s", "p50"),
        ("tpot_s", "p50"),
        ("e2e_s", "p50"),
    ]
    assert [headline.within for headline in found.headlines] == [False, True, True]
    ttft, tpot, e2e = found.headlines
    assert (ttft.simulated, ttft.measured) == (pytest.approx(0.6), pytest.approx(0.5))
    assert (tpot.simulated, tpot.measured) == (pytest.approx(0.095), pytest.approx(0.1))
    assert e2e.error == pytest.approx(0.05 / 1.5)
    assert found.statistic("makespan_s", "whole").error == pytest.approx(0.05 / 1.5)
    assert found.statistic("tokens_per_s", "whole").measured == pytest.approx(11 / 1.5)
    assert found.statistic("requests_per_s", "whole").measured == pytest.approx(1 / 1.5)


def test_answers_of_one_token_have_no_tpot_and_no_verdict_on_it() -> None:
    one = side(records(times(0.5, 0.5, tokens=1)))
    found = compare(cell([one, one], one))
    tpot = found.statistic("tpot_s", "p50")
    assert (tpot.simulated, tpot.measured, tpot.error, tpot.within) == (None, None, None, None)
    assert found.statistic("ttft_s", "p50").within is True


def test_runs_in_which_nothing_finished_compare_to_nothing() -> None:
    none = side(records(("a", 1.0, NAN, NAN, 0)))
    empty = side(records())
    for found in (compare(cell([none], none)), compare(cell([empty], empty)), compare(cell([none], empty))):
        assert all(statistic.error is None for statistic in found.statistics)
        assert all(headline.within is None for headline in found.headlines)
        assert found.steps == ()


def test_a_run_that_was_cut_off_does_not_count_beside_a_whole_one() -> None:
    whole = side(records(times(0.5, 1.5)))
    cut = side(records(times(9.0, 9.5)), finished=False)
    found = compare(cell([cut, whole], whole))
    assert not found.cell.partial
    assert found.statistic("ttft_s", "p50").runs == (pytest.approx(0.5),)


def test_where_all_runs_were_cut_off_common_requests_count() -> None:
    simulated = side(records(("a", 0.0, 1.0, 2.0, 2), ("b", 0.0, 3.0, 4.0, 2), ("c", 0.0, 5.0, 6.0, 2)))
    one = side(records(("a", 0.0, 1.1, 2.0, 2), ("b", 0.0, 3.3, 4.0, 2), ("c", 0.0, 5.0, NAN, 1)), finished=False)
    two = side(records(("a", 0.0, 1.1, 2.0, 2), ("b", 0.0, 3.0, NAN, 1)), finished=False)
    found = compare(cell([one, two], simulated))
    assert found.cell.partial
    assert found.cell.among == {"a"}
    assert found.statistic("ttft_s", "mean").simulated == 1.0
    assert found.statistic("ttft_s", "mean").runs == (pytest.approx(1.1), pytest.approx(1.1))
    assert found.statistic("makespan_s", "whole").simulated is None


def test_requests_are_paired_by_id() -> None:
    simulated = side(records(("a", 0.0, 1.0, 2.0, 2), ("b", 1.0, 2.0, 3.0, 2), ("c", 2.0, 3.0, 4.0, 1)))
    one = side(records(("b", 1.0, 2.5, 3.0, 2), ("a", 0.0, 1.0, 2.0, 2), ("x", 5.0, 6.0, 7.0, 2)))
    two = side(records(("b", 1.0, 3.5, 4.0, 2), ("a", 0.0, 1.0, NAN, 1)))
    found = compare(cell([one, two], simulated)).paired
    assert found.request_id == ("a", "b")
    assert found.simulated["ttft_s"].tolist() == [1.0, 1.0]
    assert found.measured["ttft_s"].tolist() == [1.0, 2.0]
    assert found.measured["e2e_s"].tolist() == [2.0, 2.5]
    assert found.errors("ttft_s").tolist() == [0.0, 0.5]


def test_order_of_policies() -> None:
    def policy(name: str, measured: tuple[float, float], simulated: float) -> Cell:
        real = [side(records(times(ttft, ttft + 1.0))) for ttft in measured]
        return cell(real, side(records(times(simulated, simulated + 1.0))), policy=name)

    cells = [policy("a", (1.0, 1.2), 1.0), policy("b", (1.2, 1.2), 0.9), policy("c", (2.0, 2.0), 0.95)]
    found = orders([compare(each) for each in cells])
    ttft = next(order for order in found if order.metric == "ttft_s")
    assert ttft.measured == ("a", "b", "c")
    assert ttft.simulated == ("b", "c", "a")
    verdicts = {(pair.first, pair.second): (pair.equal, pair.agree) for pair in ttft.pairs}
    # a and b are 0.1 apart and a repeats itself to 0.2; c is above a in truth and below it in the simulation.
    assert verdicts == {("a", "b"): (True, True), ("a", "c"): (False, False), ("b", "c"): (False, True)}
    assert not ttft.agree
    tpot = next(order for order in found if order.metric == "tpot_s")
    assert tpot.agree
    assert orders([compare(cells[0])]) == ()


def test_a_policy_without_a_value_has_no_place_in_the_order() -> None:
    some = side(records(times(1.0, 2.0)))
    none = side(records(("a", 1.0, NAN, NAN, 0)))
    cells = [cell([some], some, "a"), cell([none], some, "b"), cell([some], some, "c")]
    assert {order.measured for order in orders([compare(each) for each in cells])} == {("a", "c")}


def test_launches_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "launches.parquet"
    launches = replace(launches_of(STEPS, sent=0.1), processor_s=np.array([NAN, 1.0, 1.0, 1.0, NAN]))
    write_launches(path, launches)
    back = load_launches(path)
    for name in ("start_s", "sent_s", "begin_s", "finish_s", "end_s", "processor_s", "granted_sms"):
        np.testing.assert_array_equal(getattr(back, name), getattr(launches, name))
        assert getattr(back, name).dtype == getattr(launches, name).dtype
    write_launches(path, replace(launches, begin_s=launches.begin_s - 1.0))
    with pytest.raises(ValueError, match=r"launches\.parquet, row 0: sent_s is 0\.1 and begin_s is -0\.9"):
        load_launches(path)
    with pytest.raises(ValueError, match="differ in length"):
        replace(launches, granted_sms=np.zeros(2, np.int64))


def written(directory: Path, found: Side) -> Path:
    """A run's directory with all that a real one holds."""
    result = outcome(found.run.records, found.run.steps)
    write_run(directory, CONFIG, result, summarise(result, CONFIG.slo.value(), CONFIG.gpus))
    if found.launches is not None:
        write_launches(directory / "launches.parquet", found.launches)
    if found.facts:
        (directory / "real.json").write_text(json.dumps(dict(found.facts)))
    return directory


def test_a_side_is_its_directory(tmp_path: Path) -> None:
    made = side(records(times(0.5, 1.5)), STEPS, launches_of(STEPS), finished=False)
    back = load_side(written(tmp_path / "real", made))
    assert not back.finished
    assert back.launches is not None
    assert back.run.records.request_id == ("a",)
    assert compare(cell([back], back)).statistics == compare(cell([made], made)).statistics
    plain = load_side(written(tmp_path / "simulated", side(records(times(0.5, 1.5)))))
    assert plain.launches is None
    assert plain.finished


def test_bad_input_is_refused(tmp_path: Path) -> None:
    short = launches_of(step_log(("decode", 4, 1.0, 2.0, 1.0)))
    directory = written(tmp_path / "run", side(records(times(0.5, 1.5)), STEPS))
    write_launches(directory / "launches.parquet", short)
    with pytest.raises(ValueError, match=r"run: launches\.parquet has 1 rows and steps\.parquet 5"):
        load_side(directory)
    (directory / "launches.parquet").unlink()
    (directory / "real.json").write_text("[]")
    with pytest.raises(ValueError, match=r"real\.json holds no object"):
        load_side(directory)
    with pytest.raises(ValueError, match="bullet at 2 requests/s has no real run"):
        cell([], side(records()), "bullet")
    with pytest.raises(ValueError, match="limit is 0"):
        compare(cell([side(records())], side(records())), limit=0)
