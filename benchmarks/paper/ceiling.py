"""How far Bullet is from the oracle, which decision loses most, and what our variant makes of it.

    python -m benchmarks.paper.ceiling [--out out/paper] [--seeds 1] [--jobs N] [--requests N]

The setting is figure 15's, at its higher rates. The oracle searches every split at every decision and knows how long
answers will be. With one of its decisions taken away (requests as they wait; no pause; lengths unknown; one share for
decode) what it loses is what that decision is worth; the same is done to Bullet, and bullet-eager with one of its four
changes undone says which of them counts.
"""

from __future__ import annotations

from benchmarks.paper.command import KEY_HEADER, finish, options, rows_of, sweep
from benchmarks.paper.levels import attained_by_system, print_levels
from benchmarks.paper.setting import System

RATES = {"ShareGPT": (18.0, 22.0, 25.0), "Azure-Code": (4.4, 5.0, 5.5), "arXiv-Summary": (0.7, 0.8, 0.9)}

SYSTEMS = {
    "oracle": System(policy="oracle", settings={}),
    "oracle, as they wait": System(policy="oracle", settings={"order": False}),
    "oracle, no pause": System(policy="oracle", settings={"pause": False}),
    "oracle, lengths unknown": System(policy="oracle", settings={"lengths": False}),
    "oracle, 24 SMs decode": System(policy="oracle", settings={"decode_sms": 24}),
    "Bullet": System(policy="bullet", settings={}),
    "Bullet, as they wait": System(policy="bullet", settings={"reorder": False}),
    "Bullet, no pause": System(policy="bullet", settings={"pause_decode": False}),
    "Bullet, most on time": System(policy="bullet", settings={"on_time": True}),
    "bullet-eager": System(policy="bullet-eager", settings={}),
    "bullet-eager, shortest first": System(policy="bullet-eager", settings={"on_time": False}),
    "bullet-eager, pause for queues": System(policy="bullet-eager", settings={"pause_on_queue": True}),
    "bullet-eager, no cap": System(policy="bullet-eager", settings={"cap_at_drain": False}),
    "bullet-eager, no hurry": System(policy="bullet-eager", settings={"hurry_for_kv": False}),
}


def main() -> None:
    """See the module."""
    chosen = options(__doc__)
    swept = sweep(RATES, SYSTEMS, chosen)
    drawing = attained_by_system(swept, RATES, tuple(SYSTEMS))
    finish("ceiling", chosen, drawing, KEY_HEADER, rows_of(swept), ())
    print_levels(swept, RATES, tuple(SYSTEMS))


if __name__ == "__main__":
    main()
