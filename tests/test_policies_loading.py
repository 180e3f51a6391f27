"""From names and settings to policies: what is accepted, what is refused, and what the refusal says."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies import POLICIES, Bullet, ChunkedPrefill, Disaggregation, LeastLoaded, RoundRobin, StaticSplit, load

OWN = """
from dataclasses import dataclass
from typing import ClassVar

from policies import ChunkedPrefill


@dataclass(frozen=True, slots=True, kw_only=True)
class Mine(ChunkedPrefill):
    name: ClassVar[str] = "mine"
    bonus: float = 1.0


class NoDataclass:
    def decide(self, view): ...


@dataclass(frozen=True)
class Bare:
    def decide(self, view): ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Exits(ChunkedPrefill):
    def __post_init__(self):
        raise SystemExit(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raises(ChunkedPrefill):
    @property
    def fewest_instances(self):
        raise RuntimeError("few")


@dataclass(frozen=True, slots=True, kw_only=True)
class Two(ChunkedPrefill):
    fewest_instances: ClassVar[str] = "two"


instance = Mine()
"""


def test_every_name_loads_with_its_defaults():
    for name, cls in POLICIES.items():
        policy = load(name)
        assert isinstance(policy, cls)
        assert policy.name == name
        assert policy == cls()


def test_settings_and_routers_are_set():
    policy = load("chunked", {"budget_tokens": 2048, "router": "round-robin"})
    assert policy == ChunkedPrefill(budget_tokens=2048, router=RoundRobin())
    assert load("bullet", {"sm_step": None, "percentile": 1}) == Bullet(percentile=1)
    assert load("disaggregation", {"decode_instances": 2}) == Disaggregation(decode_instances=2)
    assert load("static-split", {"decode_sms": None, "lend": True}) == StaticSplit(lend=True)
    assert load("chunked").router == LeastLoaded()


@pytest.mark.parametrize(
    ("name", "settings", "complaint"),
    [
        ("bulet", {}, f"unknown policy 'bulet'; known: {', '.join(POLICIES)}, or path.py:Class"),
        (
            "chunked",
            {"budget": 1},
            "chunked has no setting 'budget'; known: budget_tokens, prompt_share, max_resident, router",
        ),
        ("chunked", {"budget_tokens": "many"}, "setting budget_tokens is 'many'; it takes int"),
        ("chunked", {"budget_tokens": True}, "setting budget_tokens is True; it takes int"),
        ("chunked", {"budget_tokens": 1.5}, "setting budget_tokens is 1.5; it takes int"),
        ("chunked", {"budget_tokens": None}, "setting budget_tokens is None; it takes int"),
        ("bullet", {"reorder": 1}, "setting reorder is 1; it takes bool"),
        ("bullet", {"percentile": "0.9"}, "setting percentile is '0.9'; it takes float"),
        ("chunked", {"router": "nearest"}, "unknown router 'nearest'; known: round-robin, least-loaded"),
        ("chunked", {"router": 3}, "unknown router 3"),
        ("chunked", {"budget_tokens": 0}, "budget_tokens is 0"),
        ("disaggregation", {"prefill_instances": 0}, "prefill_instances is 0"),
        ("static-split", {"decode_sms": 0}, "static-split: decode_sms is 0; it must be 1 or more"),
        ("static-split", {"decode_sms": 0.5}, "setting decode_sms is 0.5; it takes int | None"),
        ("static-split", {"layers_per_step": 0}, "layers_per_step is 0"),
        ("static-split", {"batch_tokens": 0}, "batch_tokens is 0"),
        ("static-split", {"lend": "yes"}, "setting lend is 'yes'; it takes bool"),
        ("missing.py:Mine", {}, "policy file missing.py does not exist"),
    ],
)
def test_refusals_name_what_is_known(name: str, settings: dict[str, object], complaint: str):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        load(name, settings)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_policy_of_ones_own(tmp_path: Path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    policy = load(f"{path}:Mine", {"bonus": 2.0, "budget_tokens": 64})
    assert policy.name == "mine"
    assert policy.bonus == 2.0  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="setting bonus is 'big'; it takes float"):
        load(f"{path}:Mine", {"bonus": "big"})
    with pytest.raises(ValueError, match="Bare lacks name, needs_truth, fewest_instances, router, roles, lanes; see"):
        load(f"{path}:Bare")
    for wrong, complaint in (
        ("Exits", "cannot be made: SystemExit: 0"),
        ("Raises", "cannot be made: RuntimeError: few"),
        ("Two", "fewest_instances is 'two'; it must be a whole number"),
    ):
        with pytest.raises(ValueError, match=complaint):
            load(f"{path}:{wrong}")
    for missing in ("Other", "NoDataclass", "instance"):
        with pytest.raises(ValueError, match=f"has no dataclass '{missing}' with a method decide"):
            load(f"{path}:{missing}")
    path.write_text("import sys; sys.exit(3)\n")
    with pytest.raises(ValueError, match="cannot be loaded: SystemExit: 3"):
        load(f"{path}:Mine")
    path.write_text("import nothing_of_the_kind\n")
    with pytest.raises(ValueError, match="cannot be loaded: ModuleNotFoundError"):
        load(f"{path}:Mine")


def test_disaggregation_wants_the_instances_it_is_set_to():
    assert Disaggregation(prefill_instances=2).fewest_instances == 3
    with pytest.raises(ValueError, match="set to 1P1D, 2 instances, and was given 4"):
        Disaggregation().roles(4)
    assert Disaggregation(prefill_instances=1, decode_instances=2).roles(3) == ("prefill", "decode", "decode")
