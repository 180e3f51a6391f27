"""The prefix cache: what is found, what it is worth, and that no block is lost or counted twice."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traces
from policies import SLO, Bullet, ChunkedPrefill, Disaggregation, Policy
from sim import STATES, RunResult
from sim.config import RunConfig
from sim.ledger import BlockLedger
from sim.prefixcache import CachedPrefix, Chain, HashedBlocks, PrefixCache
from sim.simulate import prepare
from tests.test_sim_properties import POLICIES
from tests.toys import SHARED, serve, timeline, token_times, toy_latency
from traces.arrivals import OpenArrivals
from traces.request import Provenance, Trace

FINISHED = STATES.index("finished")
SIZE, HASHED = 4, 8
STREAMING = Disaggregation(prefill_instances=2, decode_instances=1, layerwise=True, batch_tokens=32)
MOONCAKE = SHARED / "traces/mooncake/conversation_trace.jsonl"


class Row(NamedTuple):
    """A request with the hashes of its blocks of 8 tokens."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    hashes: tuple[int, ...]


def hashed(rows: Sequence[Row]) -> Trace:
    arrivals, prompts, outputs, hashes = zip(*rows, strict=True)
    return Trace(
        provenance=Provenance(source="test", format="rows"),
        arrival_s=np.array(arrivals, dtype=np.float64),
        prompt_tokens=np.array(prompts, dtype=np.int64),
        output_tokens=np.array(outputs, dtype=np.int64),
        block_hashes=tuple(hashes),
        block_tokens=HASHED,
    )


def served(
    policy: Policy, trace: Trace, *, instances: int = 1, blocks: int = 1000, slo: SLO | None = None
) -> RunResult:
    """With a cache of blocks of 4 tokens, on the toy device: a prompt token takes 10 ms and a decode step 100 ms."""
    assert trace.block_tokens is not None
    return serve(
        policy,
        arrivals=OpenArrivals(trace),
        latency=toy_latency(shared_slowdown=1.5, transfer_token_s=0.001),
        instances=instances,
        blocks=blocks,
        block_tokens=SIZE,
        slo=slo,
        prefixes=HashedBlocks(trace.block_tokens, trace.answers_hashed),
    )


def test_a_prompt_begins_after_what_an_earlier_one_left():
    """B shares A's first 8 tokens and computes 2; C has nothing else and computes its last block, for one token."""
    rows = [Row(0.0, 10, 1, (1, 2)), Row(1.0, 10, 1, (1, 3)), Row(2.0, 8, 1, (1,)), Row(3.0, 10, 1, (4, 2))]
    result = served(ChunkedPrefill(), hashed(rows))
    assert token_times(result) == [[0.1], [1.02], [2.04], [3.1]]
    assert result.records.cached_tokens.tolist() == [0, 8, 4, 0]
    assert result.prefixes is not None
    assert (result.prefixes.asked_tokens, result.prefixes.hit_tokens, result.prefixes.evicted_blocks) == (38, 12, 0)


def test_a_running_request_shares_what_it_has_computed():
    """B comes while A decodes: A's 4 blocks count once, so the pool of 6 holds both."""
    rows = [Row(0.0, 16, 6, (1, 2)), Row(0.3, 18, 2, (1, 2, 3))]
    result = served(ChunkedPrefill(), hashed(rows), blocks=6)
    # 0.16 A's first token, 0.26, 0.36; then B's 2 tokens beside A's decode.
    assert token_times(result)[1] == [0.48, 0.58]
    assert result.records.cached_tokens.tolist() == [0, 16]
    assert result.records.preemptions.tolist() == [0, 0]


def test_equal_prompts_computed_together_leave_one_copy():
    """Neither finds the other; afterwards 2 blocks are shared and the others are free again."""
    rows = [Row(0.0, 9, 3, (1, 2)), Row(0.0, 9, 3, (1, 3))]
    result = served(ChunkedPrefill(), hashed(rows), blocks=20)
    assert result.records.cached_tokens.tolist() == [0, 0]
    # 3 blocks each while they are computed; then the first two once, and the third of each.
    assert result.steps.free_blocks.tolist()[:2] == [14, 16]


