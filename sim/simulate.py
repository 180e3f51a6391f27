"""From settings to a run: traces, latency model, policy, executor and loop put together, nothing more."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

import policies
from policies.api import Policy
from profiler.kernelsum import KernelSumModel
from profiler.latency import LatencyModel
from sim.checked_policy import CheckedPolicy
from sim.config import RunConfig, SloSettings, WindowSettings, package_version
from sim.executor import SimExecutor
from sim.latencies import latency_model, stamped
from sim.launch import Executor
from sim.limits import Limits
from sim.loop import ServingLoop
from sim.metrics import Metrics, summarise
from sim.neighbours import Neighbours
from sim.prefixcache import HashedBlocks
from sim.records import RunResult
from traces import ArrivalSpec, ReadOptions, Trace, open_trace, parse_arrivals, with_hashes
from traces.arrivals import ArrivalSource
from traces.progress import part, untold
from traces.sessions import HASHED_TOKENS

Progress = Callable[[int, float], None]

OPENED = 0.7
"""Share of checking the cells of a trace that is done when it has been read."""

MOST_BLOCKS = 1 << 31
"""KV blocks of an instance: their count fits the 32 bits of a step's row."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """Everything a run needs, checked. ``config`` carries the version and the hash of the trace.

    latency: what steps run by. estimator: what the policy plans with, the same model unless the settings name two.
    device: with ``shared_device`` what steps would run by on the whole of it.
    """

    config: RunConfig
    trace: Trace
    arrivals: ArrivalSpec
    latency: LatencyModel
    estimator: LatencyModel
    policy: Policy
    limits: Limits
    device: LatencyModel | None = None

    def run(self, *, progress: Progress | None = None, keep_token_times: bool = False) -> RunResult:
        """Serves the trace. ``progress`` hears (finished requests, simulated seconds)."""
        return self.loop(progress=progress, keep_token_times=keep_token_times).run()

    def executor(self, latency: LatencyModel, device: LatencyModel | None) -> SimExecutor:
        """Virtual time in which steps run by ``latency``; ``device``: as of :class:`Prepared`."""
        return SimExecutor(latency=latency, neighbours=None if device is None else Neighbours(device))

    def loop(
        self,
        *,
        executor: Executor | None = None,
        source: ArrivalSource | None = None,
        progress: Progress | None = None,
        keep_token_times: bool = False,
    ) -> ServingLoop:
        """The serving loop, about to start: in virtual time, unless another ``executor`` owns time and the device.

        ``source``: where requests come from, if not straight from the trace.
        """
        config = self.config
        if executor is None and self.limits.total_blocks >= MOST_BLOCKS:
            raise ValueError(f"kv_blocks is {self.limits.total_blocks}; a simulation takes less than {MOST_BLOCKS}")
        return ServingLoop(
            policy=self.policy,
            arrivals=source or self.arrivals.source(self.trace, config.seed),
            latency=self.estimator,
            executor=executor or self.executor(self.latency, self.device),
            instances=config.instances,
            slo=config.slo.value(),
            limits=self.limits,
            between=config.latency.between(),
            progress=progress,
            keep_token_times=keep_token_times,
        )


def prepare(config: RunConfig, *, reading: Callable[[float], None] = untold) -> Prepared:
    """Builds what ``config`` names, without running it; ``reading`` hears which share of its trace has been read.

    Raises ValueError for a name or setting that does not exist, a model that does not fit its device, a trace that
    is not the one ``config`` was made with, and with ``oversized="error"`` for a request that could never be served.
    """
    policy, latency, estimator = check_names(config)
    trace = _as_served(_opened(config, reading), config)
    limits = _with_prefixes(_limits(config, latency), trace, config)
    digest = trace_hash(trace, prefixes=config.prefix_cache)
    arrivals = _checked_arrivals(config, trace, limits, digest)
    stamp = {
        "version": package_version(),
        "trace_sha256": digest,
        "latency": stamped(config.latency),
        "estimator": config.planned and stamped(config.planned),
    }
    return Prepared(
        config=config.model_copy(update=stamp),
        trace=trace,
        arrivals=arrivals,
        latency=latency,
        estimator=estimator,
        policy=policy,
        limits=limits,
        device=whole_device(config) if config.shared_device else None,
    )


def _opened(config: RunConfig, reading: Callable[[float], None]) -> Trace:
    options = ReadOptions(seed=config.seed, progress=reading)
    return open_trace(config.trace, config.seed, config.requests, options=options, slice=config.slice)


class CannotRun(ValueError):
    """Settings that cannot be run: ``place`` is theirs among those that were checked."""

    def __init__(self, place: int, fault: str) -> None:
        super().__init__(fault)
        self.place = place


def check_all(configs: Sequence[RunConfig], progress: Callable[[float], None] = untold) -> None:
    """Raises CannotRun, worded as :func:`prepare` words it, for one of the configs that cannot run.

    Every trace is opened once, and what cells have in common is checked once. ``progress`` hears how far it is.
    """
    by_trace: dict[tuple[str, int, int | None, str | None], list[tuple[int, RunConfig]]] = {}
    for place, config in enumerate(configs):
        source = (config.trace, config.seed, config.requests, config.slice)
        by_trace.setdefault(source, []).append((place, config))
    limits: dict[str, Limits] = {}
    done = 0
    for members in by_trace.values():
        trace: Trace | None = None
        seen = set()
        tell = part(progress, done / len(configs), (done + len(members)) / len(configs))
        done += len(members)
        for number, (place, config) in enumerate(members):
            tell(OPENED * (trace is not None) + (1 - OPENED) * number / len(members))
            build = config.model_dump_json(exclude={"trace", "arrivals", "rate", "seed", "requests", "slo", "window"})
            if (config.arrivals, config.rate, build) in seen:
                continue
            seen.add((config.arrivals, config.rate, build))
            try:
                if build not in limits:
                    limits[build] = _limits(config, check_names(config)[1])
                trace = trace or _opened(config, part(tell, 0, OPENED))
                served = _as_served(trace, config)
                digest = trace_hash(served, prefixes=config.prefix_cache) if config.trace_sha256 else ""
                here = _with_prefixes(limits[build], served, config)
                _checked_arrivals(config, served, here, digest).source(served, config.seed)
            except ValueError as error:
                raise CannotRun(place, str(error)) from None


def _checked_arrivals(config: RunConfig, trace: Trace, limits: Limits, trace_sha256: str) -> ArrivalSpec:
    """How the requests of ``trace`` arrive; ValueError where they cannot, are too large, or are others."""
    if config.oversized == "error":
        _check_sizes(trace, limits, config)
    if config.trace_sha256 not in (None, trace_sha256):
        raise ValueError(
            f"trace {config.trace} is not the one these settings were made with (SHA-256 {trace_sha256},"
            f" expected {config.trace_sha256}); give that trace, or remove trace_sha256"
        )
    return _arrivals(trace, config)


def check_names(config: RunConfig) -> tuple[Policy, KernelSumModel, KernelSumModel]:
    """The policy, latency model and estimator of ``config``; ValueError where a name, a setting or a size is wrong."""
    policy = policies.load(config.policy.name, config.policy.settings)
    CheckedPolicy(policy).roles(config.instances)
    latency = latency_model(config)
    if config.shared_device:
        _check_parts(config, whole_device(config))
    if config.kv_blocks is None:
        latency.kv_capacity_tokens(config.memory_fraction)
    return policy, latency, latency_model(config, config.planned) if config.planned else latency


def whole_device(config: RunConfig) -> KernelSumModel:
    """What steps would take on all of the device that ``config``'s instances are parts of."""
    return latency_model(config.model_copy(update={"instance_sms": None}))


