"""The simulator: settings in, records, metrics, sweeps and figures out.

    from sim import RunConfig, prepare, summarise

    config = RunConfig(trace="workload:code", rate=4.0, requests=200, policy="bullet", model="Llama-3.1-8B",
                       device="A100-80G", slo={"ttft_s": 3.0, "tpot_s": 0.2})
    result = prepare(config).run()
    metrics = summarise(result, config.slo.value(), config.gpus)

Figures are in :mod:`sim.plots`, pages in :mod:`sim.report`; docs/simulator.md says what happens in between.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sim.executor import SimExecutor
from sim.instance import PolicyError
from sim.launch import Completion, Executor, Launch
from sim.limits import Limits
from sim.loop import ServingLoop
from sim.records import STATES, Records, RunResult, StepLog

if TYPE_CHECKING:
    from sim.capacity import Question, Search
    from sim.config import RunConfig, load_config
    from sim.fanout import Fanout
    from sim.metrics import Metrics, attainment, knee, summarise
    from sim.results import load_results
    from sim.rundir import load_run, write_run
    from sim.simulate import Prepared, measure, prepare
    from sim.sweep import Sweep, run_sweep
    from sim.sweep_cells import Cell, cells
    from sim.sweep_spec import SweepSpec, read_spec

__all__ = [
    "STATES",
    "Cell",
    "Completion",
    "Executor",
    "Fanout",
    "Launch",
    "Limits",
    "Metrics",
    "PolicyError",
    "Prepared",
    "Question",
    "Records",
    "RunConfig",
    "RunResult",
    "Search",
    "ServingLoop",
    "SimExecutor",
    "StepLog",
    "Sweep",
    "SweepSpec",
    "attainment",
    "cells",
    "knee",
    "load_config",
    "load_results",
    "load_run",
    "measure",
    "prepare",
    "read_spec",
    "run_sweep",
    "summarise",
    "write_run",
]

# What reads settings and files needs pydantic and Arrow; the loop does not, and commands begin with what they need.
_LATER = {
    "sim.capacity": ("Question", "Search"),
    "sim.config": ("RunConfig", "load_config"),
    "sim.fanout": ("Fanout",),
    "sim.metrics": ("Metrics", "attainment", "knee", "summarise"),
    "sim.results": ("load_results",),
    "sim.rundir": ("load_run", "write_run"),
    "sim.simulate": ("Prepared", "measure", "prepare"),
    "sim.sweep": ("Sweep", "run_sweep"),
    "sim.sweep_cells": ("Cell", "cells"),
    "sim.sweep_spec": ("SweepSpec", "read_spec"),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'sim' has no attribute {name!r}")