def test_who_leaves_frees_all_that_is_not_shared():
    """Both have the first of a hashed block's two KV blocks, and A, which gives way, the second too: that one is free.

    A policy counts on it: what a request does not share it gets back by pre-empting it.
    """
    ledger = BlockLedger(10, SIZE)
    cache = PrefixCache(ledger)
    stays = CachedPrefix(cache, Chain((1,), 2, 1, "B"), prefill_tokens=5)
    stays.begin(0, 5)
    ledger.take(2)
    stays.extend(1)
    goes = CachedPrefix(cache, Chain((1,), 2, 2, "A"), prefill_tokens=9)
    goes.begin(1, 9)
    ledger.take(2)
    assert (ledger.free, goes.shared_blocks) == (6, 1)
    goes.extend(2, leaving=True, own=True)
    ledger.give(3 - goes.blocks)
    goes.leave()
    assert ledger.free == 8


def test_the_least_recently_used_go_first_and_from_their_end():
    """10 blocks: A leaves 4 and B 2. C takes the 4 never used and A's last 2, so D finds A's first 8 tokens.

    D takes 3 more: B's 2 and the last of C's.
    """
    rows = [Row(0.0, 16, 1, (1, 2)), Row(1.0, 8, 1, (3,)), Row(2.0, 24, 1, (5, 6, 7)), Row(3.0, 17, 1, (1, 2, 9))]
    result = served(ChunkedPrefill(), hashed(rows), blocks=10)
    assert result.records.cached_tokens.tolist() == [0, 0, 0, 8]
    assert result.prefixes is not None
    assert result.prefixes.evicted_blocks == 2 + 2 + 1


def test_answers_of_a_session_are_found_by_its_next_turn():
    """The second prompt holds the first and its answer: 8 + 5 - 1 tokens are in the cache, 3 whole blocks of them."""
    lengths = [(0.0, 8, 5), (2.0, 15, 1)]
    trace = hashed([Row(*row, ()) for row in lengths])
    plain = Trace(
        provenance=trace.provenance,
        arrival_s=trace.arrival_s,
        prompt_tokens=trace.prompt_tokens,
        output_tokens=trace.output_tokens,
        session_ids=("s", "s"),
    )
    result = served(ChunkedPrefill(), traces.with_hashes(plain, HASHED))
    assert result.records.cached_tokens.tolist() == [0, 12]
    assert token_times(result)[1] == [2.03]


def test_layer_groups_and_both_lanes_reuse():
    result = served(Bullet(layers_per_step=1), hashed([Row(0.0, 16, 1, (1, 2)), Row(1.0, 24, 2, (1, 2, 3))]))
    assert result.records.cached_tokens.tolist() == [0, 16]
    assert timeline(result, "prefill_tokens")[4][3] == 8


def test_prefill_instances_cache_and_decode_instances_do_not():
    rows = [Row(0.0, 16, 4, (1, 2)), Row(2.0, 16, 4, (1, 2))]
    result = served(Disaggregation(), hashed(rows), instances=2)
    assert result.records.cached_tokens.tolist() == [0, 12]
    assert (result.records.state == FINISHED).all()


tries = st.lists(st.integers(0, 1), min_size=0, max_size=5)
"""Whole blocks of a prompt, by content; what comes after them is a prompt's own."""

prompts = st.lists(st.tuples(tries, st.integers(1, 8), st.integers(1, 20)), min_size=1, max_size=14)


def traffic(prompts: list[tuple[list[int], int, int]], gaps_s: Sequence[float]) -> Trace:
    """Prompts that begin alike where their blocks do; a hash stands for its block and all before it."""
    names: dict[tuple[int, ...], int] = {}
    rows = []
    at_s = 0.0
    for number, ((blocks, rest, output), gap_s) in enumerate(zip(prompts, gaps_s, strict=True)):
        at_s += gap_s
        chain = tuple(names.setdefault(tuple(blocks[: end + 1]), len(names)) for end in range(len(blocks)))
        rows.append(Row(at_s, HASHED * len(blocks) + rest, output, (*chain, 1000 + number)))
    return hashed(rows)


