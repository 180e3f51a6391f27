"""One lane of a GPU: its buffers, its shares, and graphs of its decode steps.

All that launches read and write is made before the first one and kept: memory that is freed while another stream still
uses it is the usual way to crash.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from profiler.measure.attention import Segments, Sequenced
from profiler.measure.transformer import KVCache, Scratch, Transformer, Weights
from real.cuda_clock import Anchor, DeviceClock
from real.cuda_graphs import Bucket, Graph, buckets, chosen
from real.cuda_inputs import Inputs
from real.cuda_shares import LaneShares, Share
from real.lanes import Batch
from real.model import RunnableModel


@dataclass(frozen=True)
class Replica:
    """A model on a GPU, as its lanes share it. The last slot of ``cache`` is nobody's: graphs are padded with it.

    launch_tokens: the most of one launch. temperature: of sampling in graphs.
    """

    model: RunnableModel
    runtime: Any
    clock: DeviceClock
    weights: Weights
    cache: KVCache
    launch_tokens: int
    temperature: float

    @property
    def slots(self) -> int:
        """Those that sequences may have, and so the most sequences of a launch."""
        return self.cache.slots - 1

    def padding(self, count: int) -> tuple[Sequenced, ...]:
        """Sequences whose KV is nobody's."""
        return (Sequenced(self.slots, 1, 0),) * count


class Flight(NamedTuple):
    """A job on its way: the device is at it from ``begin`` to ``finish``, and then the tokens are in ``results``."""

    begin: Any
    finish: Any
    anchor: Anchor
    sent_s: float
    sms: int
    results: Tensor | None


