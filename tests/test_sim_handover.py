"""KV from prefill to decode instances, all at the end of the prefill or layer by layer while it runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import SLO, Disaggregation
from profiler import roofline
from real.serving import check_policy
from sim import STATES, RunResult
from tests.toys import serve, timeline, token_times, toy_latency

FINISHED = STATES.index("finished")


def streamed(
    rows: list[tuple[float, int, int]],
    *,
    token_s: float,
    prefill_instances: int = 1,
    decode_instances: int = 1,
    blocks: int = 1000,
    layerwise: bool = True,
) -> RunResult:
    """On the toy device, of 4 layers: a prompt token takes 10 ms and ``token_s`` on the link, a decode step 100 ms."""
    policy = Disaggregation(
        prefill_instances=prefill_instances, decode_instances=decode_instances, layerwise=layerwise, batch_tokens=16
    )
    return serve(
        policy,
        rows,
        latency=toy_latency(transfer_token_s=token_s),
        instances=prefill_instances + decode_instances,
        blocks=blocks,
        block_tokens=4,
    )


def test_a_fast_link_leaves_the_last_layer():
    """0.00-0.10 prefill; 0.00-0.03 three layers of four leave; 0.10-0.11 the last; then decode."""
    result = streamed([(0.0, 10, 3)], token_s=0.004)
    assert timeline(result, "layers") == [
        (0.0, 0.03, "link", 3),
        (0.0, 0.1, "prefill", 4),
        (0.1, 0.11, "link", 1),
        (0.11, 0.21, "decode", 4),
        (0.21, 0.31, "decode", 4),
    ]
    assert token_times(result) == [[0.1, 0.21, 0.31]]


def test_a_slow_link_leaves_what_it_has_not_moved():
    """A transfer of 0.4 s that begins with the prefill of 0.1 s ends 0.4 s after that, and not at 0.5 s."""
    result = streamed([(0.0, 10, 2)], token_s=0.04)
    assert token_times(result) == [[0.1, 0.5]]
    whole = streamed([(0.0, 10, 2)], token_s=0.04, layerwise=False)
    assert token_times(whole) == [[0.1, 0.6]]


@pytest.mark.parametrize("token_s", [0.001, 0.004, 0.01, 0.02, 0.04])
def test_what_is_left_at_the_end_of_the_prefill(token_s):
    """max(T / layers, T - P), for transfers T around the prefill P."""
    transfer_s, prefill_s = 10 * token_s, 0.1
    left_s = streamed([(0.0, 10, 2)], token_s=token_s).token_times["0"][1] - prefill_s - 0.1
    assert left_s == pytest.approx(max(transfer_s / 4, transfer_s - prefill_s))


def test_prompts_of_one_batch_leave_one_after_the_other():
    """0.00-0.12 prefill of both; 0.000-0.018 and 0.018-0.036 three layers each; 0.120-0.126-0.132 the last ones."""
    result = streamed([(0.0, 6, 2), (0.0, 6, 2)], token_s=0.004)
    link = [step[:2] for step in timeline(result) if step[2] == "link"]
    assert link == [(0.0, 0.018), (0.018, 0.036), (0.12, 0.126), (0.126, 0.132)]


def test_a_decode_instance_without_room_fetches_later():
    """A's KV holds 4 of 5 blocks, of the one until 0.1435, of the other until 0.3435; then B's comes whole."""
    rows = [(0.0, 14, 3), (0.05, 14, 2)]
    result = streamed(rows, token_s=0.001, blocks=5)
    assert token_times(result)[0] == [0.14, 0.2435, 0.3435]
    assert token_times(result)[1] == [0.2835, 0.4575]


def test_an_answer_of_one_token_leaves_nothing_behind():
    """Its KV streams although nobody will need it, as no server knows; both sides have all blocks again."""
    result = streamed([(0.0, 10, 1), (1.0, 10, 1)], token_s=0.04)
    assert token_times(result) == [[0.1], [1.1]]
    assert result.steps.free_blocks[result.steps.instance == 0].tolist() == [997, 997]


rows = st.lists(
    st.tuples(st.integers(0, 300).map(lambda t: t / 100), st.integers(1, 40), st.integers(1, 12)),
    min_size=1,
    max_size=12,
).map(sorted)


@settings(max_examples=80, deadline=None)
@given(rows, st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]), st.integers(14, 40), st.sampled_from([0.001, 0.02]))
def test_streams_lose_nothing_and_help(trace, sides, blocks, token_s):
    """The ledger is checked at every step, with little room: requests give way on the decode side."""
    p, d = sides
    result = streamed(trace, token_s=token_s, prefill_instances=p, decode_instances=d, blocks=blocks)
    records = result.records
    assert (records.state == FINISHED).all()
    assert (records.generated_tokens == records.output_tokens).all()


def test_streaming_helps_where_transfers_take_long():
    """Llama-3.1-8B on two A100s: tokens after the first come earlier, and first ones when they did."""
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(0.6, 60)).tolist()
    trace = [(at, int(prompt), 20) for at, prompt in zip(arrivals, rng.integers(2000, 6000, 60), strict=True)]
    seconds = []
    for layerwise in (False, True):
        latency = roofline("Llama-3.1-8B", "A100-80G")
        policy = Disaggregation(layerwise=layerwise)
        records = serve(policy, trace, latency=latency, instances=2, slo=SLO(), blocks=20_000, check=False).records
        seconds.append((records.first_token_s, records.last_token_s))
    assert (seconds[0][0] == seconds[1][0]).all()
    assert seconds[1][1].mean() < seconds[0][1].mean()


def test_devices_refuse_it_in_one_line():
    check_policy(Disaggregation())
    with pytest.raises(ValueError, match="no device runner here moves KV layer by layer"):
        check_policy(Disaggregation(layerwise=True))