def _check_parts(config: RunConfig, whole: KernelSumModel) -> None:
    needed = config.instances * (config.instance_sms or 0)
    if needed > whole.device.sms:
        raise ValueError(
            f"shared_device is true, and {config.instances} instances of {config.instance_sms} SMs are {needed};"
            f" {config.device} has {whole.device.sms}; take fewer instances or SMs, or a device each"
        )


def simulate(config: RunConfig, *, progress: Progress | None = None, keep_token_times: bool = False) -> RunResult:
    """One run, from settings to its records. Raises ValueError as :func:`prepare` does."""
    return prepare(config).run(progress=progress, keep_token_times=keep_token_times)


def measure(config: RunConfig) -> Metrics:
    """The summary of one run."""
    return measure_together([config])[0]


def measure_together(configs: Sequence[RunConfig]) -> list[Metrics]:
    """The summary of each of several runs that one simulation serves: those of equal :func:`simulated` settings."""
    result = simulate(configs[0])
    return [summarise(result, one.slo.value(), one.gpus, one.window.value()) for one in configs]


def simulated(config: RunConfig) -> RunConfig:
    """What of the settings a simulation depends on: not the window of metrics, nor an SLO that the policy never reads.

    A policy says so itself, in a class attribute ``reads_slo``; one that inherits it may have added a reader.
    """
    policy = type(policies.load(config.policy.name, config.policy.settings))
    changes: dict[str, object] = {"window": WindowSettings()}
    if not vars(policy).get("reads_slo", True):
        changes["slo"] = SloSettings()
    return config.model_copy(update=changes)


