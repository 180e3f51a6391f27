"""The serving loop, its simulated executor, and what a run leaves behind."""

from sim.executor import SimExecutor
from sim.instance import PolicyError
from sim.launch import Completion, Executor, Launch
from sim.limits import Limits
from sim.loop import ServingLoop
from sim.records import STATES, Records, RunResult, StepLog

__all__ = [
    "STATES",
    "Completion",
    "Executor",
    "Launch",
    "Limits",
    "PolicyError",
    "Records",
    "RunResult",
    "ServingLoop",
    "SimExecutor",
    "StepLog",
]
