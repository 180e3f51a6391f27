"""Prefill first, vLLM's and SGLang's chunked prefill by hand: a prompt token takes 10 ms, a decode step 100 ms."""

from __future__ import annotations

import pytest

from policies import PrefillFirst, SglangChunked, VllmChunked, load
from profiler import roofline
from sim import RunResult
from tests.toys import serve, timeline, token_times


def steps(result: RunResult) -> list[tuple[float, float, int, int]]:
    """(start, end, prefill tokens, decoding requests) of each step."""
    return [(start, end, *rest) for start, end, _, *rest in timeline(result, "prefill_tokens", "decode_requests")]


LATE = [(0.0, 5, 4), (0.1, 20, 2), (0.2, 30, 1)]
"""A (5 tokens, 4 out) at 0, B (20, 2 out) at 0.1, C (30, 1 out) at 0.2."""


def test_prompts_run_whole_and_decodes_wait_for_all_of_them():
    """A has its first token at 0.05 and decodes once; then B and C come first, and A waits from 0.15 to 0.65."""
    result = serve(PrefillFirst(batch_tokens=20), LATE)
    assert steps(result) == [
        (0.0, 0.05, 5, 0),
        (0.05, 0.15, 0, 1),
        (0.15, 0.35, 20, 0),
        (0.35, 0.65, 30, 0),
        (0.65, 0.75, 0, 2),
        (0.75, 0.85, 0, 1),
    ]
    assert token_times(result) == [[0.05, 0.15, 0.75, 0.85], [0.35, 0.75], [0.65]]


def test_chunks_bound_an_iteration_and_not_the_wait():
    """Chunks of 16: A's third token is as late as before, since the next chunk comes first again."""
    result = serve(PrefillFirst(batch_tokens=16, chunked=True), LATE)
    assert [row[2:] for row in steps(result)] == [(5, 0), (0, 1), (16, 0), (16, 0), (16, 0), (2, 0), (0, 2), (0, 1)]
    assert token_times(result)[0] == [0.05, 0.15, 0.75, 0.85]


@pytest.mark.parametrize(("watermark", "first_token_s"), [(0.0, 0.24), (0.4, 0.64)])
def test_a_prompt_leaves_the_watermark_free_where_others_decode(watermark: float, first_token_s: float):
    """Five blocks of 4: A (4 tokens, 6 out) has one block, from 0.14 two; B (8) needs two, and 0.4 of five stay free.

    With it B waits until A has ended, at 0.54; alone a prompt may have all there is.
    """
    policy = PrefillFirst(watermark=watermark)
    result = serve(policy, [(0.0, 4, 6), (0.1, 8, 1), (2.0, 20, 1)], blocks=5, block_tokens=4)
    assert token_times(result)[1:] == [[pytest.approx(first_token_s - 0.02)], [2.2]]


def test_a_long_prompt_takes_the_budget_until_it_is_through():
    """vLLM, budget 10. B (25 tokens) and C (3) come while A decodes: C is admitted where B's last 7 leave room for 2.

    0.00-0.05  A
    0.05-0.24  A and 9 of B    0.24-0.43  the same    0.43-0.62  A, the last 7 of B, 2 of C
    0.62-0.73  B decodes, the last of C
    """
    result = serve(VllmChunked(budget_tokens=10, max_resident=8), [(0.0, 5, 4), (0.04, 25, 2), (0.05, 3, 1)])
    assert steps(result) == [
        (0.0, 0.05, 5, 0),
        (0.05, 0.24, 9, 1),
        (0.24, 0.43, 9, 1),
        (0.43, 0.62, 9, 1),
        (0.62, 0.73, 1, 1),
    ]
    assert token_times(result) == [[0.05, 0.24, 0.43, 0.62], [0.62, 0.73], [0.73]]


def test_a_limit_on_long_prompts_lets_short_ones_pass():
    """The same with 4 tokens of a prompt an iteration: C starts beside B at once and has its token at 0.21."""
    policy = VllmChunked(budget_tokens=10, max_resident=8, long_prefill_tokens=4)
    result = serve(policy, [(0.0, 5, 4), (0.04, 25, 2), (0.05, 3, 1)])
    assert [row[2:] for row in steps(result)][:4] == [(4, 0), (5, 0), (7, 1), (4, 1)]
    assert token_times(result)[2] == [0.26]


