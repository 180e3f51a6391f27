"""Real runs made up: simulations in worlds that differ from the model in a known way, with launches to show for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from profiler.latency import Estimate, LatencyModel
from profiler.work import Work
from real.comparison import Side
from real.corrections import CorrectedModel, Corrections
from real.launches import LaunchLog
from sim.config import RunConfig, checked
from sim.metrics import summarise
from sim.rundir import Run
from sim.simulate import Prepared, prepare

SETTINGS = {
    # Of two worlds that differ by a hair, a policy on the edge of its limits can decide otherwise: not this one, here.
    "bullet": {
        "policy": {
            "name": "bullet-eager",
            "settings": {"recalibrate": False, "on_time": False, "batch_fill": 0.9},
        },
        "instances": 1,
        "rate": 6.0,
    },
    "chunked": {"policy": "chunked", "instances": 1, "rate": 6.0},
    "disaggregation": {"policy": "disaggregation", "instances": 2, "rate": 10.0},
    "one device": {
        "policy": "disaggregation",
        "instances": 2,
        "instance_sms": 54,
        "shared_device": True,
        "kv_blocks": 4000,
        "rate": 5.0,
    },
}


@cache
def prepared(policy: str) -> Prepared:
    return prepare(config(policy))


def config(policy: str, **changes: Any) -> RunConfig:
    """A run of a second or so."""
    common = {
        "trace": "workload:sharegpt",
        "requests": 60,
        "model": "Llama-3.1-8B",
        "device": "A100-80G",
        "slo": {"ttft_s": 1.0, "tpot_s": 0.05},
    }
    return checked(RunConfig, common | SETTINGS[policy] | changes, "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaky(CorrectedModel):
    """Never the same time twice: estimates times a log-normal number of this ``noise``."""

    noise: float
    random: np.random.Generator = field(compare=False)

    def estimate(self, work: Work, sms: int, beside: Work | None = None, beside_sms: int = 0) -> Estimate:
        seconds, source = CorrectedModel.estimate(self, work, sms, beside, beside_sms)
        return Estimate(seconds * float(np.exp(self.noise * self.random.standard_normal())), source)


def world(policy: str, host_s: float = 0.0, *, noise: float = 0.0, seed: int = 0, **planted: Any) -> Side:
    """A run in a world whose truth is the model's with ``planted`` corrections, and the host's time in four parts."""
    ready = prepared(policy)
    host = dict.fromkeys(("prefill", "decode", "mixed", "transfer"), host_s)
    known = Corrections(host_s=host, **planted)
    right = CorrectedModel(inner=ready.latency, corrections=known)
    truth = Shaky(inner=right, corrections=Corrections(), noise=noise, random=np.random.default_rng(seed))
    return logged(ready, truth, host_s, ready.device and CorrectedModel(inner=ready.device, corrections=known))


def logged(ready: Prepared, truth: LatencyModel, host_s: float, device: LatencyModel | None = None) -> Side:
    """The run of ``ready`` where steps take what ``truth`` says, ``host_s`` of it outside the device.

    device: what they would take on all of the device that instances share.
    """
    result = ready.loop(executor=ready.executor(truth, device)).run()
    steps = result.steps
    # The loop decides one thing after another: at one instant the prefill before the decodes, as Bullet does.
    first = np.where(np.array(steps.lane_names)[steps.lane] == "decode", 2e-9, 1e-9)
    launches = LaunchLog(
        start_s=steps.start_s,
        sent_s=steps.start_s + host_s / 4 + first,
        begin_s=steps.start_s + host_s / 2 + first,
        finish_s=steps.end_s - host_s / 2,
        end_s=steps.end_s,
        processor_s=np.full(len(steps), np.nan),
        granted_sms=steps.sms,
    )
    metrics = summarise(result, ready.config.slo.value(), ready.config.gpus)
    run = Run(config=ready.config, records=result.records, steps=steps, summary=metrics.to_dict())
    return Side(run=run, launches=launches)


def simulated(policy: str) -> Side:
    return replace(world(policy), launches=None)
