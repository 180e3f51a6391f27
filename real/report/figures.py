"""The report's figures: the two worlds side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from real.attribution import CAUSES, Attribution, Cause
from real.comparison import METRICS, Cell, Comparison, Side
from real.launches import LaunchLog
from real.stepwise import beside, lane_rows
from sim.plots.equality import against
from sim.plots.style import BLUE, GREEN, GREY, LANE_COLOURS, ORANGE, PURPLE, VERMILION, figure, styled
from sim.plots.timeline import compared
from sim.records import StepLog
from sim.report.words import NAMES

Floats = NDArray[np.float64]

REAL, SIMULATED = VERMILION, BLUE
CURVE_POINTS = 150
CLOSE_STEPS = 60
CAUSE_COLOURS = {"host": ORANGE, "kernels": PURPLE, "contention": GREEN, "rest": GREY}


def requests(comparison: Comparison) -> Figure:
    """Each request's TTFT, TPOT and end-to-end time, simulated against measured, with the limit about equality."""
    with styled():
        drawing = figure(7.2, 2.5)
        for axes, metric in zip(drawing.subplots(1, len(METRICS)), METRICS, strict=True):
            measured, simulated = comparison.paired.measured[metric], comparison.paired.simulated[metric]
            against(axes, measured, simulated, comparison.limit, SIMULATED)
            axes.set_title(NAMES[metric])
            axes.set_xlabel("measured (s)")
        drawing.axes[0].set_ylabel("simulated (s)")
    return drawing


def distributions(cell: Cell) -> Figure:
    """Share of requests at or below a time: every real run that counts, and the simulated one."""
    with styled():
        drawing = figure(7.2, 2.3)
        panels = drawing.subplots(1, len(METRICS), sharey=True)
        for axes, (metric, of) in zip(panels, METRICS.items(), strict=True):
            for number, side in enumerate(cell.used):
                label = "real runs" if not number else "_"
                _curve(axes, of(side.run.records), REAL, "-", label)
            _curve(axes, of(cell.simulated.run.records), SIMULATED, "--", "simulated")
            axes.set(xlabel=f"{NAMES[metric]} (s)", ylim=(0, 1.02))
            axes.set_xlim(left=0)
        panels[0].set_ylabel("share of requests")
        handles, labels = panels[0].get_legend_handles_labels()
        drawing.legend(handles, labels, loc="outside upper center", ncols=2)
    return drawing


def _curve(axes: Axes, values: Floats, colour: str, line: str, label: str) -> None:
    known = np.sort(values[~np.isnan(values)])
    share = np.arange(1, len(known) + 1) / max(1, len(known))
    if len(known) > CURVE_POINTS:
        rows = np.linspace(0, len(known) - 1, CURVE_POINTS).astype(np.int64)
        known, share = known[rows], share[rows]
    axes.step(known, share, where="post", color=colour, linestyle=line, linewidth=1.1, alpha=0.85, label=label)


def steps(comparison: Comparison) -> Figure | None:
    """Each step's duration, predicted against measured, a panel a lane; None where no step has both."""
    logs = [(side.run.steps, side.launches) for side in comparison.cell.used]
    lanes = sorted({name for log, _ in logs for name in log.lane_names})
    if not lanes:
        return None
    with styled():
        drawing = figure(7.2 if len(lanes) > 1 else 3.6, 2.9)
        for axes, lane in zip(drawing.subplots(1, len(lanes), squeeze=False)[0], lanes, strict=True):
            _draw_steps(axes, lane, logs, comparison.limit, comparison.cell.simulated.run.config.shared_device)
            axes.set(title=lane, xlabel="measured (ms)", ylabel="predicted (ms)")
        handles, labels = _company_legend(drawing.axes[0])
        drawing.legend(handles, labels, loc="outside upper center", ncols=2)
    return drawing


def _draw_steps(
    axes: Axes, lane: str, logs: Sequence[tuple[StepLog, LaunchLog | None]], limit: float, one_device: bool
) -> None:
    parts: dict[bool, list[tuple[Floats, Floats]]] = {False: [], True: []}
    for log, launches in logs:
        company = np.zeros(len(log), np.bool_)
        company[beside(log, launches, one_device=one_device).row] = True
        mine = np.array([name == lane for name in log.lane_names], np.bool_)[log.lane]
        for together in parts:
            rows = mine & (company == together)
            parts[together].append((log.end_s[rows] - log.start_s[rows], log.predicted_s[rows]))
    for together, columns in parts.items():
        measured, predicted = (1e3 * np.concatenate(column) for column in zip(*columns, strict=True))
        if len(measured):
            against(axes, measured, predicted, limit, VERMILION if together else BLUE, hollow=together)


def _company_legend(axes: Axes) -> tuple[list[Artist], list[str]]:
    alone = axes.scatter([], [], s=12, color=BLUE)
    together = axes.scatter([], [], s=12, facecolors="none", edgecolors=VERMILION)
    return [alone, together], ["alone", "beside another lane"]


