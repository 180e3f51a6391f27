"""Timelines worked out by hand: a prompt token takes 10 ms, a decode step 100 ms, whatever the shares."""

from __future__ import annotations

import numpy as np
import pytest

from policies import SLO, Bullet, ChunkedPrefill, Disaggregation
from sim import RunResult
from tests.toys import serve, timeline, token_times, toy_latency


def steps(result: RunResult) -> list[tuple[float, float, str, int, int]]:
    """(start, end, lane, prefill tokens, decoding requests) of each step, in order of completion."""
    return timeline(result, "prefill_tokens", "decode_requests")


def test_chunked_prefill_runs_prompts_and_decodes_in_lock_step():
    """Budget 10. A (12 tokens, 3 out) at 0, B (8 tokens, 2 out) at 0.05.

    0.00-0.10  10 tokens of A
    0.10-0.20  2 of A, 8 of B: both get their first token
    0.20-0.30  both decode: B has its two
    0.30-0.40  A decodes: its third
    """
    result = serve(ChunkedPrefill(budget_tokens=10), [(0.0, 12, 3), (0.05, 8, 2)])
    assert steps(result) == [
        (0.0, 0.1, "main", 10, 0),
        (0.1, 0.2, "main", 10, 0),
        (0.2, 0.3, "main", 0, 2),
        (0.3, 0.4, "main", 0, 1),
    ]
    assert token_times(result) == [[0.2, 0.3, 0.4], [0.2, 0.3]]
    assert result.records.scheduled_s.tolist() == pytest.approx([0.0, 0.1])


def test_chunked_prefill_gives_decodes_their_tokens_first():
    """Budget 10. A decodes while B (20 tokens) comes in chunks of 9: the budget less A's token.

    0.00-0.05  A's 5 tokens
    0.05-0.15  A decodes alone
    0.15-0.34  A and 9 of B: 0.1 + 0.09
    0.34-0.53  A and 9 of B; A has its four tokens
    0.53-0.55  2 of B
    """
    result = serve(ChunkedPrefill(budget_tokens=10), [(0.0, 5, 4), (0.1, 20, 1)])
    assert steps(result) == [
        (0.0, 0.05, "main", 5, 0),
        (0.05, 0.15, "main", 0, 1),
        (0.15, 0.34, "main", 9, 1),
        (0.34, 0.53, "main", 9, 1),
        (0.53, 0.55, "main", 2, 0),
    ]
    assert token_times(result) == [[0.05, 0.15, 0.34, 0.53], [0.55]]


def test_bullet_prefills_by_layer_groups_beside_whole_decode_steps():
    """Groups of 2 of 4 layers. A (10 tokens, 3 out) at 0; B (20 tokens, 2 out) at 0.12.

    prefill  0.00-0.05-0.10 A   0.12-0.22-0.32 B
    decode   0.10-0.20-0.30 A   0.32-0.42 B
    """
    result = serve(Bullet(layers_per_step=2), [(0.0, 10, 3), (0.12, 20, 2)], slo=SLO(ttft_s=10, tpot_s=1))
    assert steps(result) == [
        (0.0, 0.05, "prefill", 10, 0),
        (0.05, 0.1, "prefill", 10, 0),
        (0.1, 0.2, "decode", 0, 1),
        (0.12, 0.22, "prefill", 20, 0),
        (0.2, 0.3, "decode", 0, 1),
        (0.22, 0.32, "prefill", 20, 0),
        (0.32, 0.42, "decode", 0, 1),
    ]
    assert token_times(result) == [[0.1, 0.2, 0.3], [0.32, 0.42]]
    assert result.steps.layers.tolist() == [2, 2, 4, 2, 4, 2, 4]


def test_bullet_slowed_by_its_own_co_runner():
    """The two lanes halve each other: B's prefill and A's decode overlap from 0.1.

    A prefilled by 0.10. B (10 tokens, arriving at 0.10, 0.1 s alone) runs beside A's decode step (0.1 s alone): both
    take until 0.30. Then A decodes again beside B's first decode, in one step of 0.1.
    """
    result = serve(
        Bullet(layers_per_step=4),
        [(0.0, 10, 3), (0.1, 10, 2)],
        slo=SLO(ttft_s=10, tpot_s=1),
        latency=toy_latency(shared_slowdown=2.0),
    )
    assert token_times(result) == [[0.1, 0.3, 0.4], [0.3, 0.4]]


def test_bullet_takes_the_shorter_prompt_first_when_no_ttft_breaks():
    """A (100 tokens) is on until 1.0. B (50) came before C (10): C is prefilled first unless B would miss for it."""
    rows = [(0.0, 100, 1), (0.1, 50, 1), (0.2, 10, 1)]
    policy = Bullet(layers_per_step=4, batch_fill=0.01)
    assert token_times(serve(policy, rows, slo=SLO(ttft_s=10, tpot_s=1))) == [[1.0], [1.6], [1.1]]
    # B would meet 1.45 s in order (1.5 - 0.1) and not after C (1.6 - 0.1).
    assert token_times(serve(policy, rows, slo=SLO(ttft_s=1.45, tpot_s=1))) == [[1.0], [1.5], [1.6]]


