"""What many tests need: a device whose times can be worked out by hand, traces from rows, one call that serves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from policies import SLO, Policy
from profiler.constant import ConstantRateModel
from profiler.latency import LatencyModel
from profiler.profile import Profile
from profiler.profile import Provenance as Measured
from profiler.specs import DeviceSpec, ModelSpec
from sim import Completion, Launch, Limits, RunResult, ServingLoop, SimExecutor
from sim.between import NOTHING_BETWEEN, BetweenSteps
from sim.neighbours import Neighbours
from traces.arrivals import ArrivalSource, OpenArrivals
from traces.request import Provenance, Trace

SHARED = Path(__file__).parents[1].parent / "shared"

TOY_MODEL = ModelSpec(
    name="toy",
    layers=4,
    hidden=64,
    intermediate=128,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=256,
    max_context=1 << 20,
)

TOY_DEVICE = DeviceSpec(
    name="toy",
    sms=10,
    bf16_flops=1e12,
    fp8_flops=None,
    dram_bytes_per_s=1e11,
    memory_bytes=1 << 30,
    l2_bytes=1 << 20,
    link_bytes_per_s=1e10,
    link_latency_s=0.0,
    bandwidth_knee_sms=5,
    sm_granularity=1,
    contention_ceiling=0.2,
)


def toy_latency(
    prefill_token_s: float = 0.01,
    decode_step_s: float = 0.1,
    shared_slowdown: float = 1.0,
    transfer_token_s: float = 0.0,
) -> ConstantRateModel:
    """A device on which a prompt token takes 10 ms and a decode step 100 ms, unless said otherwise."""
    return ConstantRateModel(
        model=TOY_MODEL,
        device=TOY_DEVICE,
        prefill_token_s=prefill_token_s,
        decode_step_s=decode_step_s,
        shared_slowdown=shared_slowdown,
        transfer_token_s=transfer_token_s,
    )


def trace_of(rows: Sequence[tuple[float, int, int]]) -> Trace:
    """A trace of (arrival_s, prompt_tokens, output_tokens) rows."""
    arrivals, prompts, outputs = zip(*rows, strict=True)
    return Trace(
        provenance=Provenance(source="test", format="rows"),
        arrival_s=np.array(arrivals, dtype=np.float64),
        prompt_tokens=np.array(prompts, dtype=np.int64),
        output_tokens=np.array(outputs, dtype=np.int64),
    )


class PlainExecutor:
    """The simulated executor without its short cut: it answers the three questions and nothing more."""

    def __init__(self, inner: SimExecutor) -> None:
        self._inner = inner

    def now(self) -> float:
        return self._inner.now()

    def start(self, launch: Launch) -> None:
        self._inner.start(launch)

    def next(self, until_s: float | None) -> Completion | None:
        return self._inner.next(until_s)


def serve(
    policy: Policy,
    rows: Sequence[tuple[float, int, int]] | None = None,
    *,
    arrivals: ArrivalSource | None = None,
    latency: LatencyModel | None = None,
    instances: int = 1,
    slo: SLO | None = None,
    blocks: int = 1000,
    block_tokens: int = 16,
    check: bool = True,
    plain: bool = False,
    between: BetweenSteps = NOTHING_BETWEEN,
    device: LatencyModel | None = None,
    **limits: Any,
) -> RunResult:
    """Runs a policy over rows (or an arrival source) on the toy device, checking the KV ledger at every step.

    ``device``: what steps would take on the whole device that instances share, where they do.
    ``plain`` takes away the executor's short cut over decode steps. ``limits`` are others of sim.limits.Limits.
    """
    latency = latency or toy_latency()
    executor = SimExecutor(latency=latency, neighbours=None if device is None else Neighbours(device))
    return ServingLoop(
        policy=policy,
        arrivals=arrivals or OpenArrivals(trace_of(rows or ())),
        latency=latency,
        executor=PlainExecutor(executor) if plain else executor,
        instances=instances,
        slo=slo or SLO(),
        limits=Limits(
            total_blocks=blocks,
            context_tokens=latency.model.max_context,
            block_tokens=block_tokens,
            **limits,
        ),
        between=between,
        keep_token_times=True,
        check_every_step=check,
    ).run()


def cpu_profile(cores: int, model: str | None = None, layers: Sequence[dict[str, Any]] = ()) -> Profile:
    """A CPU's profile, made up: products at 20 GFLOP/s a core and 20 us, and rows of whole ``layers`` of ``model``."""
    common = {"dtype": "fp32", "repeats": 3, "spread": 0.01}
    shapes = itertools.product((1, 64, 512), ((128, 64), (192, 64)), sorted({1, cores}))
    rows = [
        {"kernel": "gemm", "m": m, "n": n, "k": k, "sms": sms, "latency_s": 2e-5 + m * n * k / 1e10 / sms, **common}
        for m, (n, k), sms in shapes
    ]
    provenance = Measured(device="cpu", sms=cores, source="measured", origin="a test", date="2026-11-30", model=model)
    return Profile.of([*rows, *({**common, **row} for row in layers)], provenance)


def token_times(result: RunResult) -> list[list[float]]:
    """Of each request, without the rounding of sums."""
    return [np.round(result.token_times[name], 9).tolist() for name in result.records.request_id]


def timeline(result: RunResult, *columns: str) -> list[tuple[Any, ...]]:
    """(start, end, lane, and so many columns) of each step, in order of completion."""
    log = result.steps
    return [
        (
            round(float(log.start_s[i]), 9),
            round(float(log.end_s[i]), 9),
            log.lane_names[log.lane[i]],
            *(int(getattr(log, name)[i]) for name in columns),
        )
        for i in range(len(log))
    ]