def longest_common(trace: Trace) -> list[int]:
    """Tokens, of whole KV blocks, that each prompt has in common with the best of those before it; never all of it."""
    hashes = trace.block_hashes or ()
    most = (trace.prompt_tokens - 1) // SIZE * SIZE
    common = [max((alike(mine, other) for other in hashes[:row]), default=0) for row, mine in enumerate(hashes)]
    return np.minimum(np.array(common) * HASHED, most).tolist()


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many elements two sequences begin with in common."""
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


@settings(max_examples=60, deadline=None)
@given(prompts)
def test_what_is_found_is_the_longest_common_prefix_while_nothing_is_evicted(prompts):
    """One at a time, in a pool that is never full."""
    trace = traffic(prompts, [10.0] * len(prompts))
    result = served(ChunkedPrefill(), trace, blocks=2000)
    assert result.records.cached_tokens.tolist() == longest_common(trace)


@settings(max_examples=80, deadline=None)
@given(prompts, st.data(), st.sampled_from([*POLICIES, (STREAMING, 3)]), st.integers(17, 60))
def test_shared_blocks_are_conserved_under_any_policy(prompts, data, policy, blocks):
    """Prompts that come in any rhythm, caches so small that requests give way: the ledger is checked at every step."""
    gaps = data.draw(st.lists(st.sampled_from([0.0, 0.05, 0.4]), min_size=len(prompts), max_size=len(prompts)))
    trace = traffic(prompts, gaps)
    result = served(policy[0], trace, instances=policy[1], blocks=blocks, slo=SLO(ttft_s=0.5, tpot_s=0.15))
    records = result.records
    assert (records.state == FINISHED).all()
    assert (records.generated_tokens == records.output_tokens).all()
    unhurt = records.preemptions == 0
    assert (records.cached_tokens[unhurt] < records.prompt_tokens[unhurt]).all()
    assert (records.cached_tokens[unhurt] <= np.array(longest_in_any(trace))[unhurt]).all()
    again = served(policy[0], trace, instances=policy[1], blocks=blocks, slo=SLO(ttft_s=0.5, tpot_s=0.15))
    assert again.records.last_token_s.tobytes() == records.last_token_s.tobytes()


def longest_in_any(trace: Trace) -> list[int]:
    """As :func:`longest_common`, of all other prompts: a queue may be served in another order."""
    rows = range(len(trace))
    return [longest_common(trace.select(np.array([*(o for o in rows if o != row), row])))[-1] for row in rows]


@pytest.mark.skipif(not MOONCAKE.exists(), reason="needs the Mooncake traces")
def test_mooncake_is_reused_as_its_hashes_say():
    """One request at a time in a pool that holds all: every id that was seen before is found, whole or partial."""
    trace = traces.load(MOONCAKE)[:800]
    assert trace.block_hashes is not None
    seen: set[int] = set()
    expected = []
    for row, mine in enumerate(trace.block_hashes):
        known = len(list(itertools.takewhile(seen.__contains__, mine)))
        tokens = int(trace.prompt_tokens[row])
        expected.append(min(known * 512 if known < len(mine) else tokens, tokens - 1) // 16 * 16)
        seen.update(mine)
    one_token = Trace(
        provenance=trace.provenance,
        arrival_s=np.arange(len(trace)) * 1e4,
        prompt_tokens=trace.prompt_tokens,
        output_tokens=np.ones(len(trace), np.int64),
        block_hashes=trace.block_hashes,
    )
    result = serve(
        ChunkedPrefill(),
        arrivals=OpenArrivals(one_token),
        blocks=10_000_000,
        prefixes=HashedBlocks(512),
        check=False,
    )
    assert result.records.cached_tokens.tolist() == expected
    assert sum(expected) / trace.prompt_tokens.sum() > 0.05


def config(**changes: object) -> RunConfig:
    settings = {"trace": str(MOONCAKE), "requests": 60, "policy": "chunked", "model": "Llama-3.1-8B", "device": "H100"}
    return RunConfig.model_validate({**settings, **changes})


def test_a_trace_that_says_nothing_of_prefixes_is_refused():
    with pytest.raises(ValueError, match=r"neither block_hashes nor session_id.*or leave the prefix cache off"):
        prepare(config(trace="workload:chat", rate=2.0, prefix_cache=True))


@pytest.mark.skipif(not MOONCAKE.exists(), reason="needs the Mooncake traces")
def test_block_sizes_that_do_not_fit_the_hashes_are_refused():
    with pytest.raises(ValueError, match="hashes blocks of 512 tokens, which KV blocks of 24 do not divide"):
        prepare(config(block_tokens=24, prefix_cache=True))
