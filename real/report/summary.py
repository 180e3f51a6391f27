"""What a terminal shows of a validation."""

from __future__ import annotations

from real.report.study import Study
from sim.report.words import NAMES, percent, seconds, verdict

SUMMARY_HEAD = ("policy", "req/s", "P50 of", "simulated", "measured", "error", "repeats", "verdict")
POLICY_WIDTH = 12


def summary_rows(found: Study) -> list[tuple[str, ...]]:
    """Rows under SUMMARY_HEAD, a table of at most 80 columns: one a cell and headline statistic."""
    rows: list[tuple[str, ...]] = []
    for studied in found.cells:
        cell = studied.comparison.cell
        for statistic in studied.comparison.headlines:
            rows.append(
                (
                    shortened(cell.policy),
                    f"{cell.rate:g}",
                    NAMES[statistic.metric],
                    seconds(statistic.simulated),
                    seconds(statistic.measured),
                    percent(statistic.error),
                    percent(statistic.repeatability),
                    verdict(statistic.within),
                )
            )
    return rows


def summary_lines(found: Study) -> list[str]:
    """What the table leaves out, in lines of at most 80 columns: verdicts counted, and the order of policies."""
    verdicts = found.verdicts
    lines = [f"{sum(verdicts)} of {len(verdicts)} within {found.limit:.0%} or the machine's repeatability"]
    for cell in (studied.comparison.cell for studied in found.cells):
        if cell.partial:
            lines.append(f"{shortened(cell.policy)} at {cell.rate:g} req/s: every real run was cut off")
    for order in found.orders:
        by = f"{order.rate:g} req/s, {NAMES[order.metric]} {order.part}"
        wrong = [pair for pair in order.pairs if not pair.agree]
        if not wrong:
            lines.append(f"{by}: same order in both worlds")
        for pair in wrong:
            less, more = (pair.first, pair.second) if pair.measured < 0 else (pair.second, pair.first)
            lines.append(f"{by}: {shortened(less)} < {shortened(more)} measured, not simulated")
    return lines


def shortened(name: str) -> str:
    """A policy's label, cut to its column."""
    return name if len(name) <= POLICY_WIDTH else name[: POLICY_WIDTH - 1] + "\N{HORIZONTAL ELLIPSIS}"
