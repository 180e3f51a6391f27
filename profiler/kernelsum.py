"""Latency models that add kernel times up: all that the roofline and a fitted model have in common."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, Self, get_args

from profiler.commoncores import CommonCores, Shared
from profiler.composition import NOTHING, LayerCosts
from profiler.decodebeside import DecodeLosses
from profiler.kernels import Chunks, Kernel, Shard
from profiler.kerneltime import KernelTime
from profiler.latency import Estimate, Pace, Source
from profiler.layergroups import LayerGroups
from profiler.prefillpasses import MOST_SEQUENCES, KernelSumPasses
from profiler.series import DecodeSplits, EstimatedSplits, Serial
from profiler.specs import DeviceSpec, ModelSpec, part
from profiler.steptable import RECENT_BATCHES, StepTable
from profiler.tables import put
from profiler.work import Work, bad_sms

Pass = tuple[list[int], list[tuple[float, float, Source]]]
"""Contexts from which pieces begin, and of each piece seconds at context 0, seconds a token, and the source."""

Draw = tuple[float, dict[int, float]]
"""Bytes of DRAM traffic of a launch, and the share of the DRAM's peak that it draws, by SMs."""

MOST_DRAWS = 4096
"""Launches whose draw is kept."""

PASS_OVERHEAD_S = 0.25e-3
LAUNCH_OVERHEAD_S = 0.05e-3
"""Host times where nobody measured them; docs/latency.md says from what they are assumed."""

HOST_TIMES = (
    "pass_overhead_s",
    "launch_overhead_s",
    "prefill_overhead_s",
    "prefill_pass_overhead_s",
    "prefill_sequence_overhead_s",
)

Sharing = Literal["turns", "in-order"]

new: Final = tuple.__new__


