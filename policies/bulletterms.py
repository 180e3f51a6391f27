"""What is the same for all of Bullet's decisions on an instance, looked up once; and its memo."""

from __future__ import annotations

from typing import Protocol

from policies.api import Chunk, Outcome, Step, View
from policies.forecast import fewest
from policies.phases import decode_step, whole_steps
from policies.recalibration import UNCORRECTED, Alphas
from profiler.series import PrefillGroups


class Settings(Protocol):
    """Those of policies.bullet.Bullet."""

    @property
    def layers_per_step(self) -> int: ...
    @property
    def percentile(self) -> float: ...
    @property
    def queue_horizon(self) -> int: ...
    @property
    def batch_fill(self) -> float: ...
    @property
    def sm_step(self) -> int | None: ...
    @property
    def max_resident(self) -> int: ...
    @property
    def partition(self) -> bool: ...
    @property
    def move_sms(self) -> bool: ...
    @property
    def reorder(self) -> bool: ...
    @property
    def pause_decode(self) -> bool: ...
    @property
    def pause_on_queue(self) -> bool: ...
    @property
    def recalibrate(self) -> bool: ...
    @property
    def on_time(self) -> bool: ...
    @property
    def hurry_for_kv(self) -> bool: ...
    @property
    def cap_at_drain(self) -> bool: ...


class Terms:
    """Settings, and what of the instance they are about never changes.

    splits: whether the phases have shares; step: SMs by which these change. saturating_sms: the fewest that draw
        nearly all of the bandwidth. layers: of the model.
    decode_steps: a step of all that decode, nobody pre-empted, by SMs; decode_again: on all of them, to be repeated.
    """

    __slots__ = (
        "_settings",
        "batch_fill",
        "block_tokens",
        "cap_at_drain",
        "decode_again",
        "decode_steps",
        "hurry_for_kv",
        "latency",
        "layers",
        "layers_per_step",
        "limits_tpot",
        "limits_ttft",
        "max_resident",
        "move_sms",
        "on_time",
        "pause_decode",
        "pause_on_queue",
        "percentile",
        "queue_horizon",
        "recalibrate",
        "reorder",
        "saturating_sms",
        "slo",
        "sms",
        "splits",
        "step",
        "tpot_limit_s",
        "ttft_base_s",
        "ttft_floor_s",
        "ttft_token_s",
    )

    def __init__(self, settings: Settings, view: View) -> None:
        self._settings = settings
        self.layers_per_step = settings.layers_per_step
        self.percentile = settings.percentile
        self.queue_horizon = settings.queue_horizon
        self.batch_fill = settings.batch_fill
        self.max_resident = settings.max_resident
        self.move_sms = settings.move_sms
        self.reorder = settings.reorder
        self.pause_decode = settings.pause_decode
        self.pause_on_queue = settings.pause_on_queue
        self.recalibrate = settings.recalibrate
        self.on_time = settings.on_time
        self.hurry_for_kv = settings.hurry_for_kv
        self.cap_at_drain = settings.cap_at_drain
        self.slo = slo = view.slo
        self.limits_ttft = slo.limits_ttft
        self.ttft_floor_s, self.ttft_base_s, self.ttft_token_s = slo.ttft_line
        self.limits_tpot = slo.tpot_s is not None
        self.tpot_limit_s = slo.tpot_limit_s
        self.latency = view.latency
        self.layers = view.latency.model.layers
        self.sms = view.sms
        self.splits = settings.partition and view.sms > 1
        self.block_tokens = view.block_tokens
        self.step = whole_steps(view, settings.sm_step)
        self.saturating_sms = _saturating_sms(view, self.step)
        self.decode_steps = [decode_step(sms, ()) for sms in range(self.sms + 1)]
        self.decode_again = decode_step(self.sms, (), True)

    def hold(self, settings: Settings, view: View) -> bool:
        """Whether they are those of these settings, and of this instance."""
        return settings is self._settings and view.latency is self.latency and view.slo is self.slo

    def ttft_limit_s(self, prompt_tokens: int) -> float:
        """See ``SLO.ttft_limit_s``."""
        return max(self.ttft_floor_s, self.ttft_base_s + self.ttft_token_s * prompt_tokens)


def _saturating_sms(view: View, step: int) -> int:
    """The fewest SMs that draw nine tenths of the bandwidth: decode's share without a TPOT SLO."""
    total = view.sms
    _, all_bytes = view.latency.ceilings(total)
    sms = fewest(step, total - step, step, lambda n: view.latency.ceilings(n)[1] >= 0.9 * all_bytes)
    return max(1, total // 2) if sms is None else sms


class State:
    """Bullet's memo, which nobody changes: the split, and what was learned.

    latest, past_tpot_held: the newest of the finished requests, and whether the TPOT percentile of those of late is
        within its limit.
    chunks, groups: the batch that prefill was on or began, and the times of its layers.
    prefill: the last step of it.
    """

    __slots__ = (
        "alphas",
        "chunks",
        "decode_sms",
        "groups",
        "latest",
        "past_tpot_held",
        "prefill",
        "prefill_sms",
        "terms",
    )

    def __init__(
        self,
        prefill_sms: int,
        decode_sms: int,
        terms: Terms | None = None,
        alphas: Alphas = UNCORRECTED,
        latest: Outcome | None = None,
        past_tpot_held: bool = True,
        chunks: tuple[Chunk, ...] = (),
        groups: PrefillGroups | None = None,
        prefill: Step | None = None,
    ) -> None:
        self.prefill_sms = prefill_sms
        self.decode_sms = decode_sms
        self.terms = terms
        self.alphas = alphas
        self.latest = latest
        self.past_tpot_held = past_tpot_held
        self.chunks = chunks
        self.groups = groups
        self.prefill = prefill