class CudaLane:
    """Runs batches one at a time, each on the share of its lane that is nearest to what it asks for."""

    def __init__(self, replica: Replica, shares: LaneShares) -> None:
        self.replica, self.shares = replica, shares
        spec, cache, runtime = replica.model.spec, replica.cache, replica.runtime
        scratch = Scratch(spec, replica.launch_tokens, replica.slots, runtime.device, cache.keys[0].dtype)
        self._model = Transformer(spec, replica.weights, cache, scratch, numerics=replica.model.numerics)
        self._inputs = Inputs(runtime, replica.launch_tokens, replica.slots, cache.slot_tokens)
        self._results: Tensor = runtime.pinned(replica.slots)
        self._begin, self._finish = runtime.event(), runtime.event()
        self._pool = runtime.pool()
        self._graphs: dict[int, tuple[Graph, ...]] = {}
        self._stream: Any = None
        self._segments: Segments | None = None
        self._layers_done = 0

    def start(self, sms: int, batch: Batch) -> Flight:
        """Launches layers of a batch and returns at once; the last flight of the lane must have ended.

        Raises ValueError for a batch that this lane cannot run, RuntimeError where the device fails.
        """
        self._check(batch)
        share, layers = self.shares.nearest(sms), self.replica.model.spec.layers
        graph = chosen(self._graphs.get(share.sms, ()), batch, layers, self.replica.temperature)
        anchor, sent_s, stream = self.replica.clock.anchor(), time.perf_counter(), share.stream
        if batch.first == 0:
            padding = self.replica.padding(graph.bucket.rows - len(batch.sequences) if graph else 0)
            self._inputs.write((*batch.sequences, *padding), (*batch.tokens, *[0] * len(padding)))
        results = self._results[: len(batch.sequences)] if batch.last == layers else None
        with self.replica.runtime.on(stream):
            if self._stream is not None and self._stream is not stream:
                # What the layers before left was written there.
                stream.wait_event(self._finish)
            self._begin.record(stream)
            if graph:
                self._inputs.send()
                graph.captured.graph.replay()
            else:
                self._launch(batch)
            if results is not None:
                results.copy_(self._model.scratch.tokens[: len(results)], non_blocking=True)
            self._finish.record(stream)
        self._stream, self._layers_done = stream, batch.last % layers
        return Flight(self._begin, self._finish, anchor, sent_s, share.sms, results)

    def prepare(self, graph_sms: Sequence[int]) -> int:
        """Warms up every share, and captures decode graphs for the shares nearest to ``graph_sms``; how many."""
        for share in self.shares.all:
            self._warm(share)
        replica = self.replica
        whole, spec = self.shares.whole.sms, replica.model.spec
        most = min(replica.slots, replica.launch_tokens)
        sizes = buckets(most, replica.cache.slot_tokens, spec.kv_heads, whole)
        for sms, share in {share.sms: share for share in map(self.shares.nearest, graph_sms)}.items():
            self._graphs[sms] = tuple(self._captured(share, bucket) for bucket in sizes)
        replica.runtime.synchronize()
        return sum(map(len, self._graphs.values()))

    def close(self) -> None:
        """Frees the graphs; nothing may be in flight."""
        self._graphs.clear()

    def _launch(self, batch: Batch) -> None:
        """Kernel by kernel."""
        if batch.first == 0:
            self._inputs.send()
            self._segments = self._inputs.segments()
            self._model.begin(self._inputs.tokens())
        assert self._segments is not None
        self._model.layers(self._segments, batch.first, batch.last)
        if batch.last == self.replica.model.spec.layers:
            self._model.next_tokens(self._segments, batch.temperature)

    def _warm(self, share: Share) -> None:
        """A layer of launches of all sizes, largest first: kernels are loaded and compiled, and work space is found.

        The first use of any of these would hold up all lanes.
        """
        tokens = self.replica.launch_tokens
        while tokens:
            self._run_padding(self._whole_prompts(tokens), share)
            tokens //= 2

    def _whole_prompts(self, tokens: int) -> tuple[Sequenced, ...]:
        (padding,) = self.replica.padding(1)
        longest = self.replica.cache.slot_tokens
        full, rest = divmod(tokens, longest)
        prompts = [padding._replace(new=longest)] * full + [padding._replace(new=rest)] * bool(rest)
        return tuple(prompts[: self.replica.slots])

    def _captured(self, share: Share, bucket: Bucket) -> Graph:
        self._run_padding(self.replica.padding(bucket.rows), share, bucket.keys)
        segments, ids = self._inputs.segments(bucket.keys), self._inputs.tokens()
        model, temperature = self._model, self.replica.temperature
        runtime = self.replica.runtime
        captured = runtime.capture(lambda turn: model.step(ids, segments, temperature), 1, share.stream, self._pool)
        with runtime.on(share.stream):
            # The first replay of a graph also brings it to the device.
            captured.graph.replay()
        return Graph(bucket, captured)

    def _run_padding(self, sequences: Sequence[Sequenced], share: Share, longest_key: int | None = None) -> None:
        """A layer, and what comes after the last one; ``longest_key`` decides which attention kernel runs."""
        replica = self.replica
        replica.runtime.synchronize()
        self._inputs.write(sequences, [0] * sum(sequence.new for sequence in sequences))
        with replica.runtime.on(share.stream):
            self._inputs.send()
            segments = self._inputs.segments(longest_key)
            self._model.begin(self._inputs.tokens())
            self._model.layers(segments, 0, 1)
            self._model.next_tokens(segments, replica.temperature)

    def _check(self, batch: Batch) -> None:
        replica, sequences = self.replica, batch.sequences
        spec, slots = replica.model.spec, replica.slots
        used, new, _ = zip(*sequences, strict=True) if sequences else ((), (), ())
        tokens = sum(new)
        if not 0 < len(sequences) <= slots or tokens > replica.launch_tokens:
            raise ValueError(
                f"a launch of {len(sequences)} sequences and {tokens} tokens; lanes were made for 1 to {slots} "
                f"sequences and up to {replica.launch_tokens} tokens"
            )
        if not 0 <= batch.first < batch.last <= spec.layers:
            raise ValueError(f"layers {batch.first} to {batch.last}; {spec.name} has 0 to {spec.layers}")
        if not 0 <= min(used) <= max(used) < slots:
            raise ValueError(f"a slot is not among the {slots} of the KV cache, 0 to {slots - 1}")
        if batch.first == 0:
            _check_tokens(batch.tokens, tokens, spec.vocab)
        elif (
            batch.tokens
            or batch.first != self._layers_done
            or self._segments is None
            or sequences != self._segments.sequences
        ):
            raise ValueError(
                f"layers from {batch.first} on go on with a batch that the lane has not left there; its layers come "
                f"one group after the other, with token ids for the first alone"
            )


def _check_tokens(ids: Sequence[int], tokens: int, vocab: int) -> None:
    if len(ids) != tokens:
        raise ValueError(f"{len(ids)} token ids for {tokens} new tokens; each needs one")
    if not 0 <= min(ids) <= max(ids) < vocab:
        raise ValueError(f"token ids from {min(ids)} to {max(ids)}; the vocabulary has 0 to {vocab - 1}")
