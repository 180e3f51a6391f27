"""Numbers in a reader's words."""

from __future__ import annotations

DASH = "\N{EN DASH}"

NAMES = {
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "e2e_s": "end to end",
    "requests_per_s": "requests/s",
    "tokens_per_s": "output tokens/s",
    "makespan_s": "makespan",
}
"""Statistics by their metric."""


def seconds(value: float | None) -> str:
    """Seconds, milliseconds or microseconds, to three digits."""
    if value is None:
        return DASH
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if abs(value) * scale >= 0.9995:
            return f"{_three_digits(value * scale)} {unit}"
    return f"{_three_digits(value * 1e6)} \N{MICRO SIGN}s" if value else "0 s"


def percent(value: float | None) -> str:
    """A share in percent, to a tenth; a dash for none."""
    return DASH if value is None else f"{100 * value:.1f} %"


def number(value: float | None) -> str:
    """To three digits, without an exponent."""
    return DASH if value is None else _three_digits(value)


def amount(metric: str, value: float | None) -> str:
    """A value of ``metric`` in its unit: seconds, unless its name says a second."""
    return number(value) if metric.endswith("_per_s") else seconds(value)


def verdict(within: bool | None) -> str:
    """A headline statistic's verdict in a word."""
    return DASH if within is None else "within" if within else "OFF"


def _three_digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3g}"
