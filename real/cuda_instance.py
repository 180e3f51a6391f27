"""Instances on GPUs: the model, its KV cache and lanes, and the streams that KV is copied on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from policies.api import LINK
from profiler.measure.green import asked
from profiler.measure.transformer import KVCache, Weights
from real.cuda_clock import DeviceClock
from real.cuda_lane import CudaLane, Replica
from real.cuda_memory import check_memory
from real.cuda_shares import DeviceShares, LaneShares, device_shares
from real.model import RunnableModel

MOST_LANES = 2
"""That use SMs, on one GPU: a split has two sides."""


class Needs(NamedTuple):
    """What every instance is made with. launch_tokens: the most of one launch. temperature: of sampling in graphs."""

    model: RunnableModel
    slots: int
    slot_tokens: int
    launch_tokens: int
    temperature: float
    dtype: torch.dtype


class Instance:
    """A replica, its lanes that use SMs, and the stream of its link."""

    def __init__(self, runtime: Any, needs: Needs, shares: Sequence[LaneShares], weights: Weights | None) -> None:
        """``weights``: None unless another instance has them on this GPU. Raises DeviceError for what does not fit."""
        runtime.forget()
        check_memory(
            runtime,
            needs.model.spec,
            needs.dtype,
            slots=needs.slots,
            slot_tokens=needs.slot_tokens,
            lanes=len(shares),
            streams=sum(len(share.all) for share in shares),
            launch_tokens=needs.launch_tokens,
            weights=weights is None,
        )
        slots, device, dtype = needs.slots + 1, runtime.device, needs.dtype
        self.replica = Replica(
            model=needs.model,
            runtime=runtime,
            clock=DeviceClock(runtime),
            weights=weights or needs.model.weights(device, dtype),
            cache=KVCache.of(needs.model.spec, slots, needs.slot_tokens, device, dtype),
            launch_tokens=needs.launch_tokens,
            temperature=needs.temperature,
        )
        self.lanes = [CudaLane(self.replica, share) for share in shares]
        self.link = runtime.stream()

    def close(self) -> None:
        """Frees all of it once nothing runs."""
        runtime = self.replica.runtime
        # A device that has failed answers nothing; its memory goes with the process.
        with suppress(RuntimeError):
            runtime.synchronize()
        for lane in self.lanes:
            lane.close()
        self.lanes.clear()
        del self.replica
        with suppress(RuntimeError):
            runtime.forget()


def shares_of(
    runtime: Any, driver: Any, instances: Sequence[Sequence[str]], splits: Sequence[int] | None
) -> DeviceShares:
    """Shares of the GPU that these instances are on; by default of as many sizes as a profile of it has.

    One instance alone, or two that do not share, use all SMs.
    """
    lanes = [len(computing(names)) for names in instances]
    default = asked(runtime.properties.multi_processor_count) if max(lanes) == MOST_LANES else []
    return device_shares(runtime, driver, sum(lanes), default if splits is None else splits)


def computing(names: Iterable[str]) -> list[str]:
    """The lanes that use SMs."""
    return [name for name in names if name != LINK]


def check_lanes(lanes: Sequence[Sequence[str]], devices: Sequence[int]) -> None:
    """Raises ValueError for lanes that GPUs cannot have."""
    if not lanes or len(devices) != len(lanes):
        raise ValueError(f"{len(lanes)} instances on {len(devices)} GPUs; there must be one or more, each with its GPU")
    for index, names in enumerate(lanes):
        if len(set(names)) < len(names) or not computing(names):
            raise ValueError(
                f"instance {index} has lanes {', '.join(names)}; names differ, and one or two are no links"
            )
    for device in dict.fromkeys(devices):
        here = [name for names, number in zip(lanes, devices, strict=True) if number == device for name in names]
        if len(computing(here)) > MOST_LANES:
            raise ValueError(
                f"GPU {device} has lanes {', '.join(computing(here))}; it has shares for {MOST_LANES}: give instances "
                f"GPUs of their own"
            )
