"""Conversations: reading them, whose turns wait for whose answers, and the hashes that their prompts get."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traces
from policies import ChunkedPrefill
from tests.toys import SHARED, serve
from traces.request import Provenance, Trace

MESSAGES = SHARED / "traces/sharegpt-lengths/sharegpt_v3_message_lengths_cl100k.csv"


def talk(rows: list[tuple[float, int, int, str | None]]) -> Trace:
    """A trace of (arrival, prompt, answer, session)."""
    arrivals, prompts, outputs, sessions = zip(*rows, strict=True)
    return Trace(
        provenance=Provenance(source="test", format="rows"),
        arrival_s=np.array(arrivals, dtype=np.float64),
        prompt_tokens=np.array(prompts, dtype=np.int64),
        output_tokens=np.array(outputs, dtype=np.int64),
        session_ids=sessions,
    )


def test_a_turn_comes_after_the_answer_before_it_and_a_thought():
    """A prompt token takes 10 ms, a decode step 100 ms; 2 s of thought. Where turns were recorded does not matter."""
    trace = talk([(0.0, 10, 2, "a"), (0.1, 20, 1, "a"), (1.0, 5, 1, "b"), (1.5, 5, 1, None)])
    spec = traces.parse_arrivals("sessions:think=2,thinking=constant")
    result = serve(ChunkedPrefill(), arrivals=spec.source(trace))
    arrived = dict(zip(result.records.prompt_tokens.tolist(), result.records.arrival_s.tolist(), strict=True))
    assert arrived[20] == pytest.approx(0.2 + 2.0)
    assert sorted(result.records.arrival_s.round(9)) == [0.0, 1.0, 1.5, 2.2]


def test_a_rejected_turn_has_ended():
    trace = talk([(0.0, 10, 2, "a"), (0.1, 9000, 1, "a"), (0.2, 20, 1, "a")])
    source = traces.parse_arrivals("sessions:think=1,thinking=constant").source(trace)
    result = serve(ChunkedPrefill(), arrivals=source, blocks=100)
    assert result.records.arrival_s.tolist() == pytest.approx([0.0, 1.2, 2.2])
    assert result.records.reason == ("", "kv_capacity", "")


def test_a_rate_is_of_requests():
    """1,000 sessions of 4 turns at 2 requests/s: they begin over 2,000 s."""
    trace = talk([(0.0, 10, 1, str(row // 4)) for row in range(4000)])
    source = traces.parse_arrivals("sessions").at_rate(2.0).source(trace, seed=1)
    begun = []
    while (due := source.peek_s()) is not None:
        begun.append(due)
        source.pop()
    assert begun == sorted(begun)
    assert len(begun) == 1000
    assert begun[-1] == pytest.approx(2000, rel=0.1)


def test_thoughts_belong_to_requests():
    """Two servers, one of them slow: each turn is thought about for as long."""
    trace = talk([(0.0, 10, 1, "a"), (0.0, 10, 1, "b"), (0.0, 10, 1, "a"), (0.0, 10, 1, "b")])
    thoughts = []
    for serving_s in ((1.0, 5.0), (7.0, 2.0)):
        source = traces.SessionLoop(trace, 3.0, seed=4)
        first, second = source.pop(), source.pop()
        source.finished(0, serving_s[0])
        source.finished(1, serving_s[1])
        due = sorted((source.pop() for _ in range(2)), key=lambda request: str(request.session_id))
        thoughts.append([due[0].arrival_s - serving_s[0], due[1].arrival_s - serving_s[1]])
        assert (first.session_id, second.session_id) == ("a", "b")
    assert thoughts[0] == pytest.approx(thoughts[1])
    assert min(thoughts[0]) > 0


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        ("sessions:0", "rate is 0; give a number above 0"),
        ("sessions:think=-1", "think is -1; give a think time"),
        ("sessions:cv=2", "sessions has no setting 'cv=2'"),
    ],
)
def test_wrong_forms_are_refused(arrivals, message):
    with pytest.raises(traces.TraceError, match=message):
        traces.parse_arrivals(arrivals)


def test_a_trace_without_sessions_is_refused():
    trace = traces.workload("chat", 5)
    with pytest.raises(traces.TraceError, match="chat: no session_id"):
        traces.parse_arrivals("sessions:2").source(trace)
    lengths = Trace(
        provenance=trace.provenance, prompt_tokens=np.array([5]), output_tokens=np.array([5]), session_ids=("a",)
    )
    with pytest.raises(traces.TraceError, match="without arrival times"):
        traces.parse_arrivals("sessions").source(lengths)


def test_hashes_follow_what_was_said():
    """Blocks of 8: the second turn goes on from the first; the third is shorter than what was said, and begins anew."""
    trace = talk([(0.0, 10, 6, "a"), (1.0, 5, 1, "b"), (2.0, 20, 5, "a"), (3.0, 12, 1, "a")])
    hashed = traces.with_hashes(trace, 8)
    first, other, second, cut = hashed.block_hashes or ()
    assert second[:2] == first
    assert [len(hashes) for hashes in (first, other, second, cut)] == [2, 1, 4, 2]
    assert not set(cut) & set(second)
    assert not set(other) & set(second)
    assert hashed.answers_hashed
    assert traces.with_hashes(hashed) is hashed
    with pytest.raises(traces.TraceError, match="hashes made from sessions are not saved"):
        traces.save(hashed, "hashed.csv")
    with pytest.raises(traces.TraceError, match="neither block_hashes nor session_id"):
        traces.with_hashes(traces.workload("chat", 5))


def test_conversations_are_read_whole(tmp_path: Path):
    """Pairs of messages: the prompt of a turn is all that was said; a pair with an empty side ends its conversation."""
    file = tmp_path / "lengths.csv"
    rows = ["7,0,human,30", "7,1,gpt,40", "7,2,human,5", "7,3,gpt,6", "7,4,human,9", "8,0,gpt,4", "9,0,human,8"]
    rows += ["9,1,gpt,8", "9,2,human,0", "9,3,gpt,8", "9,4,human,8", "9,5,gpt,8"]
    file.write_text("\n".join(["conversation,turn,role,tokens", *rows]) + "\n")
    trace = traces.load(file, "sharegpt-sessions")
    assert trace.request_ids == ("7.0", "7.1", "9.0")
    assert trace.session_ids == ("7", "7", "9")
    assert trace.prompt_tokens.tolist() == [30, 75, 8]
    assert trace.output_tokens.tolist() == [40, 6, 8]
    traces.save(trace, tmp_path / "sessions.parquet")
    assert traces.load(tmp_path / "sessions.parquet").session_ids == trace.session_ids


def test_conversations_with_nothing_to_serve_are_refused(tmp_path: Path):
    file = tmp_path / "lengths.csv"
    file.write_text("conversation,turn,role,tokens\n7,0,human,30\n")
    with pytest.raises(traces.TraceError, match="no conversation has a first exchange"):
        traces.load(file, "sharegpt-sessions")


turns = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30), st.integers(1, 10)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(turns)
def test_every_turn_is_served_once_and_in_order(turns):
    trace = talk([(float(row), prompt, output, str(who)) for row, (who, prompt, output) in enumerate(turns)])
    source = traces.parse_arrivals("sessions:think=0.5").source(trace, seed=2)
    result = serve(ChunkedPrefill(), arrivals=source)
    records = result.records
    assert sorted(map(int, records.request_id)) == list(range(len(turns)))
    ends = dict(zip(records.request_id, zip(records.arrival_s, records.last_token_s, strict=True), strict=True))
    for who in range(3):
        mine = [ends[str(row)] for row, turn in enumerate(turns) if turn[0] == who]
        assert all(arrival > before[1] for before, (arrival, _) in pairwise(mine))


@pytest.mark.skipif(not MESSAGES.exists(), reason="needs the ShareGPT message lengths")
def test_sharegpt_conversations():
    """First turns are the first exchanges that the other reader finds; all later prompts are longer."""
    whole, firsts = traces.load(MESSAGES, "sharegpt-sessions"), traces.load(MESSAGES)
    begins = np.array([name.endswith(".0") for name in whole.request_ids or ()])
    assert whole.prompt_tokens[begins].tolist() == firsts.prompt_tokens.tolist()
    assert whole.output_tokens[begins].tolist() == firsts.output_tokens.tolist()
    said = whole.prompt_tokens + whole.output_tokens
    assert (whole.prompt_tokens[1:][~begins[1:]] > said[:-1][~begins[1:]]).all()