@dataclass(frozen=True, kw_only=True)
class KernelSumModel(Serial):
    """A LatencyModel: kernels, the host's overhead and, while something else runs, contention for DRAM.

    whole: the device that ``device`` is a part of, where it is one (see :meth:`on_part`). Libraries plan for it, and
        measurements and D_peak are its own.
    pass_overhead_s: host time of one pass over the model: scheduling, hand-over of sequences, sampled tokens back.
    launch_overhead_s: host time of one launch, a whole pass or a layer group: prediction, re-partition, enqueueing.
    prefill_overhead_s: more host time of a launch that prefills: its tokens go out, and a policy plans for the queue.
    prefill_pass_overhead_s: more host time of a pass that prefills, however many launches it takes: an engine readies
        the batch, and launches it kernel by kernel where a pass that only decodes is one graph.
    prefill_sequence_overhead_s: of such a pass, for each sequence in it, those that decode included.
    layer_costs: what whole layers take beyond the sum of their kernels, by SM share; nothing until measured. Another
        pace apart, those that the kernels' calibration has.
    reserve_tokens: the largest launch for whose activations memory is kept free.
    sharing: what becomes of two launches that ask for the same SMs, see :meth:`estimate`.
    """

    model: ModelSpec
    device: DeviceSpec
    whole: DeviceSpec | None = None
    tensor_parallel: int = 1
    pass_overhead_s: float = PASS_OVERHEAD_S
    launch_overhead_s: float = LAUNCH_OVERHEAD_S
    prefill_overhead_s: float = 0.0
    prefill_pass_overhead_s: float = 0.0
    prefill_sequence_overhead_s: float = 0.0
    layer_costs: LayerCosts = NOTHING
    reserve_tokens: int = 8192
    sharing: Sharing = "turns"
    _shard: Shard = field(init=False, repr=False, compare=False)
    _table: StepTable = field(init=False, repr=False, compare=False)
    _costs: list[tuple[float, float, float]] | None = field(init=False, repr=False, compare=False)
    _passes: dict[int, dict[int, Pass]] = field(init=False, repr=False, compare=False)
    _groups: dict[Chunks, LayerGroups] = field(init=False, repr=False, compare=False)
    _undisturbed: bool = field(init=False, repr=False, compare=False)
    _prefills: dict[int, KernelSumPasses] = field(init=False, repr=False, compare=False)
    _draws: dict[Work, Draw] = field(init=False, repr=False, compare=False)
    _losses: tuple[tuple[float, float], tuple[float, float]] = field(init=False, repr=False, compare=False)
    _common: CommonCores = field(init=False, repr=False, compare=False)
    _decode_host_s: float = field(init=False, repr=False, compare=False)
    _decode_losses: DecodeLosses = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in (*HOST_TIMES, "reserve_tokens"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        if self.sharing not in get_args(Sharing):
            raise ValueError(f"sharing is {self.sharing!r}; known: {', '.join(get_args(Sharing))}")
        if self.whole is not None and self.device != part(self.whole, self.device.sms):
            raise ValueError(f"device {self.device.name} is no part of whole, {self.whole.name}; give on_part(sms)")
        shard = Shard(self.model, self.whole or self.device, self.tensor_parallel)
        object.__setattr__(self, "_shard", shard)
        object.__setattr__(self, "_table", self._make_table(shard))
        object.__setattr__(self, "_costs", self.layer_costs.by_sms(self.device.sms))
        object.__setattr__(self, "_passes", {sms: {} for sms in range(1, self.device.sms + 1)})
        object.__setattr__(self, "_groups", {})
        object.__setattr__(self, "_undisturbed", self._contention(False) == (0.0, 0.0))
        object.__setattr__(self, "_prefills", {})
        object.__setattr__(self, "_draws", {})
        object.__setattr__(self, "_losses", (self._contention(False), self._contention(True)))
        object.__setattr__(self, "_common", CommonCores(self.device.sms, self._shared_cores()))
        object.__setattr__(self, "_decode_host_s", self.launch_overhead_s + self.pass_overhead_s)
        losses = DecodeLosses(self.device.sms, *self._losses[True], self._costs, self._decode_host_s)
        object.__setattr__(self, "_decode_losses", losses)

    @abstractmethod
    def _make_table(self, shard: Shard) -> StepTable: ...

    @abstractmethod
    def _contention(self, decodes: bool) -> tuple[float, float]:
        """What a launch that decodes, or one that only prefills, loses beside another: (to any, of its DRAM-bound
        time to one that draws all of the DRAM)."""
        ...

    def _shared_cores(self) -> tuple[Shared, ...]:
        """What was measured of launches in step that have SMs in common."""
        return ()

    def __reduce__(self) -> tuple[Any, ...]:
        settings = {part.name: getattr(self, part.name) for part in fields(self) if part.init}
        return _remade, (type(self), settings)

    def make_ready(self) -> None:
        """Makes the tables that are otherwise made after some estimates: for a server, where requests would wait."""
        self._table.make_ready()
        self._table.pass_bounds(MOST_SEQUENCES)

    def on_part(self, sms: int) -> Self:
        """This model of an instance that has ``sms`` SMs of each device, all of its memory, and nothing beside it.

        It estimates what the whole device would with the other SMs idle. Raises ValueError as ``specs.part`` does.
        """
        whole = self.whole or self.device
        return replace(self, device=part(whole, sms), whole=whole if sms < whole.sms else None)

    def estimate(self, work: Work, sms: int, beside: Work | None = None, beside_sms: int = 0) -> Estimate:
        """Duration of ``work`` on ``sms`` SMs of each device, host overhead included. See LatencyModel.

        Beside other work, DRAM-bound kernels are slowed by 1 + ceiling * s, where s is the share of the DRAM's peak
        that ``beside`` draws when alone: min(1, bytes / seconds / D_peak). The ceiling of launches that only prefill
        is 0 until measured (paper, section 3.2), as is what all kernels lose to any co-runner. Transfers are not
        slowed, and slow nobody.
        Where ``sms`` and ``beside_sms`` exceed the device together, the two take turns on the SMs they share, as if
        each had floor(its SMs * N / sum) of its own, at least one; on a device whose SMs work in step, each takes
        as many times as long as was measured of such shares, twice where nothing was (:mod:`profiler.commoncores`).
        """
        prefill, requests, context, layers, head, transferred, overlap = work
        if layers is not None and prefill and not (requests or context or transferred) and overlap is None:
            if beside is None or (self._undisturbed and 0 < beside_sms <= self.device.sms - sms):
                # Layer groups of one batch, again and again.
                return (self._groups.get(prefill) or self.prefill_groups(prefill)).estimate(layers, head, sms)
        elif beside is None and layers is None and overlap is None and not prefill and not transferred:
            # Most steps of a run come here; Estimate's own constructor would be a third of the time.
            try:
                starts, segments = self._passes[sms][requests]
            except KeyError:
                starts, segments = self._add_pass(work, sms)
            if context >= requests:
                base, a_token, source = segments[bisect_right(starts, context) - 1]
                return new(Estimate, (base + context * a_token, source))
        if transferred:
            return new(Estimate, (self._transfer_s(work), "roofline"))
        if not 0 < sms <= self.device.sms:
            raise bad_sms("sms", sms, self.device)
        if beside is None or beside.kv_transfer_tokens:
            seconds, _, source = self._table.launch(work, sms)
        elif self.device.in_step and sms + beside_sms > self.device.sms:
            return self._in_common(work, sms, beside_sms)
        else:
            seconds, source = self._contended(work, sms, beside, beside_sms)
        if self._costs is not None:
            seconds = self._in_layers(seconds, work, sms)
        host_s = self._decode_host_s if layers is None and not prefill else self.host_seconds(work)
        return new(Estimate, (seconds + host_s, source))

    def prefill_groups(self, chunks: Chunks) -> LayerGroups:
        """See :func:`profiler.series.prefill_groups`."""
        groups = self._groups.get(chunks)
        if groups is None:
            host_s, end_host_s = self.prefill_host_s(len(chunks), False), self.prefill_host_s(len(chunks), True)
            groups = LayerGroups(
                self, self._table, self.device, chunks, self._costs, host_s, end_host_s, self._decode_losses
            )
            put(self._groups, chunks, groups, RECENT_BATCHES)
        return groups

    def _in_layers(self, seconds: float, work: Work, sms: int) -> float:
        """Kernels' seconds with what whole layers take beyond them."""
        assert self._costs is not None
        layer_s, of_prefill, of_decode = self._costs[sms]
        return (of_prefill if work.prefill else of_decode) * seconds + layer_s * self._layers(work)

    def decode_pace(self, requests: int, sms: int) -> Pace:
        """See :class:`profiler.latency.Paced`."""
        try:
            starts, segments = self._passes[sms][requests]
        except KeyError:
            starts, segments = self._add_pass(Work((), requests, requests), sms)

        def pace(contexts: range) -> tuple[list[float], list[Source]]:
            place = bisect_right(starts, contexts[0]) - 1
            if bisect_right(starts, contexts[-1]) - 1 == place:
                base, a_token, source = segments[place]
                return [base + context * a_token for context in contexts], [source] * len(contexts)
            pieces = [segments[bisect_right(starts, context) - 1] for context in contexts]
            seconds = [base + context * a_token for context, (base, a_token, _) in zip(contexts, pieces, strict=True)]
            return seconds, [source for _, _, source in pieces]

        return pace

    def decode_beside(self, requests: int, context: int, beside: Work) -> DecodeSplits:
        """See :func:`profiler.series.decode_beside`."""
        chunks, decodes, _, layers, ends, _, overlap = beside
        if not chunks or decodes or layers is None or overlap is not None:
            return EstimatedSplits(self, requests, context, beside)
        return self.prefill_groups(chunks).beside(layers, ends, requests, context)

    def prefill_passes(self, sms: int) -> KernelSumPasses:
        """See :func:`profiler.series.prefill_passes`."""
        passes = self._prefills.get(sms)
        if passes is None:
            cost = None if self._costs is None else self._costs[sms][:2]
            passes = self._prefills[sms] = KernelSumPasses(self, self._table, sms, cost)
        return passes

    def _add_pass(self, work: Work, sms: int) -> Pass:
        """Whole passes that only decode so many requests: pieces linear in their context, the host's time included."""
        if not 0 < sms <= self.device.sms:
            raise bad_sms("sms", sms, self.device)
        starts, at_zero, a_token, _, _, sources = self._table.decode_pieces(work, sms)
        fixed_s, factor = self.launch_overhead_s + self.pass_overhead_s, 1.0
        if self._costs is not None:
            layer_s, _, factor = self._costs[sms]
            fixed_s += layer_s * self.model.layers
        seconds = [factor * base + fixed_s for base in at_zero]
        pieces = list(zip(seconds, [factor * each for each in a_token], sources, strict=True))
        return put(self._passes[sms], work.decode_requests, (starts, pieces))

    def cost(self, work: Work) -> tuple[float, float]:
        """(useful FLOPs, bytes of DRAM traffic) of ``work``, per device; a transfer has neither."""
        if work.kv_transfer_tokens:
            return 0.0, 0.0
        return self._table.cost(work)

    def ceilings(self, sms: int) -> tuple[float, float]:
        """(C_p, D_p) of the paper: C_peak * N_p / N in FLOP/s, D_peak * min(1, N_p / N_d) in bytes/s."""
        device = self.device
        if not 0 < sms <= device.sms:
            raise bad_sms("sms", sms, self.device)
        compute = device.peak_flops(self.model.dtype) * sms / device.sms
        return compute, device.dram_bytes_per_s * min(1.0, sms / device.bandwidth_knee_sms)

    def kv_capacity_tokens(self, memory_fraction: float) -> int:
        """KV tokens that fit: memory * fraction, less weights and activations, over KV bytes of a token.

        Raises ValueError where nothing is left, saying what was needed.
        """
        if not 0 < memory_fraction <= 1:
            raise ValueError(f"memory_fraction is {memory_fraction}; it must be above 0 and at most 1")
        available = self.device.memory_bytes * memory_fraction
        weights = self.model.weight_bytes / self.tensor_parallel
        reserve = self.reserve_tokens * self._shard.activation_bytes_per_token
        tokens = int((available - weights - reserve) // self._shard.kv_bytes_per_token)
        if tokens < 1:
            raise ValueError(
                f"{self.model.name} does not fit {self.device.name} with tensor_parallel {self.tensor_parallel}: "
                f"weights {weights / 1e9:.1f} GB and activations {reserve / 1e9:.1f} GB of "
                f"{available / 1e9:.1f} GB a device (memory_fraction {memory_fraction}); take a larger device, more "
                f"tensor parallelism, an fp8 model or a larger memory_fraction"
            )
        return tokens

    def kernels_of(self, work: Work) -> list[Kernel]:
        """The kernels of a launch on one device; empty for a transfer."""
        return [] if work.kv_transfer_tokens else self._shard.kernels(work)

    def breakdown(self, work: Work, sms: int) -> list[KernelTime]:
        """Each kernel of a launch alone on ``sms`` SMs with its seconds: the sum behind ``estimate``."""
        if not 0 < sms <= self.device.sms:
            raise bad_sms("sms", sms, self.device)
        return [self._table.kernel_time(kernel, sms) for kernel in self.kernels_of(work)]

    def device_seconds(self, work: Work, sms: int) -> float:
        """Time of a launch alone on ``sms`` SMs of each device, without what the host adds."""
        return self.estimate(work, sms).seconds - self.host_seconds(work)

    def host_seconds(self, work: Work) -> float:
        """What the host adds to a launch."""
        ends_pass = work.head or work.layers is None
        if work.prefill:
            return self.prefill_host_s(len(work.prefill) + work.decode_requests, ends_pass)
        return self.launch_overhead_s + self.pass_overhead_s if ends_pass else self.launch_overhead_s

    def prefill_host_s(self, sequences: int, ends_pass: bool) -> float:
        """Of a launch that prefills."""
        if not ends_pass:
            return self.launch_overhead_s + self.prefill_overhead_s
        of_pass_s = self.prefill_pass_overhead_s + self.prefill_sequence_overhead_s * sequences
        return self.launch_overhead_s + self.pass_overhead_s + self.prefill_overhead_s + of_pass_s

    def dram_share(self, work: Work, sms: int) -> float:
        """Share of the DRAM's peak, the whole device's, that ``work`` draws alone on ``sms`` SMs, 0 to 1."""
        moved, shares = self._draws.get(work) or self._add_draw(work)
        share = shares.get(sms)
        if share is None:
            share = min(1.0, moved / self.estimate(work, sms).seconds / self._shard.device.dram_bytes_per_s)
            shares[sms] = share
        return share

    def _add_draw(self, work: Work) -> Draw:
        return put(self._draws, work, (self.cost(work)[1], {}), MOST_DRAWS)

    def dram_bound_share(self, work: Work, sms: int) -> float:
        """Share of a launch's time on ``sms`` SMs in kernels that DRAM bounds, 0 to 1."""
        seconds, dram_seconds, _ = self._table.launch(work, sms)
        return dram_seconds / seconds

    def _contended(self, work: Work, sms: int, beside: Work, beside_sms: int) -> tuple[float, Source]:
        self._check_beside(beside_sms)
        total, both = self.device.sms, sms + beside_sms
        if both > total and self.sharing == "in-order":
            return self._in_order(work, sms, beside, beside_sms)
        if both > total:
            sms = sms * total // both or 1
            beside_sms = beside_sms * total // both or 1
        seconds, dram_seconds, source = self._table.launch(work, sms)
        anyway, ceiling = self._losses[work.decode_requests > 0]
        seconds *= 1 + anyway
        if not ceiling:
            return seconds, source
        return seconds + ceiling * self.dram_share(beside, beside_sms) * dram_seconds, source

    def _in_order(self, work: Work, sms: int, beside: Work, beside_sms: int) -> tuple[float, Source]:
        """Beside a launch on some of the same SMs, their blocks in order of launch."""
        seconds, _, source = self._table.launch(work, sms)
        waits = self._table.launch(beside, beside_sms)[0] * self._layers(work) / self._layers(beside)
        own = min(sms, self.device.sms - beside_sms)
        if own > 0:
            apart = self._contended(work, own, beside, beside_sms)
            if apart[0] < seconds + waits:
                return apart
        return seconds + waits, source

    def _layers(self, work: Work) -> int:
        return self.model.layers if work.layers is None else work.layers

    def _in_common(self, work: Work, sms: int, beside_sms: int) -> Estimate:
        """Beside a launch on some of the same SMs, each in step."""
        self._check_beside(beside_sms)
        seconds, source = self.estimate(work, sms)
        host_s = self.host_seconds(work)
        slowdown = self._common.slowdown(work.decode_requests > 0, sms, beside_sms)
        return Estimate(slowdown * (seconds - host_s) + host_s, source)

    def _check_beside(self, sms: int) -> None:
        if not 0 < sms <= self.device.sms:
            raise bad_sms("beside_sms", sms, self.device)

    def _transfer_s(self, work: Work) -> float:
        if work.kv_transfer_tokens < 0 or work.prefill or work.decode_requests:
            raise ValueError(f"a KV transfer moves 1 or more tokens and has nothing else in it; got {work}")
        part = 1.0 if work.layers is None else work.layers / self.model.layers
        moved = part * work.kv_transfer_tokens * self._shard.kv_bytes_per_token
        return self.device.link_latency_s + moved / self.device.link_bytes_per_s


def _remade(cls: type[KernelSumModel], settings: dict[str, Any]) -> KernelSumModel:
    return cls(**settings)
