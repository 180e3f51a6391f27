"""What chunked prefill does at an instant: one iteration over all that decode, and prompts up to its budget.

A function of a policy's settings and a view, so that it can be compiled where the policy itself is a dataclass.
"""

from __future__ import annotations

from typing import Final, Protocol

from policies.admission import fill, prompt_budget, relieve
from policies.api import Chunk, Decision, Step, View
from policies.onelane import LANE

NOTHING: Final = Decision()

new: Final = tuple.__new__


class Settings(Protocol):
    """Those of policies.chunked.ChunkedPrefill."""

    @property
    def budget_tokens(self) -> int: ...
    @property
    def prompt_share(self) -> float: ...
    @property
    def max_resident(self) -> int: ...


def decide(settings: Settings, view: View) -> Decision:
    """See :meth:`policies.api.Policy.decide`."""
    relief = relieve(view)
    decodes = relief.decodes
    chunks: tuple[Chunk, ...] = ()
    if view.waiting or view.prefilling:
        chunks = fill(
            view,
            budget_tokens=prompt_budget(settings.budget_tokens, decodes, settings.prompt_share),
            free_blocks=relief.free_blocks,
            max_resident=settings.max_resident,
            without=relief.victims,
        )
    if not chunks and not decodes:
        return NOTHING
    again = not chunks and not view.waiting
    step = (LANE, view.sms, chunks, None, decodes > 0, relief.victims, None, again, None, False, False)
    # A step and a decision for each of a run's steps: their own constructors take three times as long.
    return new(Decision, ((new(Step, step),), None))