def test_kv_is_taken_chunk_by_chunk_and_the_last_gives_way():
    """Five blocks of 4, budget 8. A (8 tokens, 5 out) takes a third block at 0.08; B (12) needs three.

    Where the whole prompt must fit, B waits for A to end at 0.48. Else it begins beside A with 7 tokens in two blocks,
    finds no third, and gives way itself: in that iteration nobody is admitted, in the next it begins again.
    """
    rows = [(0.0, 8, 5), (0.05, 12, 1)]
    fits = serve(VllmChunked(budget_tokens=8, max_resident=8), rows, blocks=5, block_tokens=4)
    assert token_times(fits) == [[0.08, 0.18, 0.28, 0.38, 0.48], [0.60]]
    assert fits.records.preemptions.tolist() == [0, 0]
    policy = VllmChunked(budget_tokens=8, max_resident=8, whole_prompt_fits=False)
    thrash = serve(policy, rows, blocks=5, block_tokens=4)
    assert [row[2:] for row in steps(thrash)] == [(8, 0), (7, 1), (0, 1), (7, 1), (0, 1), (8, 0), (4, 0)]
    assert thrash.records.preemptions.tolist() == [0, 2]


def test_what_a_prefix_cache_holds_ends_the_thrashing():
    """The same with reuse: B's two blocks are found again, and the third is not there, so it waits."""
    policy = VllmChunked(budget_tokens=8, max_resident=8, whole_prompt_fits=False)
    result = serve(policy, [(0.0, 8, 5), (0.05, 12, 1)], blocks=5, block_tokens=4, reuse_preempted=True)
    assert result.records.preemptions.tolist() == [0, 1]
    assert result.steps.prefill_tokens.sum() < 8 + 7 + 12


def test_one_prompt_part_way_goes_on_first_and_others_leave_whole():
    """SGLang, chunks of 10. B (12 tokens) is cut beside A's decode; then its 3, C's 4 whole, and 2 of D (9)."""
    policy = SglangChunked(budget_tokens=10, max_new_tokens=4)
    result = serve(policy, [(0.0, 5, 4), (0.04, 12, 1), (0.04, 4, 1), (0.04, 9, 1)])
    assert [row[2:] for row in steps(result)] == [(5, 0), (9, 1), (9, 1), (7, 1)]
    assert token_times(result) == [[0.05, 0.24, 0.43, 0.60], [0.43], [0.43], [0.60]]


def test_a_request_waits_for_what_answers_may_take():
    """100 tokens of KV. A (20 tokens) may make 80 more: at 0.7 of 79 set aside, B (10 + 80) waits for A's end at 0.5.

    Where requests ask for 20 tokens there is room for both.
    """
    rows = [(0.0, 20, 4), (0.1, 10, 1)]
    waits = serve(SglangChunked(max_new_tokens=80), rows, blocks=25, block_tokens=4)
    assert token_times(waits) == [[0.2, 0.3, 0.4, 0.5], [0.6]]
    joins = serve(SglangChunked(max_new_tokens=20), rows, blocks=25, block_tokens=4)
    assert token_times(joins) == [[0.2, 0.4, 0.5, 0.6], [0.4]]


def test_the_ratio_falls_with_decode_steps_and_begins_anew():
    """1648 tokens of KV. A (10 tokens, 400 out) may make 999 more, of which 699 are set aside at first.

    B asks for 10 + 1000: it waits until, after so many decode steps, the falling ratio leaves them. C finds the server
    idle, and D waits behind it for as long.
    """
    rows = [(0.0, 10, 400), (0.2, 10, 1), (100.0, 10, 400), (100.2, 10, 1)]
    policy = SglangChunked(max_new_tokens=1000)
    waited = next(n for n in range(400) if left_tokens(n, asked=1000, capacity=1648) > 10 + 1000)
    assert 100 < waited < 200
    times = token_times(serve(policy, rows, blocks=412, block_tokens=4))
    assert times[1] == [pytest.approx(0.1 + 0.1 * waited + 0.2)]
    assert times[3] == [pytest.approx(100 + times[1][0])]


