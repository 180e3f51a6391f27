"""The time of one kernel on a number of SMs: the formula of the SM-scaling roofline, and what measurement adds to it.

    T = alpha(N_p) * (floor + max(compute, m / D_p))

compute is the waves' FLOPs over the SMs' rate, m / D_p the DRAM traffic over the bandwidth that N_p SMs draw. ``alpha``
comes with the kernel, one for each SM share that was measured; ``floor`` (a launch takes some time whatever it does)
comes with the device. Without measurements they are 1 and 0.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
from typing import Final, NamedTuple

from profiler.kernels import DecodeAttention, Kernel, attention_rows
from profiler.latency import Source
from profiler.specs import DeviceSpec
from profiler.tiles import waves

new: Final = tuple.__new__


class KernelTime(NamedTuple):
    """A kernel, the seconds of all its ``runs`` launches, what bounds it (compute, dram or link), and the source."""

    kernel: Kernel
    seconds: float
    bound: str
    source: Source


class KernelClock:
    """Times kernels of one device.

    flops: FLOP/s that kernels reach on the whole device when no wave is lost, by kind and dtype.
    bandwidth: DRAM bytes/s that 0, 1, 2 ... all SMs draw; never falling.
    floors: seconds of the smallest launch, by op. shares: by op, the SMs of each of a kernel's ``alphas``, ascending.
    """

    __slots__ = ("bandwidth", "device", "floors", "flops", "shares")

    def __init__(
        self,
        device: DeviceSpec,
        flops: dict[tuple[str, str], float],
        bandwidth: tuple[float, ...],
        floors: dict[str, float] | None = None,
        shares: dict[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.device = device
        self.flops = flops
        self.bandwidth = bandwidth
        self.floors = floors or {}
        self.shares = shares or {}

    def time(self, kernel: Kernel, sms: int) -> KernelTime:
        """A kernel with its own alphas and source; see :meth:`timed`."""
        return self.timed(kernel, sms, kernel.alphas, kernel.source)

    def timed(self, kernel: Kernel, sms: int, alphas: tuple[float, ...], source: Source) -> KernelTime:
        """Seconds of all runs of ``kernel`` alone on ``sms`` SMs; links ignore SMs.

        Between two measured shares log time is linear in the logarithm of SMs. With more SMs no kernel is slower:
        where a measured share would say so, the time of fewer SMs stands.
        """
        seconds, bound = self._formula(kernel, sms)
        measured = self.shares.get(kernel.op, ())
        if len(alphas) < 2 or kernel.kind == "link":
            seconds *= alphas[-1]
            if sms != (measured or (self.device.sms,))[-1] and source != "roofline" and kernel.kind != "link":
                source = "extrapolated"
        else:
            seconds = self._on_share(kernel, sms, seconds, measured, alphas)
            if not measured[0] <= sms <= measured[-1] and source != "roofline":
                source = "extrapolated"
            elif source == "measured" and sms not in measured:
                source = "interpolated"
        return new(KernelTime, (kernel, kernel.runs * seconds, bound, source))

    def _on_share(
        self, kernel: Kernel, sms: int, formula: float, measured: tuple[int, ...], alphas: tuple[float, ...]
    ) -> float:
        """One run between the measured shares around ``sms``, or scaled by the formula beyond them."""
        after = bisect_left(measured, sms)
        if after == 0:
            return alphas[0] * formula
        best = float("inf")
        times = zip(measured[: after + 1], alphas, strict=False)
        known = [best := min(best, alpha * self._formula(kernel, share)[0]) for share, alpha in times]
        if after == len(measured):
            return known[-1] * formula / self._formula(kernel, measured[-1])[0]
        below, above = measured[after - 1], measured[after]
        share = math.log(sms / below) / math.log(above / below)
        return float(known[after - 1] * (known[after] / known[after - 1]) ** share)

    def ridge_context(self, decode: DecodeAttention, requests: int, sms: int) -> float:
        """Context tokens from which decode attention of ``requests`` is bound by compute; infinite for never."""
        computing = decode.flops_per_token * self.device.sms / (self.flops["attention", "bf16"] * sms)
        moving = decode.bytes_per_token / self.bandwidth[sms]
        if computing <= moving:
            return float("inf")
        return requests * decode.bytes_per_request / self.bandwidth[sms] / (computing - moving)

    def _formula(self, kernel: Kernel, sms: int) -> tuple[float, str]:
        """(seconds of one run before alpha, what bounds it)."""
        if kernel.kind == "link":
            device = self.device
            return device.link_latency_s + kernel.link_bytes / device.link_bytes_per_s, "link"
        floor = self.floors.get(kernel.op, 0.0)
        moved = kernel.dram_bytes / self.bandwidth[sms]
        if kernel.kind == "memory":
            return floor + moved, "dram"
        computed = self._computed(kernel, sms)
        if computed > moved:
            return floor + computed, "compute"
        return floor + moved, "dram"

    def _computed(self, kernel: Kernel, sms: int) -> float:
        flops_of_one_sm = self.flops[kernel.kind, kernel.dtype] / self.device.sms
        if kernel.blocks is None or not self.device.tiled:
            return kernel.flops / (flops_of_one_sm * sms)
        if len(kernel.chunks) < 2:
            return waves(kernel.blocks, sms) * kernel.block_flops / flops_of_one_sm
        # Blocks of several sequences fill each other's waves: bound by all work over all SMs, and by the longest.
        issued = kernel.blocks * kernel.block_flops / sms
        for chunk in set(kernel.chunks):
            blocks, flops = blocks_of(chunk, kernel.dims)
            issued = max(issued, waves(blocks, sms) * flops)
        return issued / flops_of_one_sm


def blocks_of(chunk: tuple[int, int], dims: tuple[int, ...]) -> tuple[int, float]:
    """Blocks of one sequence of prefill attention, and FLOPs that one issues: half a whole number, so never rounded."""
    new, cached = chunk
    heads, _, head_dim, _ = dims
    rows, row_blocks = attention_rows(new)
    return heads * row_blocks, 4.0 * rows * head_dim * (cached + rows * (row_blocks + 1) / 2)


class PromptTimer:
    """A prefill attention on one share after another."""

    __slots__ = ()

    @abstractmethod
    def on(self, sms: int) -> tuple[float, bool, Source]:
        """(seconds, whether DRAM bounds them, what they rest on)."""
        ...


class KernelTimer(PromptTimer):
    """With an alpha for each measured share."""

    __slots__ = ("_alphas", "_clock", "_kernel", "_source")

    def __init__(self, clock: KernelClock, kernel: Kernel, alphas: tuple[float, ...], source: Source) -> None:
        self._clock = clock
        self._kernel = kernel
        self._alphas = alphas
        self._source: Source = source

    def on(self, sms: int) -> tuple[float, bool, Source]:
        _, seconds, bound, source = self._clock.timed(self._kernel, sms, self._alphas, self._source)
        return seconds, bound == "dram", source


class AttentionRates:
    """What all prefill attention of a device has in common."""

    __slots__ = ("bandwidth", "floor", "measured_sms", "rate", "tiled")

    def __init__(self, clock: KernelClock) -> None:
        op, device = "attention_prefill", clock.device
        self.bandwidth = list(clock.bandwidth)
        self.floor = clock.floors.get(op, 0.0)
        self.rate = clock.flops["attention", "bf16"] / device.sms
        self.measured_sms = (clock.shares.get(op) or (device.sms,))[-1]
        self.tiled = device.tiled


class AttentionTimer(PromptTimer):
    """With one alpha: ``KernelClock.timed``, operation for operation, with what is the same on every share looked up
    once. ``sequences``: blocks of each, and FLOPs that one issues; empty for one alone."""

    __slots__ = ("_alpha", "_block_flops", "_blocks", "_flops", "_moved", "_rates", "_sequences", "_source")

    def __init__(
        self,
        rates: AttentionRates,
        totals: tuple[float, float, int, float],
        sequences: list[tuple[int, float]],
        alpha: float,
        source: Source,
    ) -> None:
        flops, moved, blocks, issued = totals
        self._rates = rates
        self._flops = flops
        self._moved = moved
        self._blocks = blocks
        self._block_flops = issued / blocks
        self._sequences = sequences
        self._alpha = alpha
        self._source: Source = source

    def on(self, sms: int) -> tuple[float, bool, Source]:
        rates, source = self._rates, self._source
        if sms != rates.measured_sms and source != "roofline":
            source = "extrapolated"
        moving = self._moved / rates.bandwidth[sms]
        computing = self._computing(sms)
        if computing > moving:
            return (rates.floor + computing) * self._alpha, False, source
        return (rates.floor + moving) * self._alpha, True, source

    def _computing(self, sms: int) -> float:
        rate = self._rates.rate
        if not self._rates.tiled:
            return self._flops / (rate * sms)
        if not self._sequences:
            return waves(self._blocks, sms) * self._block_flops / rate
        issued = self._blocks * self._block_flops / sms
        for blocks, flops in self._sequences:
            alone = waves(blocks, sms) * flops
            if alone > issued:
                issued = alone
        return issued / rate


def sharp_bandwidth(device: DeviceSpec, efficiency: float = 1.0) -> tuple[float, ...]:
    """D_p = D_peak * efficiency * min(1, N_p / N_d) for 0, 1, ... all SMs (paper, section 3.2)."""
    peak = device.dram_bytes_per_s * efficiency
    return tuple(peak * min(1.0, sms / device.bandwidth_knee_sms) for sms in range(device.sms + 1))
