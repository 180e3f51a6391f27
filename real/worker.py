"""A process on a share of a CPU that runs the jobs of one lane.

Weights, KV caches and what a lane leaves between two launches lie in shared memory; so a prefill may go on in another
process, on other cores, after any layer. Modules that load torch are imported once the process has its cores.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

from profiler.measure.processes import settle

if TYPE_CHECKING:
    from torch import Tensor

    from profiler.measure.attention import Segments
    from profiler.measure.numerics import Numerics
    from profiler.measure.transformer import KVCache, Transformer, Weights
    from profiler.specs import ModelSpec
    from real.arena import Arena
    from real.lanes import Batch, Copy


class Shared(NamedTuple):
    """What all processes of a run have in common; the tensors lie in the arena.

    caches: one an instance. residual, hidden: of this lane, [most tokens of a launch, hidden] each; None on the link.
    """

    spec: ModelSpec
    numerics: Numerics
    weights: Weights
    caches: tuple[KVCache, ...]
    residual: Tensor | None
    hidden: Tensor | None


def serve(connection: Connection, cores: Sequence[int], arena: Arena, packed: bytes, instance: int, seed: int) -> None:
    """Runs jobs until the pipe ends, which it also does when the parent is killed."""
    settle(cores)
    import torch

    lane = LaneWorker(arena.unpack(packed), instance, torch.Generator().manual_seed(seed))
    try:
        connection.send("ready")
    except BrokenPipeError:  # who started it has gone meanwhile
        return
    with torch.inference_mode():
        answer(connection, lane)


def answer(connection: Connection, lane: LaneWorker) -> None:
    """Requests are (name of a method of the lane, its arguments); answers are (whether it worked, its value)."""
    while True:
        try:
            name, arguments = connection.recv()
            try:
                reply = True, getattr(lane, name)(*arguments)
            except (RuntimeError, ValueError, MemoryError) as error:
                reply = False, " ".join(str(error).split()) or type(error).__name__
            connection.send(reply)
        except (EOFError, OSError):
            return


class LaneWorker:
    """One lane on one share. Answers are (next tokens, begin, finish, processor seconds in between)."""

    def __init__(self, shared: Shared, instance: int, generator: Any) -> None:
        self.shared, self.instance, self.generator = shared, instance, generator
        self._transformer: Transformer | None = None

    def compute(self, batch: Batch) -> tuple[tuple[int, ...], float, float, float]:
        """Runs layers of the batch, and after the last of them LM head and sampling.

        The device is at it from the first kernel to the last: a GPU would not see what comes before and after either.
        """
        import torch

        from profiler.measure.attention import Segments

        cache = self.shared.caches[self.instance]
        segments = Segments.of(batch.sequences, cache.slot_tokens, torch.device("cpu"))
        model = self._room(len(segments.positions), len(batch.sequences))
        ids = torch.tensor(batch.tokens)
        begin_s, processor_s = time.perf_counter(), time.process_time()
        found = self._computed(model, segments, ids, batch)
        finish_s, processor_s = time.perf_counter(), time.process_time() - processor_s
        return () if found is None else tuple(found.tolist()), begin_s, finish_s, processor_s

    def copy(self, task: Copy) -> tuple[tuple[int, ...], float, float, float]:
        """Copies KV from another instance's cache."""
        begin_s, processor_s = time.perf_counter(), time.process_time()
        source, target = self.shared.caches[task.source], self.shared.caches[self.instance]
        here, there = task.slot * target.slot_tokens, task.source_slot * source.slot_tokens
        for to, of in zip((*target.keys, *target.values), (*source.keys, *source.values), strict=True):
            to[here : here + task.tokens].copy_(of[there : there + task.tokens])
        return (), begin_s, time.perf_counter(), time.process_time() - processor_s

    def _computed(self, model: Transformer, segments: Segments, ids: Tensor, batch: Batch) -> Tensor | None:
        """The next tokens, where the last layer is among those that are run."""
        if batch.first == 0:
            model.begin(ids)
        model.layers(segments, batch.first, batch.last)
        if batch.last < self.shared.spec.layers:
            return None
        return model.next_tokens(segments, batch.temperature, self.generator)

    def _room(self, tokens: int, rows: int) -> Transformer:
        """The model with buffers for so many tokens and sequences; what lies in shared memory never moves."""
        import torch

        from profiler.measure.transformer import Scratch, Transformer

        shared = self.shared
        assert shared.residual is not None
        assert shared.hidden is not None
        if tokens > len(shared.residual):
            raise ValueError(
                f"a launch of {tokens} tokens; lanes were made for {len(shared.residual)}; let the policy batch fewer"
            )
        known = self._transformer
        if known is not None and tokens <= len(known.scratch.normed) and rows <= len(known.scratch.tokens):
            return known
        # Never smaller than before: launches of many tokens and of many sequences may take turns.
        had = (64, 64) if known is None else (len(known.scratch.normed), len(known.scratch.tokens))
        size, most = (
            max(least, 1 << (count - 1).bit_length()) for least, count in zip(had, (tokens, rows), strict=True)
        )
        scratch = Scratch(shared.spec, size, most, torch.device("cpu"), torch.float32)
        scratch.residual, scratch.hidden = shared.residual, shared.hidden
        cache = shared.caches[self.instance]
        self._transformer = Transformer(shared.spec, shared.weights, cache, scratch, numerics=shared.numerics)
        return self._transformer
