"""What a validation is to do: its settings as a value and a file, and the runs that follow from them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from policies.api import Policy
from sim.config import Count, PolicySettings, Seconds, Settings, SloSettings
from sim.sweep_spec import Named

Positive = Annotated[float, Field(gt=0)]

BLOCK_TOKENS = 16


def rate_label(rate: float) -> str:
    """A rate as the name of a cell has it."""
    return f"{rate:.12g}"


def policy_label(shown: str) -> str:
    """A policy's label as the name of a cell has it."""
    return re.sub(r"[^\w.=,()-]+", "_", shown)


class Plan(Settings):
    """A validation: every policy at every rate, for real and simulated, on the same requests.

    rates: requests a second over all instances; empty keeps the trace's own times, stretched by ``time_scale``.
    shrink: lengths are divided by it. repeats: real runs of each policy and rate.
    slots: requests whose KV an instance may hold. profile, latency: a measured profile, or a latency model, to use in
        place of measuring. quick: measure the coarse grid only.
    temperature: of sampling; 0 takes the likeliest token.
    """

    device: Literal["cpu", "cuda"]
    model: str
    trace: str
    policies: Annotated[list[Named], Field(min_length=1)]
    rates: list[Positive] = Field(default_factory=list)
    time_scale: Positive = 1.0
    requests: Count | None = None
    shrink: Count = 1
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    slo: SloSettings = SloSettings()
    repeats: Count = 2
    slots: Count | None = None
    profile: str | None = None
    latency: str | None = None
    quick: bool = False
    until_s: Seconds | None = None
    temperature: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        for what, found in (
            ("policy", [entry.shown for entry in self.policies]),
            ("rate", list(map(rate_label, self.rates))),
        ):
            double = [value for place, value in enumerate(found) if value in found[:place]]
            if double:
                raise ValueError(f"{what} {double[0]} is named twice; name each once")
        folders = {policy_label(entry.shown): entry.shown for entry in self.policies}
        for entry in self.policies:
            if (other := folders[policy_label(entry.shown)]) != entry.shown:
                raise ValueError(f"policies {entry.shown} and {other} would share a folder; rename the file of one")
        if self.profile is not None and self.latency is not None:
            raise ValueError("a profile and a latency model are both given; the model is fitted to a profile: give one")
        if self.rates and self.time_scale != 1:
            raise ValueError("time_scale stretches the trace's own arrivals, and rates replace them; give one of them")
        return self


@dataclass(frozen=True, slots=True)
class Contestant:
    """A policy of the plan on the instances that it takes.

    instance_sms: SMs of each instance, None for a whole device each.
    """

    label: str
    settings: PolicySettings
    policy: Policy
    instances: int
    instance_sms: int | None

    @property
    def lanes(self) -> tuple[tuple[str, ...], ...]:
        """The lanes of each instance."""
        return tuple(self.policy.lanes(role) for role in self.policy.roles(self.instances))
