"""What must hold for every trace, policy and cache size: nothing lost or doubled, time forward, same in, same out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies import (
    SLO,
    Bullet,
    ChunkedPrefill,
    Disaggregation,
    DuetServe,
    MuxWise,
    NanoFlow,
    Nexus,
    Oracle,
    Pod,
    Policy,
    PrefillFirst,
    SemiPD,
    SglangChunked,
    StaticSplit,
    UncappedStreams,
    VllmChunked,
)
from profiler import roofline
from sim import STATES, RunResult
from tests.toys import serve, toy_latency

FINISHED = STATES.index("finished")
POLICIES: list[tuple[Policy, int]] = [
    (ChunkedPrefill(budget_tokens=16), 1),
    (ChunkedPrefill(budget_tokens=64, max_resident=3), 2),
    (Bullet(layers_per_step=1), 1),
    (Bullet(layers_per_step=3, pause_decode=False, reorder=False), 2),
    (Disaggregation(batch_tokens=32), 2),
    (Disaggregation(prefill_instances=2, decode_instances=1), 3),
    (StaticSplit(batch_tokens=32), 1),
    (StaticSplit(decode_sms=3, layers_per_step=3, lend=True, max_resident=3), 2),
    (SemiPD(window_s=0.5, batch_tokens=32), 1),
    (Nexus(batch_tokens=32, kv_switch=0.5, max_resident=5), 1),
    (DuetServe(budget_tokens=24), 1),
    (MuxWise(sm_step=2, batch_tokens=32), 1),
    (MuxWise(sm_step=3, batch_tokens=64, max_resident=4), 2),
    (PrefillFirst(batch_tokens=32), 1),
    (PrefillFirst(batch_tokens=16, chunked=True, watermark=0.2, max_resident=4), 2),
    (VllmChunked(budget_tokens=16, max_resident=8), 1),
    (VllmChunked(budget_tokens=9, max_resident=4, long_prefill_tokens=5, whole_prompt_fits=False), 1),
    (SglangChunked(budget_tokens=16, max_new_tokens=30), 1),
    (SglangChunked(budget_tokens=24, max_new_tokens=9, init_ratio=0.1, longest_prefix=True, max_resident=5), 2),
    (NanoFlow(budget_tokens=16), 1),
    (Pod(budget_tokens=16), 1),
    (UncappedStreams(batch_tokens=32), 1),
    (Oracle(layers_per_step=3, batch_tokens=128, horizon=2, queue_horizon=16), 1),
    (Oracle(lengths=False, order=False, pause=False, max_resident=4), 2),
    (Oracle(decode_sms=3, typical_tokens=5, sm_step=2), 1),
]

rows = st.lists(
    st.tuples(st.integers(0, 400).map(lambda t: t / 100), st.integers(1, 60), st.integers(1, 25)),
    min_size=1,
    max_size=14,
).map(sorted)
policies = st.sampled_from(POLICIES)
slos = st.sampled_from([SLO(), SLO(ttft_s=0.5, tpot_s=0.15), SLO(ttft_per_token_s=0.02, tpot_s=0.5)])


def run(
    policy: tuple[Policy, int], trace: list[tuple[float, int, int]], slo: SLO, blocks: int, reuse: bool = False
) -> RunResult:
    """On a device whose lanes slow each other, with a cache of ``blocks`` blocks of 4 tokens and the ledger checked."""
    latency = toy_latency(shared_slowdown=1.5, transfer_token_s=0.001)
    return serve(
        policy[0],
        trace,
        latency=latency,
        instances=policy[1],
        slo=slo,
        blocks=blocks,
        block_tokens=4,
        check=True,
        reuse_preempted=reuse,
    )


@settings(max_examples=150, deadline=None)
@given(rows, policies, slos, st.integers(8, 60), st.booleans())
def test_requests_tokens_and_blocks_are_conserved(trace, policy, slo, blocks, reuse):
    """Every request finishes with exactly its tokens unless it can never fit; the ledger is checked at every step."""
    result = run(policy, trace, slo, blocks, reuse)
    records = result.records
    assert len(records) == len(trace)
    fits = [-(-(prompt + output - 1) // 4) <= blocks for _, prompt, output in trace]
    assert ((records.state == FINISHED) == fits).all()
    done = records.state == FINISHED
    assert (records.generated_tokens[done] == records.output_tokens[done]).all()
    assert set(np.array(records.reason)[~done]) <= {"kv_capacity"}
    for index in np.flatnonzero(done):
        assert len(result.token_times[records.request_id[index]]) == records.output_tokens[index]
    gaps = int((records.output_tokens[done] - 1).sum())
    assert int(result.itl_count.sum()) == gaps


@settings(max_examples=80, deadline=None)
@given(rows, policies, slos, st.integers(20, 60))
def test_time_never_runs_backwards(trace, policy, slo, blocks):
    result = run(policy, trace, slo, blocks)
    records, log = result.records, result.steps
    done = records.state == FINISHED
    assert (records.arrival_s[done] <= records.scheduled_s[done]).all()
    assert (records.scheduled_s[done] < records.first_token_s[done]).all()
    assert (records.first_token_s[done] <= records.last_token_s[done]).all()
    assert (np.diff(log.end_s) >= 0).all()
    assert (log.start_s < log.end_s).all()
    for times in result.token_times.values():
        assert (np.diff(times) > 0).all()
    for lane in range(len(log.lane_names)):
        for instance in range(result.instances):
            here = (log.lane == lane) & (log.instance == instance)
            assert (log.start_s[here][1:] >= log.end_s[here][:-1] - 1e-9).all()


@settings(max_examples=60, deadline=None)
@given(rows, policies, slos, st.integers(20, 60))
def test_inter_token_times_agree_with_token_times(trace, policy, slo, blocks):
    """The counts kept as the run goes are those of the token times, request by request and as a whole."""
    result = run(policy, trace, slo, blocks)
    records = result.records
    gaps = {name: np.diff(times) for name, times in result.token_times.items()}
    for index, name in enumerate(records.request_id):
        if len(gaps.get(name, ())):
            assert records.itl_max_s[index] == pytest.approx(gaps[name].max())
            assert records.itl_mean_s[index] == pytest.approx(gaps[name].mean())
    every = np.sort(np.concatenate([*gaps.values(), np.empty(0)]))
    assert np.repeat(result.itl_s, result.itl_count) == pytest.approx(every)


NOBODY_LEFT_TO_DECODE = [
    (0.07, 15, 10),
    (0.08, 45, 13),
    (0.84, 41, 1),
    (1.17, 8, 19),
    (2.41, 50, 4),
    (2.46, 44, 14),
    (2.5, 49, 9),
]
"""With 28 blocks everybody who decodes has to give way to a prompt in progress."""


@settings(max_examples=40, deadline=None)
@given(rows, policies, slos, st.integers(20, 60))
@example(NOBODY_LEFT_TO_DECODE, (Nexus(batch_tokens=32, max_resident=5), 1), SLO(), 28)
def test_the_same_run_twice_is_the_same(trace, policy, slo, blocks):
    first, second = (run(policy, trace, slo, blocks) for _ in range(2))
    for column in ("first_token_s", "last_token_s", "itl_max_s", "instance", "preemptions"):
        assert getattr(first.records, column).tobytes() == getattr(second.records, column).tobytes()
    assert first.steps.end_s.tobytes() == second.steps.end_s.tobytes()


@settings(max_examples=60, deadline=None)
@given(rows, policies, slos, st.tuples(st.integers(0, 400), st.integers(1, 60), st.integers(1, 25)))
def test_one_more_request_loses_no_other(trace, policy, slo, extra):
    """With unbounded queues, whoever finished without it finishes with it."""
    blocks = 60
    before = run(policy, trace, slo, blocks)
    after = run(policy, sorted([*trace, (extra[0] / 100, extra[1], extra[2])]), slo, blocks)
    assert (before.records.state == FINISHED).all()
    assert (after.records.state == FINISHED).all()


@settings(max_examples=40, deadline=None)
@given(rows, policies, st.integers(1, 4))
def test_bounded_queues_reject_with_a_reason_and_count(trace, policy, limit):
    result = serve(
        policy[0], trace, latency=toy_latency(), instances=policy[1], blocks=60, block_tokens=4, queue_limit=limit
    )
    rejected = result.records.state == STATES.index("rejected")
    assert {reason for reason, out in zip(result.records.reason, rejected, strict=True) if out} <= {"queue_full"}
    assert (result.records.state[~rejected] == FINISHED).all()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p[0].name}-{p[1]}")
def test_real_latencies_keep_the_ledger(policy: tuple[Policy, int]):
    """A tight cache on the A100 model: pre-emptions happen, every block comes back, every request finishes."""
    rng = np.random.default_rng(5)
    arrivals = np.cumsum(rng.exponential(0.02, 80))
    prompts, outputs = rng.integers(1, 1500, 80), rng.integers(1, 300, 80)
    trace = list(zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True))
    chosen = policy[0]
    result = serve(
        chosen,
        trace,
        latency=roofline("Llama-3.1-8B", "A100-80G"),
        instances=policy[1],
        slo=SLO(ttft_s=1.0, tpot_s=0.1),
        blocks=400,
    )
    assert (result.records.state == FINISHED).all()
    assert (result.records.generated_tokens == result.records.output_tokens).all()
