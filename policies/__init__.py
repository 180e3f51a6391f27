"""What to run next, on which SMs: the contract (:mod:`policies.api`) and one file a policy."""

from policies.api import (
    LINK,
    SLO,
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
)
from policies.bullet import Bullet
from policies.chunked import ChunkedPrefill
from policies.disaggregation import Disaggregation
from policies.loading import POLICIES, load
from policies.routing import ROUTERS, LeastLoaded, RoundRobin
from policies.static_split import StaticSplit

__all__ = [
    "LINK",
    "POLICIES",
    "ROUTERS",
    "SLO",
    "Bullet",
    "Chunk",
    "ChunkedPrefill",
    "Decision",
    "Disaggregation",
    "LaneView",
    "LeastLoaded",
    "Load",
    "Observation",
    "Outcome",
    "Policy",
    "RequestProgress",
    "Role",
    "RoundRobin",
    "Router",
    "StaticSplit",
    "Step",
    "TrueView",
    "View",
    "load",
]
