"""Conversations: whose next turn waits for the answer before it, and whose prompts begin with what was said before."""

from __future__ import annotations

import math
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np

from traces.arrivals import RequestColumns, positive, recorded
from traces.chance import generator
from traces.errors import TraceError
from traces.request import Request, Trace

HASHED_TOKENS = 512
"""Tokens of the blocks that sessions are hashed in, those of Mooncake's traces."""


class SessionLoop:
    """A closed loop in every session: its next turn comes ``think_s`` seconds after the answer before it has ended.

    Turns of a session follow each other as in the trace; a request without a session is one of its own. Sessions begin
    when their first turns were recorded, or with a ``rate`` as a Poisson process of as many a second as make, with the
    trace's mean number of turns, ``rate`` requests. Thinking takes ``think_s`` exactly ("constant") or as the mean of
    an exponential; the time thought before a request is drawn with that request, so that two policies meet the same
    thoughts. A turn that is rejected has ended. TraceError for a trace without sessions.
    """

    __slots__ = ("_following", "_ready", "_requests", "_rows", "_thinks")

    def __init__(
        self, trace: Trace, think_s: float, seed: int = 0, *, rate: float | None = None, think: str = "exponential"
    ) -> None:
        if not (math.isfinite(think_s) and think_s >= 0):
            raise TraceError(f"think is {think_s:g}; give a think time in seconds, 0 or more")
        if think not in ("exponential", "constant"):
            raise TraceError(f"think is {think!r}; known: exponential, constant")
        turns = turns_of(trace)
        rng = generator(seed, "think times")
        draws = rng.standard_exponential(len(trace)) if think == "exponential" else np.ones(len(trace))
        self._thinks: list[float] = (draws * think_s).tolist()
        self._following = {row: after for rows in turns for row, after in pairwise(rows)}
        # (time, row): one entry for each session whose next turn is known.
        self._ready = list(zip(_starts_s(trace, turns, rate, seed), (rows[0] for rows in turns), strict=True))
        heapify(self._ready)
        self._requests = RequestColumns(trace)
        self._rows: list[int] = []

    def peek_s(self) -> float | None:
        return self._ready[0][0] if self._ready else None

    def pop(self) -> Request:
        arrival_s, row = heappop(self._ready)
        self._rows.append(row)
        return self._requests.make(row, arrival_s)

    def finished(self, index: int, now_s: float) -> None:
        """Whoever sent that request begins to think of the next turn, if there is one."""
        after = self._following.get(self._rows[index])
        if after is not None:
            heappush(self._ready, (now_s + self._thinks[after], after))


def turns_of(trace: Trace) -> list[list[int]]:
    """The rows of each session in order, sessions by their first row; TraceError for a trace without sessions."""
    if trace.session_ids is None:
        raise TraceError(
            f"{trace.name}: no session_id, so no request is known to follow another; give a trace with that column, "
            "such as one of bulletsim traces convert --format sharegpt-sessions"
        )
    sessions: dict[str | int, list[int]] = {}
    for row, name in enumerate(trace.session_ids):
        sessions.setdefault(row if name is None else name, []).append(row)
    return list(sessions.values())


def _starts_s(trace: Trace, turns: list[list[int]], rate: float | None, seed: int) -> list[float]:
    if rate is None:
        arrivals = recorded(trace)
        return [float(arrivals[rows[0]]) for rows in turns]
    sessions_a_second = positive("rate", rate, "requests per second, above 0") * len(turns) / len(trace)
    gaps = generator(seed, "arrivals").standard_exponential(len(turns) - 1) / sessions_a_second
    return [0.0, *np.cumsum(gaps).tolist()]


def with_hashes(trace: Trace, block_tokens: int = HASHED_TOKENS) -> Trace:
    """The trace with hashed blocks of ``block_tokens`` tokens, from its sessions where it has none.

    A turn's prompt is taken to begin with the whole prompt and answer of the turn before, where it is at least as long
    as both; where it is shorter the history was cut, and nothing of it is found again. Hashes are then of prompt and
    answer (``answers_hashed``). Whether two sessions have something in common, such as a system prompt, is not known,
    and taken to be no. TraceError for a trace with neither hashes nor sessions.
    """
    if trace.block_hashes is not None:
        return trace
    if trace.session_ids is None:
        raise TraceError(
            f"{trace.name}: neither block_hashes nor session_id, so nothing tells which prompts begin alike; give a "
            "trace with one of them (Mooncake's have), or leave the prefix cache off"
        )
    hashes: list[tuple[int, ...]] = [()] * len(trace)
    named = 0
    prompts, outputs = trace.prompt_tokens.tolist(), trace.output_tokens.tolist()
    for rows in turns_of(trace):
        said: list[int] = []
        context = 0
        for row in rows:
            if prompts[row] < context:
                said = []
            context = prompts[row] + outputs[row]
            new = -(-context // block_tokens) - len(said)
            said.extend(range(named, named + new))
            named += new
            hashes[row] = tuple(said)
    note = f"blocks of {block_tokens} tokens hashed by session: a prompt begins with the turn before and its answer"
    return replace(
        trace,
        block_hashes=tuple(hashes),
        block_tokens=block_tokens,
        answers_hashed=True,
        provenance=trace.provenance.noting(note),
    )
