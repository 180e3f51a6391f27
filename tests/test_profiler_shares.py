"""Kernels on every share at once against the same kernels on one share after another, to the last bit."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from profiler import fitted, layertable, roofline
from profiler.decodetable import DecodeTable
from profiler.devicecalibration import built_in
from profiler.everyshare import on_every_share, sums
from profiler.fittedmodel import beforehand
from profiler.kernels import Shard
from profiler.kernelsum import KernelSumModel
from profiler.kerneltime import KernelTime
from profiler.latency import LatencyModel
from profiler.layertable import cost_of
from profiler.series import decode_beside, prefill_groups, prefill_passes
from profiler.shardcalibration import ShardCalibration
from profiler.times import SOURCES, added
from profiler.work import Work
from real.corrections import CorrectedModel, Corrections

CASES = [
    ("Llama-3.1-8B", "A100-80G", 1),
    ("Llama-3.1-70B", "H100", 4),
    ("Llama-3.1-8B", "RTX-4090", 1),
    ("Qwen3-235B-A22B-FP8", "H100", 8),
]


def plain_model(inner: LatencyModel) -> CorrectedModel:
    """A latency model of which no more is known than that it is one; it corrects nothing."""
    return CorrectedModel(inner=inner, corrections=Corrections())


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
    clock = calibration.clock
    (found,) = sums(clock, [kernels])
    for sms in range(1, whole.device.sms + 1):
        assert found.on(sms) == added([clock.time(kernel, sms) for kernel in kernels])


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
            own = decode_beside(latency, requests, context, group)
            plain = decode_beside(plain_model(latency), requests, context, group)
            for sms in {1, total, *draw.sample(range(1, total), 4)}:
                alone = latency.estimate(Work((), requests, context), sms, group, max(1, total - sms))
                least, most = own.bounds(sms)
                assert least <= alone.seconds <= most <= 1.4 * least
                assert own.seconds(sms) == plain.seconds(sms) == alone.seconds
                assert own.bounds(sms) == plain.bounds(sms) == (alone.seconds, alone.seconds)


@pytest.mark.parametrize("case", CASES)
def test_batches_tabulated_together_are_those_tabulated_alone(case: tuple[str, str, int]) -> None:
    """Seconds and sources of decode attention: a block of batches against the kernels at its knots one by one."""
    _, device, ways = case
    whole = built_in(device)
    assert whole is not None
    calibration, shard = ShardCalibration(whole), Shard(model(*case).model, whole.device, ways)
    table = DecodeTable(
        shard, calibration.clock, lambda kernels: list(map(calibration.calibrated, kernels)), calibration
    )
    for requests in (1, 2, 15, 16, 100, 700):
        points = table.points(requests, 1)
        for sms in (1, 30, whole.device.sms - 1, whole.device.sms):
            pieces = table.add(requests, sms)
            times = [calibration.clock.time(point, sms) for point in points]
            assert pieces.starts == [math.ceil(point.size) for point in points[:-1]]
            for place, (one, two) in enumerate(pairwise(times)):
                a_token = (two.seconds - one.seconds) / (points[place + 1].size - points[place].size)
                assert pieces.a_token[place] == a_token
                assert pieces.at_zero[place] == one.seconds - a_token * points[place].size
                moved = two.bound == "dram"
                assert pieces.dram_at_zero[place] == (pieces.at_zero[place] if moved else 0.0)
                assert pieces.dram_a_token[place] == (a_token if moved else 0.0)
                weaker = max(SOURCES.index(one.source), SOURCES.index(two.source), SOURCES.index("interpolated"))
                assert pieces.sources[place] == SOURCES[weaker]


@pytest.mark.parametrize("case", CASES)
def test_what_was_asked_before_changes_no_answer(case: tuple[str, str, int]) -> None:
    """Estimates and costs of one launch on many shares, in two orders, and of another model's tables."""
    draw = random.Random(3)
    launches = [
        (Work(((draw.randint(1, 9000), 0),), draw.choice((0, 5)), 500, draw.choice((None, 4))), sms)
        for _ in range(30)
        for sms in draw.sample(range(1, model(*case).device.sms), 3)
    ]
    launches = [
        (work if work.decode_requests else work._replace(decode_context_tokens=0), sms) for work, sms in launches
    ]
    one, other = fitted(*case), fitted(*case)
    forwards = [(one.estimate(*launch), one.cost(launch[0])) for launch in launches]
    backwards = [(other.estimate(*launch), other.cost(launch[0])) for launch in reversed(launches)]
    assert forwards == backwards[::-1]
    for work, _ in launches:
        if work.layers is None:
            assert one.cost(work) == pytest.approx(cost_of(one.kernels_of(work)), rel=1e-12)


