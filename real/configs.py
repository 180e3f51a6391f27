"""The settings of each run of a validation: which policy on which instances, on which requests, by which model."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import policies
from profiler.devicecalibration import DeviceCalibration
from profiler.fittedmodel import fitted
from profiler.specs import DeviceSpec, ModelSpec
from real.hosttime import OutsideTime
from real.pace import Pace
from real.plan import BLOCK_TOKENS, Contestant, Plan
from real.probes import KINDS
from sim.config import LatencySettings, PaceSettings, PolicySettings, RunConfig, checked
from sim.sweep_spec import PolicyEntry

SHARES = 8
"""Parts of a GPU by which policies move SMs, as far as its granularity allows: pairs of shares are made beforehand."""


MOST_SLOTS = {"cpu": 256, "cuda": 128}
MEMORY_SHARE = 0.75
"""Of the device's memory, for weights and KV; the rest is for launches, graphs and what else there is."""


def default_slots(plan: Plan, model: ModelSpec, device: DeviceSpec, requests: int, slot_tokens: int) -> int:
    """Slots of an instance where the plan leaves them open: one a request, as far as a device of this kind has memory.

    Worked out from the latency model's device, so that a report made elsewhere comes to the same.
    """
    # Instances on a CPU share its memory.
    sharing = max(policies.load(entry.name, entry.settings).fewest_instances for entry in plan.policies)
    instances = sharing if plan.device == "cpu" else 1
    left = MEMORY_SHARE * device.memory_bytes - model.weight_bytes
    fitting = int(left // (instances * slot_tokens * model.kv_bytes_per_token))
    return max(1, min(requests, MOST_SLOTS[plan.device], fitting))


def contestant(entry: PolicyEntry, plan: Plan, device: DeviceSpec, slots: int) -> Contestant:
    """The policy with what the device sets, on as few instances as it runs on.

    Settings that a policy has and the plan leaves open: it holds no more requests than there are slots, and moves SMs
    by shares that were made. Instances on a CPU have equal parts of its cores, on GPUs one each.
    Raises ValueError for a policy or setting that does not exist, or too few cores.
    """
    settings = dict(entry.settings)
    known = {field.name for field in fields(type(policies.load(entry.name, settings)))}  # type: ignore[arg-type]
    if "max_resident" in known:
        settings.setdefault("max_resident", slots)
    if "sm_step" in known and plan.device == "cuda":
        grain = device.sm_granularity
        settings.setdefault("sm_step", max(1, round(device.sms / SHARES / grain)) * grain)
    policy = policies.load(entry.name, settings)
    instances = policy.fewest_instances
    sms = None
    if plan.device == "cpu" and instances > 1:
        sms = device.sms // instances
        if not sms:
            raise ValueError(
                f"policy {entry.shown} needs {instances} instances, and there are {device.sms} cores; leave it out, or "
                f"take more cores"
            )
    settled = PolicySettings(name=entry.name, settings=settings)
    return Contestant(entry.shown, settled, policy, instances, sms)


class Today(NamedTuple):
    """How the device was while it served, for the steps of a simulation; see LatencySettings."""

    pace: PaceSettings
    wake_s: float


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs of a validation have in common. slots, slot_tokens: of each instance's KV cache."""

    plan: Plan
    trace: Path
    model_file: Path
    calibration: DeviceCalibration
    slots: int
    slot_tokens: int

    def today(self, pace: Pace) -> Today:
        """What was measured beside all runs, for the latency model of them all."""
        model = fitted(self.plan.model, self.calibration)
        of_kinds = {kind: pace.by_sms(kind) for kind in KINDS}
        document = {**of_kinds, "products": pace.products(model).document(), "losses": pace.losses(model)}
        return Today(checked(PaceSettings, document, "pace of the real runs"), pace.wake_s)

    def config(self, who: Contestant, rate: float | None, host: OutsideTime, today: Today | None = None) -> RunConfig:
        """The settings of one run.

        host: seconds of a launch that the host takes outside the device. With ``today``, of a simulation, steps run by
        the model on the device as it was, and the policy still plans with what was fitted.
        """
        plan = self.plan
        planned = LatencySettings(
            model=str(self.model_file),
            launch_overhead_s=self.calibration.host.launch_s + host.decode_s,
            prefill_overhead_s=max(0.0, host.prefill_s - host.decode_s),
        )
        return RunConfig(
            trace=str(self.trace),
            rate=rate,
            policy=who.settings,
            model=plan.model,
            device=self.calibration.device.name,
            instances=who.instances,
            instance_sms=who.instance_sms,
            shared_device=who.instance_sms is not None,
            slo=plan.slo,
            seed=plan.seed,
            kv_blocks=self.slots * self.slot_tokens // BLOCK_TOKENS,
            block_tokens=BLOCK_TOKENS,
            until_s=plan.until_s,
            latency=planned if today is None else planned.model_copy(update=today._asdict()),
            estimator=None if today is None else planned,
        )
