"""The splits that a validation's lanes are made with: those that its policies ask for, on both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import policies
import profiler
from policies.api import Policy
from profiler.measure import shares_cuda
from profiler.measure.numerics import LLAMA3
from real.configs import contestant
from real.cuda_shares import LaneShares, Share
from real.machine import CudaMachine, split_sizes
from real.model import RunnableModel
from real.plan import Contestant, Plan
from real.validation import Validation
from sim.sweep_spec import PolicyEntry
from tests.fake_cuda import LaneRuntime

SMS = 132


def policy(name: str, **settings: object) -> Policy:
    return policies.load(name, settings)


@pytest.mark.parametrize(
    ("found", "sizes"),
    [
        ([policy("bullet", sm_step=16)], [16, 32, 48, 64, 80, 96, 112]),
        ([policy("static-split", decode_sms=40), policy("bullet", sm_step=44)], [40, 44, 88]),
        ([policy("static-split", decode_sms=200), policy("bullet", sm_step=66)], [66]),
        ([policy("chunked"), policy("static-split")], None),
    ],
)
def test_sizes_are_those_that_policies_move_to(found: list[Policy], sizes: list[int] | None) -> None:
    assert split_sizes(found, SMS) == sizes


def test_both_lanes_are_granted_what_bullet_and_a_static_split_ask_for() -> None:
    """Decode has the groups and prefill the rests, where the driver grants what was asked."""
    sizes = split_sizes([policy("bullet", sm_step=16), policy("static-split", decode_sms=48)], SMS)
    assert sizes is not None
    whole = Share(SMS, None)
    decode = LaneShares(whole, tuple(Share(size, None) for size in sizes))
    prefill = LaneShares(whole, tuple(Share(SMS - size, None) for size in sizes))
    for asked in range(16, SMS - 16 + 1, 16):
        assert decode.nearest(asked).sms == asked
        assert prefill.nearest(SMS - asked).sms == SMS - asked


class Made:
    """Lanes that only remember what was asked of them."""

    def __init__(self, model: RunnableModel, **settings: Any) -> None:
        self.settings, self.closed = settings, False
        self.names: list[Any] = []

    def rename(self, lanes: Any) -> None:
        self.names.append(lanes)

    def close(self) -> None:
        self.closed = True


def machine_of(*entries: PolicyEntry) -> tuple[list[Contestant], CudaMachine]:
    plan = Plan(device="cuda", model="tiny", trace="workload:sharegpt", policies=list(entries))
    everyone = [contestant(entry, plan, profiler.device("H200"), slots=8) for entry in entries]
    model = RunnableModel(profiler.model("tiny"), LLAMA3, seed=0)
    return everyone, CudaMachine(model, everyone, slots=8, slot_tokens=512, temperature=0.0)


def test_lanes_are_made_once_for_all_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares_cuda, "cuda_runtime", lambda ordinal=0: LaneRuntime(sms=SMS))
    monkeypatch.setattr("real.cuda.CudaLanes", Made)
    everyone, machine = machine_of(
        PolicyEntry(name="chunked"),
        PolicyEntry(name="bullet"),
        PolicyEntry(name="static-split", settings={"decode_sms": 40}),
    )
    opened: Any = [machine.lanes(who) for who in (*everyone, *everyone)]
    assert len(set(map(id, opened))) == 1
    assert opened[0].names == [who.lanes for who in (*everyone, *everyone)]
    assert opened[0].settings["splits"] == [16, 32, 40, 48, 64, 80, 96, 112]
    assert opened[0].settings["lanes"] == [("prefill", "decode")]
    machine.close()
    assert opened[0].closed


def test_two_instances_need_two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    entries = [PolicyEntry(name="chunked"), PolicyEntry(name="disaggregation")]
    plan = Plan(device="cuda", model="tiny", trace="workload:sharegpt", requests=3, rates=[1.0], policies=entries)
    with pytest.raises(ValueError, match=r"policy disaggregation: 2 GPUs are needed, .* and torch finds 1; take fewer"):
        Validation(plan, tmp_path / "out").run()
    assert not (tmp_path / "out").exists()
