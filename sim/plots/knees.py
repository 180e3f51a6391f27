"""What knees come to: a sentence, and the rate at which policies are best compared."""

from __future__ import annotations

from sim.metrics import Knee
from sim.plots.series import Panel, has_slo


def verdict(panel: Panel) -> str:
    """One sentence: who keeps the target attainment to the highest rate, and by how much."""
    if not has_slo(panel):
        return f"{panel.workload}: no SLO given, so there is no attainment and no knee."
    knees = [(curve.label, knee) for curve in panel.curves if (knee := curve.knee())]
    reached = [(label, knee, knee.rate) for label, knee in knees if knee.rate is not None]
    if not reached:
        return f"{panel.workload}: no policy keeps 90 % attainment at any rate tested."
    endless = [label for label, knee, _ in reached if knee.kind == "always"]
    if len(endless) > 1:
        return f"{panel.workload}: {' and '.join(endless)} keep 90 % attainment at every rate tested."
    reached.sort(key=lambda entry: (entry[1].kind == "always", entry[2]), reverse=True)
    label, knee, rate = reached[0]
    best = f"{panel.workload}: {label} has the highest knee, {shown(knee)} requests/s per GPU"
    if len(reached) == 1:
        return f"{best}; no other policy keeps 90 % attainment at any rate tested."
    second, other, other_rate = reached[1]
    return f"{best}, {rate / other_rate - 1:.0%} above {second} ({shown(other)})."


def shown(knee: Knee | None) -> str:
    """A knee as text, with its sign where it lies beyond the rates tested; a dash for none."""
    return "-" if knee is None else str(knee)


def common_rate(panel: Panel) -> float:
    """The highest tested rate that the best policy sustains: where the others show what they lack."""
    rates = sorted({rate for curve in panel.curves for rate, _ in curve.rows})
    knees = [knee.rate for curve in panel.curves if (knee := curve.knee()) and knee.rate is not None]
    return max((rate for rate in rates if rate <= max(knees, default=0.0)), default=rates[0])