@pytest.mark.parametrize("latency", [model("Llama-3.1-8B", "A100-80G", 1), roofline("Llama-3.1-8B", "A100-80G")])
def test_a_pass_after_another_is_estimated_as_each_alone(latency: KernelSumModel) -> None:
    """By the model's own method and by that of models that have none."""
    passes = prefill_passes(latency, 50)
    plain = prefill_passes(plain_model(latency), 50)
    for chunks in (((100, 0),), ((100, 0), (2000, 30)), ((7, 0),) * 9, ((100, 0),)):
        work = Work(prefill=chunks)
        assert passes.of(chunks) == plain.of(chunks) == (latency.estimate(work, 50).seconds, latency.cost(work)[0])


@pytest.mark.parametrize("case", CASES)
def test_groups_of_one_batch_are_estimated_as_each_alone(case: tuple[str, str, int]) -> None:
    latency, chunks = model(*case), ((1000, 0), (70, 16))
    own, plain = prefill_groups(latency, chunks), prefill_groups(plain_model(latency), chunks)
    for sms in (1, 50, latency.device.sms):
        for layers, ends in ((1, False), (4, True), (latency.model.layers, True)):
            work = Work(chunks, layers=layers, head=ends)
            seconds = [groups.seconds(layers, ends, sms) for groups in (own, plain)]
            assert seconds == [latency.estimate(work, sms).seconds] * 2
    with pytest.raises(ValueError, match="has SMs 1 to"):
        own.seconds(1, False, latency.device.sms + 1)
    with pytest.raises(ValueError, match="layers is"):
        own.seconds(latency.model.layers + 1, True, 1)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("share", [0.2, 0.9])
def test_a_pass_with_too_few_tokens_is_too_slow_whatever_its_prompts(case: tuple[str, str, int], share: float) -> None:
    latency, draw = model(*case), random.Random(2)
    for sms in (20, latency.device.sms):
        passes = prefill_passes(latency, sms)
        seconds, flops = passes.of(((4096, 0),))
        rate = share * flops / seconds
        fewest = passes.fewest_tokens(rate, 64)
        # Experts have no line between knots, and nothing is known beforehand.
        assert bool(fewest) == (not latency.model.experts)
        for _ in range(30):
            tokens, count = draw.randint(1, max(1, fewest - 1)), draw.randint(1, 64)
            cuts = [0, *sorted(draw.sample(range(1, tokens), min(count, tokens) - 1)), tokens]
            seconds, flops = passes.of(tuple((end - begin, 0) for begin, end in pairwise(cuts)))
            assert not fewest or flops < rate * seconds


def test_a_device_measured_at_one_token_of_context_is_tabulated() -> None:
    """There is nothing between knots then."""
    whole = built_in("A100-80G")
    assert whole is not None
    decode = whole.ops["attention_decode"]
    decode = replace(decode, ranges={**decode.ranges, "decode_context_tokens": (1.0, 1.0)})
    latency = fitted("Llama-3.1-8B", replace(whole, ops={**whole.ops, "attention_decode": decode}))
    seconds = [latency.estimate(Work((), 4, context), 108).seconds for context in (4, 400, 40_000)]
    assert seconds == sorted(seconds)


def test_what_no_launch_has_is_refused_though_its_like_is_known() -> None:
    latency, group = model("Llama-3.1-8B", "A100-80G", 1), Work(((100, 0),), layers=4)
    latency.estimate(group, 50)
    with pytest.raises(ValueError, match="no launch has these token counts"):
        latency.estimate(group._replace(decode_requests=-1, decode_context_tokens=1), 50)


def test_sums_are_rounded_kernel_by_kernel() -> None:
    """As rows of an array are; sum() of Python 3.12 or later says 1.0 + 2.0**-52."""
    latency = model("Llama-3.1-8B", "A100-80G", 1)
    kernel = Shard(latency.model, latency.device, 1).layer_kernels(1)[0]
    assert added([KernelTime(kernel, seconds, "dram", "roofline") for seconds in (1.0, 2**-53, 2**-53)]).seconds == 1.0


def test_sums_made_together_are_those_made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (1, 3, 16, 17, 100, 641, 2048, 5000, 8192, 9000)
    works = [Work(((size, 0),)) for size in sizes] + [Work(((size, 0),), layers=2) for size in sizes]
    works += [Work((), size, 50 * size) for size in sizes[:6]]
    found = []
    for few, ready in ((0, False), (1 << 30, False), (128, True)):
        monkeypatch.setattr(layertable, "FEW", few)
        beforehand.cache_clear()
        latency = fitted("Llama-3.1-8B", "A100-80G")
        if ready:
            latency.make_ready()
        found.append([latency.estimate(work, sms) for sms in (1, 54, 107, 108) for work in works])
    assert found[0] == found[1] == found[2]
