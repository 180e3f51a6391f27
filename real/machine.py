"""The devices of a validation: the model on them once, and lanes for one policy after another."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from policies.api import LINK, Policy
from real.lanes import Lanes
from real.model import RunnableModel
from real.plan import Contestant

if TYPE_CHECKING:
    from real.cpu import CpuLanes
    from real.cuda import CudaLanes

LAUNCH_TOKENS = 16384
BATCHED_TOKENS = 4096
BUDGETS = ("budget_tokens", "batch_tokens")
"""Settings by which policies say how many tokens they batch."""


def launch_tokens(policies: Iterable[Policy], slots: int, slot_tokens: int) -> int:
    """The most tokens of one launch: what policies batch, and one prompt more of any length; all slots at most."""
    batched = [getattr(policy, name, BATCHED_TOKENS) for policy in policies for name in BUDGETS]
    return min(slots * slot_tokens, max(LAUNCH_TOKENS, max(batched) + slot_tokens))


def check_gpus(instances: int, policy: str) -> None:
    """Raises ValueError, naming the policy that needs them, where there are fewer GPUs than instances."""
    from profiler.measure.shares_cuda import cuda_runtime

    try:
        cuda_runtime(instances - 1)
    except ValueError as error:
        raise ValueError(f"policy {policy}: {error}") from None


class CpuMachine:
    """The cores that this process may use. Every policy has processes of its own, which stay until the end.

    slots, slot_tokens: of each instance's KV cache.
    """

    def __init__(self, model: RunnableModel, *, slots: int, slot_tokens: int) -> None:
        self._model, self._slots, self._slot_tokens = model, slots, slot_tokens
        self._open: dict[str, CpuLanes] = {}

    def lanes(self, contestant: Contestant) -> Lanes:
        """Lanes that are ready for the policy. Raises ValueError where there are too few cores or too little memory."""
        from real.cpu import CpuLanes

        known = self._open.get(contestant.label)
        if known is None:
            known = self._open[contestant.label] = CpuLanes(
                self._model,
                lanes=contestant.lanes,
                cores_each=contestant.instance_sms or len(os.sched_getaffinity(0)),
                slots=self._slots,
                slot_tokens=self._slot_tokens,
                launch_tokens=launch_tokens([contestant.policy], self._slots, self._slot_tokens),
                seed=self._model.seed,
            )
        return known

    def gpus(self) -> tuple[str, ...]:
        """NVML's names of what draws power here: nothing that it knows."""
        return ()

    def waited_s(self) -> float | None:
        """Seconds that threads of lanes have been ready without a core so far, None where the system does not tell."""
        waited = sum(lanes.waited_s() for lanes in self._open.values())
        return None if math.isnan(waited) else waited

    def close(self) -> None:
        """Ends all processes."""
        for lanes in self._open.values():
            lanes.close()
        self._open.clear()


class CudaMachine:
    """One GPU an instance. Weights are loaded and graphs captured once, for the policies that need the most lanes.

    contestants: all that will serve here. temperature: of sampling.
    """

    def __init__(
        self,
        model: RunnableModel,
        contestants: Sequence[Contestant],
        *,
        slots: int,
        slot_tokens: int,
        temperature: float,
    ) -> None:
        self._model, self._contestants = model, tuple(contestants)
        self._slots, self._slot_tokens, self._temperature = slots, slot_tokens, temperature
        self._open: CudaLanes | None = None

    def lanes(self, contestant: Contestant) -> Lanes:
        """Lanes that are ready for the policy. Raises ValueError and DeviceError where they cannot be had."""
        from profiler.measure.shares_cuda import cuda_runtime
        from real.cuda import CudaLanes

        if self._open is None:
            whole = cuda_runtime().properties.multi_processor_count
            self._open = CudaLanes(
                self._model,
                lanes=_widest([one.lanes for one in self._contestants]),
                splits=split_sizes([one.policy for one in self._contestants], whole),
                slots=self._slots,
                slot_tokens=self._slot_tokens,
                launch_tokens=launch_tokens([one.policy for one in self._contestants], self._slots, self._slot_tokens),
                seed=self._model.seed,
                temperature=self._temperature,
            )
        self._open.rename(contestant.lanes)
        return self._open

    def gpus(self) -> tuple[str, ...]:
        """NVML's names of the GPUs in use."""
        return () if self._open is None else self._open.uuids

    def waited_s(self) -> float | None:
        """A GPU's lanes wait for no core."""
        return None

    def close(self) -> None:
        """Frees the GPUs."""
        if self._open is not None:
            self._open.close()
            self._open = None


def split_sizes(contestants: Sequence[Policy], sms: int) -> list[int] | None:
    """SMs that the decode lane of a device of ``sms`` is asked for: what each policy moves by or is fixed to.

    None where no policy says so; lanes then choose.
    """
    sizes: set[int] = set()
    for policy in contestants:
        step, fixed = getattr(policy, "sm_step", None), getattr(policy, "decode_sms", None)
        if step is not None:
            sizes.update(range(step, sms - step + 1, step))
        if fixed is not None and fixed < sms:
            sizes.add(fixed)
    return sorted(sizes) or None


def _widest(found: Sequence[Sequence[Sequence[str]]]) -> list[Sequence[str]]:
    """For each instance that anyone has, the names of the most lanes that use SMs."""
    instances = max(map(len, found))
    each = [[lanes[place] for lanes in found if place < len(lanes)] for place in range(instances)]
    return [max(names, key=lambda own: sum(name != LINK for name in own)) for names in each]
