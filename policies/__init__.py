"""What to run next, on which SMs: the contract (:mod:`policies.api`) and one file a policy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from policies.api import (
    LINK,
    Chunk,
    Decision,
    LaneView,
    Load,
    Observation,
    Outcome,
    Policy,
    RequestProgress,
    Role,
    Router,
    Step,
    TrueView,
    View,
    simulated_only,
)
from policies.loading import CLASSES, POLICIES, load
from policies.routing import ROUTERS, LeastLoaded, PrefixAffine, RoundRobin
from policies.slo import SLO

if TYPE_CHECKING:
    from policies.bullet import Bullet
    from policies.bullet_eager import BulletEager
    from policies.chunked import ChunkedPrefill
    from policies.disaggregation import Disaggregation
    from policies.duetserve import DuetServe
    from policies.muxwise import MuxWise
    from policies.nanoflow import NanoFlow
    from policies.nexus import Nexus
    from policies.oracle import Oracle
    from policies.pod import Pod
    from policies.prefill_first import PrefillFirst
    from policies.semi_pd import SemiPD
    from policies.sglang_chunked import SglangChunked
    from policies.static_split import StaticSplit
    from policies.uncapped_streams import UncappedStreams
    from policies.vllm_chunked import VllmChunked

__all__ = [
    "LINK",
    "POLICIES",
    "ROUTERS",
    "SLO",
    "Bullet",
    "BulletEager",
    "Chunk",
    "ChunkedPrefill",
    "Decision",
    "Disaggregation",
    "DuetServe",
    "LaneView",
    "LeastLoaded",
    "Load",
    "MuxWise",
    "NanoFlow",
    "Nexus",
    "Observation",
    "Oracle",
    "Outcome",
    "Pod",
    "Policy",
    "PrefillFirst",
    "PrefixAffine",
    "RequestProgress",
    "Role",
    "RoundRobin",
    "Router",
    "SemiPD",
    "SglangChunked",
    "StaticSplit",
    "Step",
    "TrueView",
    "UncappedStreams",
    "View",
    "VllmChunked",
    "load",
    "simulated_only",
]


def __getattr__(name: str) -> Any:
    # A policy's class: a run imports the one that it has.
    for module, cls in CLASSES.values():
        if cls == name:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'policies' has no attribute {name!r}")
