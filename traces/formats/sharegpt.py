"""ShareGPT conversations, as text or as message lengths, by the rule of the first exchange; or whole, as sessions.

A request is the first two messages of a conversation, whatever their roles: the first is the prompt, the
second the answer. Both must have 2 tokens or more and their sum at most 131,072; other conversations are
left out and counted. (The rule of SGLang's serving benchmark, with the context of Llama 3.1 as the limit.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from traces.errors import TraceError
from traces.formats.rows import ReadOptions, Rows
from traces.table import read_table

TURNS = ("conversation", "turn", "role", "tokens")
LEAST_TOKENS, MOST_TOKENS = 2, 131_072


def read_turns(path: Path, options: ReadOptions) -> Rows:
    """The lengths form: one row a message, in order of conversation and turn."""
    table = read_table(path, TURNS, "sharegpt-lengths", options.progress)
    names, tokens = np.array(table.texts("conversation")), table.tokens("tokens")
    # A conversation is a run of rows: its first row differs from the one before, its second follows.
    first = np.concatenate(([True], names[1:] != names[:-1]))
    starts = np.flatnonzero(first)
    paired = starts[(starts + 1 < len(names)) & ~np.append(first, True)[starts + 1]]
    exchanges = np.stack((tokens[paired], tokens[paired + 1]), axis=1)
    return _first_exchanges(path, names[paired].tolist(), exchanges, len(starts))


def read_sessions(path: Path, options: ReadOptions) -> Rows:
    """The lengths form, every exchange a request: the prompt of a turn is all that was said before its answer.

    Messages are taken in pairs, whatever their roles, and a conversation ends before the first pair that breaks the
    rule above.
    """
    table = read_table(path, TURNS, "sharegpt-sessions", options.progress)
    messages: dict[str, list[int]] = {}
    for name, tokens in zip(table.texts("conversation"), table.tokens("tokens").tolist(), strict=True):
        messages.setdefault(name, []).append(tokens)
    turns = [(name, *turn) for name, lengths in messages.items() for turn in _turns(lengths)]
    if not turns:
        raise _nothing_to_serve(path)
    names, numbers, prompts, outputs = zip(*turns, strict=True)
    return Rows(
        prompt_tokens=np.array(prompts, np.int64),
        output_tokens=np.array(outputs, np.int64),
        request_ids=[f"{name}.{number}" for name, number in zip(names, numbers, strict=True)],
        session_ids=names,
        notes=(f"{len(turns)} exchanges of {len(set(names))} of {len(messages)} conversations",),
    )


def _turns(lengths: list[int]) -> Iterator[tuple[int, int, int]]:
    """(number, prompt tokens, answer tokens) of each exchange of one conversation."""
    said = 0
    for number, (asked, answered) in enumerate(zip(lengths[::2], lengths[1::2], strict=False)):
        if min(asked, answered) < LEAST_TOKENS or said + asked + answered > MOST_TOKENS:
            return
        yield number, said + asked, answered
        said += asked + answered


def read_text(path: Path, options: ReadOptions) -> Rows:
    """The original JSON: [{"id", "conversations": [{"from", "value"}, ...]}, ...]."""
    if options.count_tokens is None:
        raise TraceError(
            f"{path}: conversations as text, and no tokenizer to count their tokens; pass "
            "options=ReadOptions(count_tokens=...) to traces.load, or give a file of lengths with columns "
            "conversation,prompt_tokens,output_tokens"
        )
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: not a whole JSON document ({error}); the file may be cut off") from None
    if not isinstance(document, list) or not document:
        raise TraceError(f"{path}: no list of conversations; wanted: [{{'conversations': [...]}}, ...]")
    found = list(_text_exchanges(path, document, options.count_tokens))
    exchanges = np.array([lengths for _, lengths in found], np.int64).reshape(-1, 2)
    return _first_exchanges(path, [name for name, _ in found], exchanges, len(document))


def _text_exchanges(
    path: Path, document: list[Any], count_tokens: Callable[[str], int]
) -> Iterator[tuple[str, tuple[int, int]]]:
    for row, entry in enumerate(document):
        try:
            texts = [message["value"] for message in entry["conversations"][:2]]
        except (KeyError, TypeError):
            raise TraceError(
                f"{path}: entry {row}: no list 'conversations' of messages with 'value'; correct or remove it"
            ) from None
        if len(texts) == 2:
            # Row numbers, not ShareGPT's ids: some of those are given twice.
            yield str(row), (count_tokens(texts[0]), count_tokens(texts[1]))


def _first_exchanges(path: Path, names: list[str], exchanges: Any, conversations: int) -> Rows:
    kept = np.all(exchanges >= LEAST_TOKENS, axis=1) & (exchanges.sum(axis=1) <= MOST_TOKENS)
    if not kept.any():
        raise _nothing_to_serve(path)
    return Rows(
        prompt_tokens=exchanges[kept, 0],
        output_tokens=exchanges[kept, 1],
        request_ids=[names[i] for i in np.flatnonzero(kept).tolist()],
        notes=(
            f"first exchanges of {int(kept.sum())} of {conversations} conversations (first two messages, "
            f"{LEAST_TOKENS} tokens or more each, {MOST_TOKENS} at most together)",
        ),
    )


def _nothing_to_serve(path: Path) -> TraceError:
    return TraceError(
        f"{path}: no conversation has a first exchange of {LEAST_TOKENS} tokens or more a side and "
        f"{MOST_TOKENS} at most together; give a file of longer conversations"
    )
