"""What a shell completes by TAB: names of policies, models, devices and traces, and of a policy's settings.

Typer keeps those that begin as the word does; where there is none, shells complete files.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import redirect_stdout

import typer

VARIABLE, BASH = "_BULLETSIM_COMPLETE", "complete_bash"
"""What the scripts of --install-completion set, and what bash's sets it to."""
BREAKS = frozenset(":=")
"""At these bash parts words: workload:code are three."""


def policies() -> list[str]:
    """Built-in policies."""
    from policies import POLICIES

    return list(POLICIES)


def settings(context: typer.Context) -> list[str]:
    """Settings of the built-in policy that the line names, as NAME=."""
    from dataclasses import fields

    from policies import POLICIES

    policy = POLICIES.get(context.params.get("policy") or "")
    return [] if policy is None else [f"{field.name}=" for field in fields(policy) if field.init]


def models() -> list[str]:
    """Built-in models."""
    from profiler import MODELS

    return [spec.name for spec in MODELS]


def devices() -> list[str]:
    """Built-in devices."""
    from profiler import DEVICES

    return [spec.name for spec in DEVICES]


def machines() -> list[str]:
    """What a device at hand may be."""
    return ["cpu", "cuda"]


def backends() -> list[str]:
    """Where many runs may go."""
    return ["local", "dask", "ray"]


def traces() -> list[str]:
    """Built-in workloads, and public traces that have been fetched."""
    from traces import CATALOGUE, workloads
    from traces.catalogue import fetched

    return [*(f"workload:{name}" for name in workloads()), *(name for name in CATALOGUE if fetched(name))]


def public_traces() -> list[str]:
    """What can be fetched."""
    from traces import CATALOGUE

    return list(CATALOGUE)


def in_bash(command: Callable[[], object]) -> None:
    """Runs ``command``, which answers what bash has asked, as if bash parted words at blanks alone."""
    words, place = os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"])
    joined, at = _joined(words, place)
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\n".join(joined), str(at)
    whole = joined[at] if at < len(joined) else ""
    # Bash puts an answer in the place of the last part of the word.
    before = max((whole.rfind(mark) for mark in BREAKS), default=-1) + 1
    answer = io.StringIO()
    try:
        with redirect_stdout(answer):
            command()
    finally:
        print("\n".join(line[before:] for line in answer.getvalue().splitlines()))


def _joined(words: list[str], place: int) -> tuple[list[str], int]:
    """Words whose parts are together again, and where the one at ``place`` is among them."""
    joined: list[str] = []
    at, open_ = place, False
    for number, word in enumerate(words):
        breaks = bool(word) and set(word) <= BREAKS
        if joined and (breaks or open_):
            joined[-1] += word
        else:
            joined.append(word)
        open_ = breaks
        if number == place:
            at = len(joined) - 1
    return joined, at