def timelines(cell: Cell, sms: int) -> Figure | None:
    """SM shares and batches of the first real run above the simulated one's; None where neither ran a step."""
    worlds = {"measured": cell.used[0].run.steps, "simulated": cell.simulated.run.steps}
    ends = [float(log.end_s.max()) for log in worlds.values() if len(log)]
    return compared(worlds, sms, start_s=0.0, end_s=max(ends)) if ends else None


def lanes(cell: Cell) -> Figure | None:
    """Some CLOSE_STEPS steps where lanes overlap most in the first real run, and the same seconds simulated."""
    sides = {"measured": cell.used[0], "simulated": cell.simulated}
    window = _window(sides["measured"])
    if window is None:
        return None
    rows = {world: lane_rows(side.run.steps) for world, side in sides.items()}
    height = sum(max(1, len(found)) for found in rows.values())
    with styled():
        drawing = figure(7.2, 0.9 + 0.32 * height)
        ratios = [max(1, len(found)) for found in rows.values()]
        panels = drawing.subplots(2, 1, sharex=True, height_ratios=ratios)
        for axes, (world, side) in zip(panels, sides.items(), strict=True):
            _draw_lanes(axes, side, rows[world], window)
            axes.set_title(world)
        panels[1].set_xlabel("Time (s)")
        panels[1].set_xlim(*window)
    return drawing


def _window(side: Side) -> tuple[float, float] | None:
    """From begin to end of CLOSE_STEPS steps in a row, of those that spend the most time beside others."""
    log = side.run.steps
    if not len(log):
        return None
    row, _, seconds = beside(log, side.launches, one_device=True)
    shared = np.zeros(len(log))
    np.add.at(shared, row, seconds)
    order = np.argsort(log.start_s, kind="stable")
    count = min(CLOSE_STEPS, len(log))
    sums = np.convolve(shared[order], np.ones(count), mode="valid")
    first = int(np.argmax(sums)) if sums.any() else (len(log) - count) // 2
    chosen = order[first : first + count]
    return float(log.start_s[chosen].min()), float(log.end_s[chosen].max())


def _draw_lanes(axes: Axes, side: Side, lanes: dict[str, NDArray[np.int64]], window: tuple[float, float]) -> None:
    """Bars while the device was at a step, on a paler one from decision to notice."""
    log, launches = side.run.steps, side.launches
    for place, (name, rows) in enumerate(lanes.items()):
        rows = rows[(log.end_s[rows] > window[0]) & (log.start_s[rows] < window[1])]
        colour = LANE_COLOURS.get(name.split(" ")[0], GREY)
        flight = np.column_stack((log.start_s[rows], log.end_s[rows] - log.start_s[rows]))
        busy = flight if launches is None else np.column_stack((launches.begin_s[rows], launches.device_s[rows]))
        axes.broken_barh(flight.tolist(), (place - 0.36, 0.72), facecolors="#DDDDDD", linewidth=0)
        axes.broken_barh(busy.tolist(), (place - 0.3, 0.6), facecolors=colour, edgecolors="white", linewidth=0.4)
    axes.set_yticks(range(len(lanes)), list(lanes))
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def causes(found: Attribution) -> Figure | None:
    """From the simulated to the measured mean, a cause at a time, in percent of the measured one."""
    if not found.causes:
        return None
    with styled():
        drawing = figure(7.2, 1.9)
        panels = drawing.subplots(1, len(found.causes), sharey=True, squeeze=False)[0]
        for axes, (metric, cause) in zip(panels, found.causes.items(), strict=True):
            _draw_causes(axes, cause)
            axes.set(title=f"mean {NAMES[metric]}", xlabel="% of measured")
        names = ["simulated", *CAUSES, "measured"]
        panels[0].set_yticks(range(len(names)), names)
        panels[0].invert_yaxis()
    return drawing


def _draw_causes(axes: Axes, cause: Cause) -> None:
    scale = 100.0 / cause.measured if cause.measured else 0.0
    at = cause.simulated * scale
    axes.barh(0, at, color=SIMULATED, height=0.6)
    reached = [at, 100.0]
    for place, name in enumerate(CAUSES, 1):
        change = getattr(cause, name) * scale
        axes.barh(place, change, left=at, color=CAUSE_COLOURS[name], height=0.6)
        label = f"{round(change, 1) + 0.0:+.1f}"  # no minus nought
        axes.annotate(label, (max(at, at + change), place), (3, 0), textcoords="offset points", va="center")
        at += change
        reached.append(at)
    axes.barh(len(CAUSES) + 1, 100.0, color=REAL, height=0.6)
    low, high = min(reached), max(reached)
    margin = max(2.0, 0.35 * (high - low))
    axes.set_xlim(max(0.0, low - margin) if low >= 0 else low - margin, high + margin)
    axes.grid(visible=False, axis="y")
