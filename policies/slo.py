"""What requests must meet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SLO:
    """What a request must meet: a TTFT limit, which may grow with its prompt, and a TPOT limit.

    The TTFT limit of a prompt of n tokens is ``max(ttft_floor_s, ttft_s + n * ttft_per_token_s)``. Limits are in
    seconds; None means no limit.
    """

    ttft_s: float | None = None
    ttft_per_token_s: float | None = None
    ttft_floor_s: float = 0.0
    tpot_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_s", "ttft_per_token_s", "tpot_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"SLO {name} is {value}; it must be above 0, or left out for no limit")
        if not self.ttft_floor_s >= 0:
            raise ValueError(f"SLO ttft_floor_s is {self.ttft_floor_s}; it must be 0 or more")

    def ttft_limit_s(self, prompt_tokens: int) -> float:
        """The TTFT limit for a prompt of this length; infinity where there is none."""
        floor_s, base_s, token_s = self.ttft_line
        return max(floor_s, base_s + token_s * prompt_tokens)

    @property
    def ttft_line(self) -> tuple[float, float, float]:
        """(at least, without tokens, for each token) of the TTFT limit, for who asks for many prompts."""
        if not self.limits_ttft:
            return float("inf"), 0.0, 0.0
        return self.ttft_floor_s, self.ttft_s or 0.0, self.ttft_per_token_s or 0.0

    @property
    def limits_ttft(self) -> bool:
        """Whether there is a TTFT limit at all."""
        return self.ttft_s is not None or self.ttft_per_token_s is not None

    @property
    def tpot_limit_s(self) -> float:
        """The TPOT limit; infinity where there is none."""
        return float("inf") if self.tpot_s is None else self.tpot_s
