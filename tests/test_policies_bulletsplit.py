"""The search for a split of the SMs against a scan over all of them, each estimated by itself."""

from __future__ import annotations

import random

import pytest

from policies.bulletsplit import DecodeClock, fewest_sms, useful_sms
from profiler import fitted, roofline
from profiler.kernelsum import KernelSumModel
from profiler.series import decode_beside
from profiler.work import Work

MODELS = [fitted("Llama-3.1-8B", "A100-80G"), roofline("Llama-3.1-8B", "A100-80G"), fitted("Qwen3-32B", "H100")]


@pytest.mark.parametrize("latency", MODELS)
def test_whatever_the_last_split_was_the_next_is_what_a_scan_finds(latency: KernelSumModel) -> None:
    """Decode's fewest SMs, and those beyond which it gains nothing; what was asked before makes no difference."""
    draw, total = random.Random(4), latency.device.sms
    for _ in range(12):
        group = Work(((draw.randint(1, 6000), 0),), layers=4, head=draw.random() < 0.3)
        requests, alpha, step = draw.randint(1, 250), draw.uniform(0.7, 1.5), draw.choice((1, 2, 16))
        context = requests * draw.randint(1, 3000)
        splits = decode_beside(latency, requests, context, group)
        shares = range(step, total - step + 1, step)
        alone = [
            alpha * latency.estimate(Work((), requests, context), sms, group, total - sms).seconds for sms in shares
        ]
        limit_s = draw.choice((draw.choice(alone), draw.uniform(0.5, 1.1) * alone[0], 1.5 * alone[-1], 0.5 * alone[-1]))
        fit = next((sms for sms, seconds in zip(shares, alone, strict=True) if seconds <= limit_s), None)
        most = shares[-1]
        useful = next(sms for sms, seconds in zip(shares, alone, strict=True) if seconds <= 1.02 * alone[-1])
        for last in (total, step, most, draw.choice(shares), 7):
            assert fewest_sms(DecodeClock(splits, alpha), last, total // 3, limit_s, step, total) == fit
        assert useful_sms(DecodeClock(splits, alpha), step, most) == useful
