"""Which instance a request goes to."""

from __future__ import annotations

import numpy as np
import pytest

import traces
from policies import ChunkedPrefill, LeastLoaded, Load, PrefixAffine, RoundRobin, Router
from sim import RunResult
from sim.prefixcache import HashedBlocks
from sim.state import RequestState
from tests.toys import serve
from traces.request import Provenance, Trace

REQUEST = RequestState(index=0, request_id="0", arrival_s=0.0, prompt_tokens=100)


def load(instance: int, cached: int = 0, *, requests: int = 0, pending: int = 0) -> Load:
    return Load(instance, 0, pending, requests, 1000, cached)


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        ([load(0, 40), load(1, 60, requests=5), load(2)], 1),
        # At most 0.3 of the prompt: not worth it.
        ([load(0, requests=5, pending=9), load(1, 30, pending=9, requests=6), load(2, pending=1)], 2),
        # 66 requests more than the idlest, and more than half as many again: balance first.
        ([load(0, 90, requests=66, pending=5), load(1)], 1),
        # As many more, but not in proportion.
        ([load(0, 90, requests=266, pending=5), load(1, requests=200)], 0),
        # Among equal prefixes the least loaded.
        ([load(0, 90, pending=3), load(1, 90, pending=2), load(2)], 1),
        ([load(0, pending=3), load(1, pending=2)], 1),
    ],
)
def test_the_longest_prefix_unless_it_is_short_or_load_is_out_of_balance(loads, chosen):
    assert PrefixAffine().route(REQUEST, loads) == chosen


def talk(router: Router) -> RunResult:
    """Eight sessions of four turns on three instances."""
    rows = 32
    trace = Trace(
        provenance=Provenance(source="test", format="rows"),
        prompt_tokens=np.array([30 + 40 * (row // 8) for row in range(rows)]),
        output_tokens=np.full(rows, 8),
        session_ids=tuple(str(row % 8) for row in range(rows)),
    )
    hashed = traces.with_hashes(trace, 16)
    source = traces.parse_arrivals("sessions:1,think=1.3").source(hashed, seed=3)
    policy = ChunkedPrefill(router=router)
    return serve(policy, arrivals=source, instances=3, prefixes=HashedBlocks(16, answers=True))


def test_turns_go_where_their_conversation_is():
    hits = []
    for router in (RoundRobin(), LeastLoaded(), PrefixAffine()):
        result = talk(router)
        assert result.prefixes is not None
        hits.append(result.prefixes.hit_tokens)
    assert hits[2] > max(hits[:2])
    records = talk(PrefixAffine()).records
    sessions = np.array([int(name) % 8 for name in records.request_id])
    for session in range(8):
        assert len(set(records.instance[sessions == session].tolist())) == 1
    later = records.prompt_tokens > 30
    # All but the last token said before, in whole blocks.
    assert (records.cached_tokens[later] == (records.prompt_tokens[later] - 40 + 8 - 1) // 16 * 16).all()