def left_tokens(decoded: int, *, asked: int, capacity: int) -> float:
    """KV tokens not set aside after so many decode steps of a request of 10 prompt tokens, blocks of 4."""
    ratio = max(0.098, 0.7 - decoded * (0.7 - 0.098) / 600)
    # A decode step of the same iteration takes its token's block first.
    held = -(-(10 + decoded + 1) // 4) * 4
    return capacity - held - ratio * (asked - 1 - decoded)


def test_the_least_generated_give_way_until_the_rest_have_room():
    """Ten blocks of 4. A, B and C (8 tokens, 9 out each) come at 0, 0.06 and 0.2 and hold them all by 0.74.

    0.00-0.08 A   0.08-0.26 A, B   0.26-0.44 A, B, C   0.44-0.54-0.64-0.74 all decode, the last with no block to spare
    0.74-0.84     A needs a fifth: C, with 4 tokens, gives its 3 back, which leaves less than 20 tokens for each of two,
                  so B goes as well
    0.84-1.07     B (8 + 5 tokens) again beside A; C (8 + 4) does not fit until A has ended
    """
    rows = [(0.0, 8, 9), (0.06, 8, 9), (0.2, 8, 9)]
    result = serve(SglangChunked(max_new_tokens=1, budget_tokens=64), rows, blocks=10, block_tokens=4)
    assert steps(result)[:8] == [
        (0.0, 0.08, 8, 0),
        (0.08, 0.26, 8, 1),
        (0.26, 0.44, 8, 2),
        (0.44, 0.54, 0, 3),
        (0.54, 0.64, 0, 3),
        (0.64, 0.74, 0, 3),
        (0.74, 0.84, 0, 1),
        (0.84, 1.07, 13, 1),
    ]
    assert result.records.preemptions.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("name", "settings", "complaint"),
    [
        ("prefill-first", {"batch_tokens": 0}, "prefill-first: batch_tokens is 0; it must be 1 or more"),
        ("prefill-first", {"max_resident": 0}, "prefill-first: max_resident is 0; it must be 1 or more"),
        ("prefill-first", {"watermark": 1.0}, "prefill-first: watermark is 1.0; it must be at least 0 and below 1"),
        ("prefill-first", {"chunked": 1}, "setting chunked is 1; it takes bool"),
        ("vllm-chunked", {"max_resident": 0}, "vllm-chunked: max_resident is 0; it must be 1 or more"),
        ("vllm-chunked", {"long_prefill_tokens": 0}, "vllm-chunked: long_prefill_tokens is 0; it must be 1 or more"),
        (
            "vllm-chunked",
            {"budget_tokens": 255},
            "vllm-chunked: budget_tokens is 255 and max_resident 256; a budget is at least one token for every request",
        ),
        ("sglang-chunked", {"budget_tokens": 0}, "sglang-chunked: budget_tokens is 0; it must be 1 or more"),
        ("sglang-chunked", {"max_new_tokens": -1}, "sglang-chunked: max_new_tokens is -1; it must be 1 or more"),
        ("sglang-chunked", {"init_ratio": 0.0}, "sglang-chunked: init_ratio is 0.0; it must be above 0 and at most 1"),
    ],
)
def test_settings_are_refused_in_one_line(name: str, settings: dict[str, object], complaint: str):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        load(name, settings)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["prefill-first", "vllm-chunked", "sglang-chunked"])
def test_repeated_decode_steps_are_those_of_asking_each_time(name: str):
    """The executor's short cut changes nothing, to the bit."""
    rows = [(0.02 * i, 40 + 37 * i % 900, 5 + 11 * i % 60) for i in range(40)]
    policy, latency = load(name), roofline("Llama-3.1-8B", "A100-80G")
    fast, plain = (serve(policy, rows, latency=latency, blocks=400, plain=plain) for plain in (False, True))
    assert fast.steps.end_s.tobytes() == plain.steps.end_s.tobytes()
    assert fast.records.preemptions.tolist() == plain.records.preemptions.tolist()
