"""A server's link as a setting of the latency model: all-reduces and KV transfers go at it, nothing else does."""

from __future__ import annotations

import pytest

from profiler.kernelsum import KernelSumModel
from profiler.work import Work
from sim.config import RunConfig
from sim.latencies import latency_model

PREFILL, DECODE = Work(prefill=((1024, 0),)), Work((), 32, 16_000)


def model(device: str, name: str = "Llama-3.1-70B", **latency: object) -> KernelSumModel:
    settings = {"trace": "workload:chat", "policy": "chunked", "model": name, "device": device, "tensor_parallel": 8}
    return latency_model(RunConfig.model_validate({**settings, "latency": latency}))


def link_s(latency: KernelSumModel, work: Work) -> float:
    return sum(time.seconds for time in latency.breakdown(work, latency.device.sms) if time.kernel.kind == "link")


def test_all_reduces_of_the_paper_s_a100_server():
    """Two a layer and one of the embedding, of 16 KiB a token: a GPU sends 2 * 7/8 of it at 20 GB/s, after 10 us."""
    slow = model("A100-80G", model="roofline", link_bytes_per_s=20e9)
    one_s = 10e-6 + 2 * 7 / 8 * 1024 * 8192 * 2 / 20e9
    gather_s = 10e-6 + 7 * 128256 / 8 * 2 / 20e9
    assert link_s(slow, PREFILL) == pytest.approx(161 * one_s + gather_s)


@pytest.mark.parametrize(
    ("device", "name", "bytes_per_s"),
    [
        ("A100-80G", "Llama-3.1-70B", 20e9),
        ("H100", "Llama-3.1-70B", 600e9),
        ("H20", "Qwen3-235B-A22B-FP8", 400e9),
    ],
)
@pytest.mark.parametrize("work", [PREFILL, DECODE])
def test_the_link_changes_what_crosses_it_and_nothing_else(device, name, bytes_per_s, work):
    own, set_ = model(device, name), model(device, name, link_bytes_per_s=bytes_per_s)
    difference = set_.estimate(work, own.device.sms).seconds - own.estimate(work, own.device.sms).seconds
    assert difference == pytest.approx(link_s(set_, work) - link_s(own, work), rel=1e-6)
    faster = bytes_per_s > own.device.link_bytes_per_s
    assert (difference < 0) == faster


def test_kv_transfers_go_at_the_link_too():
    tokens = Work(kv_transfer_tokens=1000)
    moved = 1000 * 2 * 80 * 128 * 2  # one KV head of eight on each GPU, keys and values of 80 layers
    for name in ("roofline", "fitted"):
        slow = model("A100-80G", model=name, link_bytes_per_s=20e9)
        assert slow.estimate(tokens, 1).seconds == pytest.approx(10e-6 + moved / 20e9)