def test_bullet_pauses_decode_while_a_ttft_is_in_danger():
    """B (100 tokens at 0.3, 1 s alone) cannot meet 0.9 s, and A's TPOT has room: decode sits B's prefill out.

    Without the pause the lanes halve each other and B takes twice as long.
    """
    rows = [(0.0, 10, 20), (0.3, 100, 1)]
    slo = SLO(ttft_s=0.9, tpot_s=3.0)
    paused = serve(Bullet(layers_per_step=1), rows, slo=slo, latency=toy_latency(shared_slowdown=2.0))
    kept = serve(Bullet(layers_per_step=1, pause_decode=False), rows, slo=slo, latency=toy_latency(shared_slowdown=2.0))
    assert paused.token_times["1"].tolist() == pytest.approx([1.3])
    assert kept.token_times["1"].tolist() == pytest.approx([2.3], abs=0.11)


def test_disaggregation_prefills_here_and_decodes_there():
    """1P1D, KV at 2 ms a token. A (10 tokens, 3 out) at 0, B (20 tokens, 2 out) at 0.

    prefill  0.00-0.30 A and B together (30 tokens)
    link     0.30-0.32 A, 0.32-0.36 B
    decode   0.32-0.42 A, 0.42-0.52 A and B
    """
    result = serve(
        Disaggregation(), [(0.0, 10, 3), (0.0, 20, 2)], instances=2, latency=toy_latency(transfer_token_s=0.002)
    )
    assert token_times(result) == [[0.3, 0.42, 0.52], [0.3, 0.52]]
    assert result.records.instance.tolist() == [1, 1]
    link = [row for row in steps(result) if row[2] == "link"]
    assert [(start, end) for start, end, *_ in link] == [(0.3, 0.32), (0.32, 0.36)]


def test_transfers_from_one_instance_share_its_link():
    """1P2D: both requests leave at 0.2 for different instances; each 10-token transfer (0.1 s alone) takes 0.2."""
    result = serve(
        Disaggregation(decode_instances=2),
        [(0.0, 10, 2), (0.0, 10, 2)],
        instances=3,
        latency=toy_latency(transfer_token_s=0.01),
    )
    assert sorted(result.records.instance.tolist()) == [1, 2]
    assert token_times(result) == [[0.2, 0.5], [0.2, 0.5]]


def test_a_preempted_request_is_recomputed_with_what_it_had():
    """Five blocks of 4 tokens. A (7 tokens, 6 out) and B (8 tokens, 4 out) fill four blocks; both need a fifth.

    0.00-0.15  both prefilled (15 tokens), first tokens; 4 blocks held
    0.15-0.25  A's KV ends inside a block, B's at a border: B takes the fifth
    0.25-0.35  A needs one, none is free: B, the later, is pushed out with 2 tokens; A goes on
    0.35-0.45  A; B (8 + 2 tokens, 3 blocks) does not fit beside A's 3
    ...        until A has its six at 0.65
    0.65-0.75  B's 10 tokens again: its third token; 0.75-0.85 its fourth
    """
    result = serve(ChunkedPrefill(budget_tokens=64), [(0.0, 7, 6), (0.0, 8, 4)], blocks=5, block_tokens=4)
    assert token_times(result) == [[0.15, 0.25, 0.35, 0.45, 0.55, 0.65], [0.15, 0.25, 0.75, 0.85]]
    assert result.records.preemptions.tolist() == [0, 1]
    assert result.records.itl_max_s.tolist() == pytest.approx([0.1, 0.5])


def test_a_preempted_request_takes_over_blocks_that_nobody_has_taken():
    """The same with reuse: B held 3 blocks, A takes the last of them and gets by with its own until it has ended.

    0.65-0.67  B's third block (2 tokens) again: its third token; 0.67-0.77 its fourth
    """
    rows = [(0.0, 7, 6), (0.0, 8, 4)]
    result = serve(ChunkedPrefill(budget_tokens=64), rows, blocks=5, block_tokens=4, reuse_preempted=True)
    assert token_times(result) == [[0.15, 0.25, 0.35, 0.45, 0.55, 0.65], [0.15, 0.25, 0.67, 0.77]]
    assert result.records.cached_tokens.tolist() == [0, 8]


def test_what_others_have_taken_is_computed_again():
    """A goes on for so long that it needs 5 blocks, B's first two among them: B's 10 tokens are prefilled again."""
    rows = [(0.0, 7, 14), (0.0, 8, 4)]
    result = serve(ChunkedPrefill(budget_tokens=64), rows, blocks=5, block_tokens=4, reuse_preempted=True)
    assert token_times(result)[1] == [0.15, 0.25, 1.55, 1.65]
    assert result.records.cached_tokens.tolist() == [0, 0]


def test_an_answer_of_one_token_ends_with_its_prefill():
    result = serve(ChunkedPrefill(), [(0.0, 10, 1)])
    assert token_times(result) == [[0.1]]
    assert np.isnan(result.records.itl_mean_s).all()
    assert len(result.itl_s) == 0


def test_simultaneous_completion_comes_before_arrival_and_both_before_the_decision():
    """A's prefill ends at the instant B arrives: the next step holds A's decode and B's prompt together."""
    result = serve(ChunkedPrefill(), [(0.0, 10, 2), (0.1, 10, 1)])
    assert steps(result)[1] == (0.1, 0.3, "main", 10, 1)


def test_until_stops_the_clock_and_leaves_requests_as_they_are():
    result = serve(ChunkedPrefill(), [(0.0, 10, 5), (0.25, 10, 1), (9.0, 1, 1)], until_s=0.35)
    # 0.1 first token, 0.2 second, then a step for both would end at 0.5.
    assert result.end_s == 0.35
    assert result.records.generated_tokens.tolist() == [3, 0]
    assert result.records.state.tolist() == [2, 2]
