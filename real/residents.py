"""What a device must know of requests: in which slot the KV of each lies, and the tokens that each has."""

from __future__ import annotations

import numpy as np

from policies.api import RequestProgress
from real.lanes import DeviceError


class Residents:
    """Slots of every instance, and prompts and answers of every request.

    A request takes a slot of an instance when its first launch there begins, and keeps it until it is released. The
    slot freed last is taken first: memory that nobody has touched yet is left alone.
    """

    def __init__(self, *, instances: int, slots: int, vocab: int, seed: int) -> None:
        self._free = [list(range(slots - 1, -1, -1)) for _ in range(instances)]
        self._slots: list[dict[int, int]] = [{} for _ in range(instances)]
        self._vocab, self._seed = vocab, seed
        self._tokens: dict[int, list[int]] = {}
        self._count = slots

    def slot(self, instance: int, request: int) -> int:
        """The request's slot there, taken now if it has none. Raises DeviceError where none is left."""
        held = self._slots[instance]
        if request not in held:
            if not self._free[instance]:
                raise DeviceError(
                    f"instance {instance} holds {self._count} requests, as many as its KV cache has slots, and the "
                    f"policy starts another; lower its max_resident, or give more --slots"
                )
            held[request] = self._free[instance].pop()
        return held[request]

    def release(self, instance: int, request: int) -> None:
        """Frees its slot; one that never began has none."""
        slot = self._slots[instance].pop(request, None)
        if slot is not None:
            self._free[instance].append(slot)

    def held(self, instance: int) -> int:
        """Slots in use."""
        return len(self._slots[instance])

    def tokens(self, request: RequestProgress) -> list[int]:
        """Its prompt and what has been generated since; append to it what comes next.

        Prompts are uniform over the vocabulary, by the seed and the request's number in order of arrival.
        """
        known = self._tokens.get(request.index)
        if known is None:
            drawn = np.random.default_rng((self._seed, request.index)).integers(self._vocab, size=request.prompt_tokens)
            known = self._tokens[request.index] = drawn.tolist()
        return known