def trace_hash(trace: Trace, *, prefixes: bool = False) -> str:
    """SHA-256 over lengths and, where there are any, arrival times: equal requests, equal hash.

    ``prefixes``: over block hashes too, for a run that they make a difference to.
    """
    digest = hashlib.sha256()
    for column in (trace.prompt_tokens, trace.output_tokens, trace.arrival_s):
        if column is not None:
            digest.update(np.ascontiguousarray(column).tobytes())
    if prefixes:
        digest.update(json.dumps([trace.block_tokens, trace.answers_hashed, trace.block_hashes]).encode())
    return digest.hexdigest()


def _as_served(trace: Trace, config: RunConfig) -> Trace:
    """The trace with hashed blocks, where the run caches prefixes."""
    if not config.prefix_cache:
        return trace
    size = config.block_tokens
    return with_hashes(trace, size * -(-HASHED_TOKENS // size))


def _with_prefixes(limits: Limits, trace: Trace, config: RunConfig) -> Limits:
    if not config.prefix_cache:
        return limits
    assert trace.block_tokens is not None
    return replace(limits, prefixes=HashedBlocks(trace.block_tokens, trace.answers_hashed))


def _limits(config: RunConfig, latency: LatencyModel) -> Limits:
    blocks = config.kv_blocks
    if blocks is None:
        tokens = latency.kv_capacity_tokens(config.memory_fraction)
        blocks = tokens // config.block_tokens
        if blocks < 1:
            raise ValueError(
                f"block_tokens is {config.block_tokens} and only {tokens} tokens of KV fit; use smaller blocks"
            )
    return Limits(
        block_tokens=config.block_tokens,
        total_blocks=blocks,
        queue_limit=config.queue_limit,
        context_tokens=latency.model.max_context,
        until_s=config.until_s,
        reuse_preempted=config.reuse_preempted,
    )


def _check_sizes(trace: Trace, limits: Limits, config: RunConfig) -> None:
    total = trace.prompt_tokens + trace.output_tokens
    row = int(np.argmax(total))
    prompt, output = int(trace.prompt_tokens[row]), int(trace.output_tokens[row])
    misfit = limits.misfit(prompt, output)
    if not misfit:
        return
    limit = (
        f"{limits.context_tokens} tokens, the context of {config.model}"
        if misfit == "context"
        else f"the {limits.total_blocks} KV blocks of {limits.block_tokens} tokens of an instance on {config.device}"
    )
    raise ValueError(
        f"trace {config.trace}, request {trace[row].request_id}: {prompt} prompt + {output} output tokens exceed"
        f" {limit}; serve the rest with --oversized reject, or choose another model or device"
    )


def _arrivals(trace: Trace, config: RunConfig) -> ArrivalSpec:
    """The process that ``arrivals`` and ``rate`` name together."""
    if config.arrivals is not None:
        spec = parse_arrivals(config.arrivals)
        return spec if config.rate is None else spec.at_rate(config.rate)
    if trace.arrival_s is not None:
        spec = ArrivalSpec(kind="recorded")
        return spec if config.rate is None else spec.at_rate(config.rate)
    if config.rate is None:
        raise ValueError(f"trace {config.trace} has no arrival times; give a rate (--rate 4), or arrivals")
    return ArrivalSpec(kind="poisson", value=config.rate)
