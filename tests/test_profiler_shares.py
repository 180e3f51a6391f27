"""Kernels on every share at once against the same kernels on one share after another, to the last bit."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from profiler import fitted, roofline
from profiler.devicecalibration import built_in
from profiler.everyshare import SOURCES, Sums, on_every_share
from profiler.kernels import Shard
from profiler.kernelsum import KernelSumModel
from profiler.latency import decode_beside
from profiler.shardcalibration import ShardCalibration
from profiler.times import added
from profiler.work import Work

CASES = [
    ("Llama-3.1-8B", "A100-80G", 1),
    ("Llama-3.1-70B", "H100", 4),
    ("Llama-3.1-8B", "RTX-4090", 1),
    ("Qwen3-235B-A22B-FP8", "H100", 8),
]


@cache
def model(name: str, device: str, ways: int) -> KernelSumModel:
    return fitted(name, device, ways)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tokens", [1, 33, 1000, 9000])
def test_a_sum_on_every_share_is_that_on_each(case: tuple[str, str, int], tokens: int) -> None:
    """Products in waves, links, experts, ops that nobody measured."""
    _, device, ways = case
    whole = built_in(device)
    assert whole is not None
    calibration, shard = ShardCalibration(whole), Shard(model(*case).model, whole.device, ways)
    kernels = [calibration.calibrated(kernel) for kernel in shard.layer_kernels(tokens)]
    sums, clock = Sums(calibration.clock, kernels), calibration.clock
    for sms in range(1, whole.device.sms + 1):
        assert sums.on(sms) == added([clock.time(kernel, sms) for kernel in kernels])


def test_measured_shares_are_kept_apart() -> None:
    """Between two measured shares, on them and beyond, times and sources are those of one share at a time."""
    whole = built_in("A100-80G")
    assert whole is not None
    product = replace(whole.ops["gemm"], share_sms=(27, 54, 108), share_log=(0.3, 0.1, 0.0))
    calibration = ShardCalibration(replace(whole, ops={**whole.ops, "gemm": product}))
    shard, clock = Shard(model("Llama-3.1-8B", "A100-80G", 1).model, whole.device, 1), calibration.clock
    kernels = [calibration.calibrated(kernel) for kernel in shard.layer_kernels(700)]
    seconds, dram, sources = on_every_share(clock, kernels)
    for row, kernel in enumerate(kernels):
        for sms in range(1, 109):
            _, alone_s, bound, source = clock.time(kernel, sms)
            found = seconds[row, sms], bool(dram[row, sms]), SOURCES[sources[row, sms]]
            assert found == (alone_s, bound == "dram", source)


@pytest.mark.parametrize("case", CASES)
def test_a_split_after_another_is_estimated_as_each_alone(case: tuple[str, str, int]) -> None:
    """A decode step beside a layer group, on any share, none left over for the group included."""
    name, device, ways = case
    draw = random.Random(1)
    for latency in (model(*case), roofline(name, device, ways)):
        total = latency.device.sms
        for _ in range(20):
            group = Work(((draw.randint(1, 8000), draw.randint(0, 100)),), layers=4, head=draw.random() < 0.5)
            requests = draw.randint(1, 300)
            context = requests * draw.randint(1, 3000)
            seconds = decode_beside(latency, requests, context, group)
            for sms in {1, total, *draw.sample(range(1, total), 4)}:
                alone = latency.estimate(Work((), requests, context), sms, group, max(1, total - sms))
                assert seconds(sms) == alone.seconds
