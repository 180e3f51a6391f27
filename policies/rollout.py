"""A coarse look ahead: which of the requests an instance knows meet their SLO if decode keeps a share from now on.

Prefill goes on batch by batch, at the pace of its share, and begins a batch when KV for it is free. Decode goes on in
whole steps; how long they take is worked out anew only when a batch ends. Once the queue is empty decode has all SMs.
Nobody arrives. That is far from a simulation, and costs some tens of microseconds a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Decodes(NamedTuple):
    """Requests that are decoding, an entry each.

    steps: the step, counted from the next, that is judged; 0 once it has been.
    due_s: when it must have ended, in seconds from the start of the look ahead.
    leave: steps until the answer is complete.
    context: KV tokens.
    """

    steps: Floats
    due_s: Floats
    leave: Floats
    context: Floats

    def after(self, steps: float) -> Decodes:
        """Those that are left after so many steps."""
        stays = self.leave > steps
        return Decodes(
            np.maximum(self.steps[stays] - steps, 0.0),
            self.due_s[stays],
            self.leave[stays] - steps,
            self.context[stays] + steps,
        )

    def met(self, start_s: float, step_s: float, steps: float) -> int:
        """How many of those judged within ``steps`` steps of ``step_s`` from ``start_s`` hold."""
        judged = (self.steps > 0) & (self.steps <= steps)
        return int(np.count_nonzero(judged & (start_s + self.steps * step_s <= self.due_s)))


class PromptBatch(NamedTuple):
    """Prompts that are prefilled together, an entry each but for ``whole_s``: seconds that are left of it on all SMs.

    first_due_s: when the first token is due, in seconds from the start of the look ahead.
    steps, leave, context: as in Decodes, from that token on; steps of 0 for an answer that ends with it.
    spell_s, last_due_s: the judged step is due so long after the first token, or then, whichever is sooner.
    """

    whole_s: float
    first_due_s: Floats
    steps: Floats
    leave: Floats
    context: Floats
    spell_s: Floats
    last_due_s: Floats

    def joined(self, decodes: Decodes, end_s: float) -> Decodes:
        """``decodes`` and those that want more when the batch ends; who missed the first token cannot hold."""
        due_s = np.where(end_s <= self.first_due_s, np.minimum(end_s + self.spell_s, self.last_due_s), -np.inf)
        more = self.leave > 0
        return Decodes(
            np.concatenate((decodes.steps, self.steps[more])),
            np.concatenate((decodes.due_s, due_s[more])),
            np.concatenate((decodes.leave, self.leave[more])),
            np.concatenate((decodes.context, self.context[more])),
        )


class Rollout(NamedTuple):
    """Where a look ahead starts.

    batches: those to prefill, in order; KV for the first is taken already.
    free_tokens: KV that is free after it.
    step_s(requests, context tokens, share): seconds of a decode step, share None for all SMs with nothing beside it.
    """

    batches: tuple[PromptBatch, ...]
    free_tokens: float
    step_s: Callable[[int, float, int | None], float]

    def bound(self, decodes: Decodes) -> int:
        """As many requests as could possibly hold."""
        shortest_s = self.step_s(1, 1.0, None)
        held = int(np.count_nonzero(decodes.steps * shortest_s <= decodes.due_s))
        return held + sum(int(np.count_nonzero(batch.whole_s <= batch.first_due_s)) for batch in self.batches)

    def met(self, decodes: Decodes, share: int, pace: float, prefill_s: float, decode_s: float) -> int:
        """How many hold with ``share`` for decode and prefill ``pace`` times as long as on all SMs.

        With a share of 0 decode waits until nothing is. ``prefill_s`` and ``decode_s`` are the seconds after which
        either goes on.
        """
        met, free = 0, self.free_tokens
        for position, batch in enumerate(self.batches):
            needed = float(batch.context.sum()) if position else 0.0
            if needed > free:
                waited = self._wait(decodes, needed - free)
                if waited is None:
                    break
                steps, step_s = waited
                met += decodes.met(decode_s, step_s, steps)
                free += _given_back(decodes, steps)
                decode_s, decodes = decode_s + steps * step_s, decodes.after(steps)
                prefill_s = max(prefill_s, decode_s)
            free -= needed
            prefill_s += batch.whole_s * pace
            if share and len(decodes.leave) and decode_s < prefill_s:
                step_s = self.step_s(len(decodes.leave), float(decodes.context.sum()), share)
                steps = float(math.ceil((prefill_s - decode_s) / step_s))
                met += decodes.met(decode_s, step_s, steps)
                free += _given_back(decodes, steps)
                decode_s, decodes = decode_s + steps * step_s, decodes.after(steps)
            decode_s = max(decode_s, prefill_s)
            met += int(np.count_nonzero((batch.steps == 0) & (prefill_s <= batch.first_due_s)))
            decodes = batch.joined(decodes, prefill_s)
        if len(decodes.leave):
            step_s = self.step_s(len(decodes.leave), float(decodes.context.sum()), None)
            met += decodes.met(decode_s, step_s, math.inf)
        return met

    def _wait(self, decodes: Decodes, tokens: float) -> tuple[float, float] | None:
        """(steps, seconds of each) of decode alone until so many KV tokens are given back; None if they never are."""
        order = np.argsort(decodes.leave, kind="stable")
        freed = np.cumsum(decodes.context[order])
        place = int(np.searchsorted(freed, tokens))
        if place == len(order):
            return None
        return float(decodes.leave[order[place]]), self.step_s(len(order), float(freed[-1]), None)


def _given_back(decodes: Decodes, steps: float) -> float:
    """KV tokens that so many steps set free, less what they take."""
    return float(decodes.context[decodes.leave <= steps].sum()) - steps * len(decodes.leave)
