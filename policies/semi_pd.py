"""semi-PD: two processes on one GPU, whose percentages of the SMs follow the SLOs every few seconds.

Hong et al., arXiv 2504.19867. Prefill and decode are processes with MPS quotas that share weights and KV; each runs in
a loop of its own, as in a static split. What is added is feedback: at the end of each window the requests that finished
in it are held against the SLO, and the phase that missed its own gets more of the SMs.

Plainest choices where the text at hand leaves room: the two percentages add up to 100; a phase misses when the
percentile of TTFT (or TPOT) over its limit is above 1; where both miss, the one further over gets the SMs; a move is
``percent_step`` points and leaves either phase ``percent_least``; a window in which nothing finished changes nothing.
The change itself costs nothing: the paper hides it behind a process that waits with the new quota.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from typing import ClassVar, NamedTuple

from policies.api import Decision, Outcome, Router, View
from policies.forecast import percentile
from policies.phases import split_steps
from policies.routing import LeastLoaded
from policies.static_split import StaticSplit
from policies.twolanes import TwoLanes


class Window(NamedTuple):
    """This policy's memo: prefill's percentage, when the window ends, and the last request finished before it."""

    prefill_percent: int
    end_s: float
    before: Outcome | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SemiPD(TwoLanes):
    """Two lanes on every instance.

    window_s: seconds between two looks at the SLOs.
    prefill_percent: prefill's part of the SMs at first.
    percent_step, percent_least: how far a look moves the split, and what it leaves to either phase.
    percentile: the share of a window's requests that must be within an SLO for it to be met.
    batch_tokens: prompts are batched up to this many tokens; a longer one runs alone.
    max_resident: requests that may hold KV at once.
    """

    name: ClassVar[str] = "semi-pd"

    window_s: float = 5.0
    prefill_percent: int = 50
    percent_step: int = 10
    percent_least: int = 10
    percentile: float = 0.9
    batch_tokens: int = 1024
    max_resident: int = 1024
    router: Router = field(default_factory=LeastLoaded)

    def __post_init__(self) -> None:
        for name in ("percent_step", "percent_least", "batch_tokens", "max_resident"):
            if getattr(self, name) < 1:
                raise ValueError(f"semi-pd: {name} is {getattr(self, name)}; it must be 1 or more")
        if not self.window_s > 0:
            raise ValueError(f"semi-pd: window_s is {self.window_s}; it must be above 0")
        if not 0 < self.percentile <= 1:
            raise ValueError(f"semi-pd: percentile is {self.percentile}; it must be above 0 and at most 1")
        if not self.percent_least <= self.prefill_percent <= 100 - self.percent_least:
            raise ValueError(
                f"semi-pd: prefill_percent is {self.prefill_percent} and percent_least {self.percent_least}; "
                "each phase must start with percent_least or more"
            )

    def decide(self, view: View) -> Decision:
        window = self._window(view)
        split = StaticSplit(
            decode_sms=self._decode_sms(view, window.prefill_percent),
            batch_tokens=self.batch_tokens,
            max_resident=self.max_resident,
        )
        # A step that is repeated without asking would outlast the window's end.
        steps = tuple(step._replace(again=False) if step.again else step for step in split.decide(view).steps)
        return Decision(steps, window)

    def _window(self, view: View) -> Window:
        window = view.memo
        if not isinstance(window, Window):
            return Window(self.prefill_percent, view.now_s + self.window_s, None)
        if view.now_s < window.end_s:
            return window
        finished = list(takewhile(lambda outcome: outcome is not window.before, reversed(view.outcomes)))
        moved = window.prefill_percent + self.percent_step * self._towards_prefill(finished)
        percent = min(max(moved, self.percent_least), 100 - self.percent_least)
        latest = view.outcomes[-1] if view.outcomes else None
        return Window(percent, view.now_s + self.window_s, latest)

    def _towards_prefill(self, finished: list[Outcome]) -> int:
        """1 where prefill needs SMs, -1 where decode does, 0 where both meet their SLO."""
        ttft = percentile([outcome.ttft_ratio for outcome in finished], self.percentile)
        tpot = percentile([o.tpot_ratio for o in finished if o.tpot_ratio is not None], self.percentile)
        if max(ttft, tpot) <= 1:
            return 0
        return 1 if ttft >= tpot else -1

    @staticmethod
    def _decode_sms(view: View, prefill_percent: int) -> int:
        """Decode's share, in whole steps of what the device grants; at least a step to each phase."""
        step = split_steps(view, None)
        share = round(view.sms * (100 - prefill_percent) / 100 / step) * step
        return min(max(share, step), view.sms - step)
