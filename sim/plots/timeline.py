"""A run over time: SM shares, batches, the queue and free KV of each instance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sim.plots.levels import BINS, MOST_INSTANCES, Floats, in_flight, level, rows_of, shares
from sim.plots.style import BLUE, GREY, LANE_COLOURS, ORANGE, VERMILION, figure, styled
from sim.records import StepLog


def timeline(steps: StepLog, sms: int, *, start_s: float = 0.0, end_s: float | None = None) -> Figure:
    """Four stacked panels an instance, up to four instances side by side.

    ``sms`` is what a device has. Steps whose SMs overlap share them in time: the stack of shares is cut at 100 %,
    and what lies above is not drawn. Values are means over 1/240 of the span. Raises ValueError where no step ran
    between ``start_s`` and ``end_s`` (by default the run's end).
    """
    if not len(steps):
        raise ValueError("no step ran in this run, so there is nothing to draw")
    end_s = float(steps.end_s.max()) if end_s is None else end_s
    if not np.any((steps.end_s > start_s) & (steps.start_s < end_s)):
        raise ValueError(f"no step ran between {start_s:g} s and {end_s:g} s; give another span")
    instances = np.unique(steps.instance)[:MOST_INSTANCES]
    edges = np.linspace(start_s, end_s, BINS + 1)
    with styled():
        drawing = figure(7.2 if len(instances) > 1 else 4.6, 5.0)
        grid = drawing.subplots(4, len(instances), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 3, 2, 2))
        for column, instance in enumerate(instances):
            here = rows_of(steps, instance)
            _draw_shares(grid[0][column], steps, here, edges, sms)
            _draw_batches(grid[1][column], steps, here, edges)
            _draw_level(grid[2][column], edges, steps.start_s[here], steps.waiting[here].astype(np.float64), VERMILION)
            _draw_level(
                grid[3][column], edges, steps.start_s[here], steps.free_blocks[here].astype(np.float64) / 1e3, BLUE
            )
            grid[0][column].set_title(f"instance {instance}")
            grid[3][column].set_xlabel("Time (s)")
            grid[3][column].set_xlim(start_s, end_s)
        for axes, label in zip(
            grid[:, 0], ("SM share (%)", "Tokens in flight", "Waiting\nrequests", "Free KV\nblocks (k)"), strict=True
        ):
            axes.set_ylabel(label)
            axes.set_ylim(bottom=0)
        drawing.align_ylabels(grid[:, 0])
        _legend(drawing, grid[:2].flat)
    return drawing


def compared(worlds: Mapping[str, StepLog], sms: int, *, start_s: float, end_s: float) -> Figure:
    """SM shares and batches of the same traffic in each of ``worlds``, one above the other on one axis.

    ``sms`` is what a device has. Values as in :func:`timeline`; a world without steps stays empty.
    """
    edges = np.linspace(start_s, end_s, BINS + 1)
    found = [np.unique(steps.instance) for steps in worlds.values()]
    instances = np.unique(np.concatenate(found))[:MOST_INSTANCES] if found else np.zeros(0, np.int64)
    columns = max(1, len(instances))
    with styled():
        drawing = figure(7.2, 1.0 + 1.9 * len(worlds))
        grid = drawing.subplots(2 * len(worlds), columns, sharex=True, sharey=False, squeeze=False)
        for place, (name, steps) in enumerate(worlds.items()):
            shares, batches = grid[2 * place], grid[2 * place + 1]
            for column, instance in enumerate(instances):
                here = rows_of(steps, instance)
                _draw_shares(shares[column], steps, here, edges, sms)
                _draw_batches(batches[column], steps, here, edges)
                shares[column].set_title(f"{name}, instance {instance}" if columns > 1 else name)
            shares[0].set_ylabel("SM share (%)")
            batches[0].set_ylabel("Tokens\nin flight")
        _share_scale([axes for row in grid[1::2] for axes in row])
        for axes in grid.flat:
            axes.set_ylim(bottom=0)
            axes.set_xlim(start_s, end_s)
        for axes in grid[-1]:
            axes.set_xlabel("Time (s)")
        drawing.align_ylabels(grid[:, 0])
        _legend(drawing, grid.flat)
    return drawing


def _share_scale(panels: Sequence[Axes]) -> None:
    """Gives all panels the tallest one's height."""
    top = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(top=top)


def _draw_shares(axes: Axes, steps: StepLog, here: NDArray[np.intp], edges: Floats, sms: int) -> None:
    stacked = shares(steps, here, edges, sms)
    if stacked:
        colours = [LANE_COLOURS.get(name, GREY) for name in stacked]
        labels = [f"{name} SMs" for name in stacked]
        axes.stackplot(_middles(edges), *stacked.values(), labels=labels, colors=colours, linewidth=0)
    axes.axhline(100, color=GREY, linewidth=0.6)


def _draw_batches(axes: Axes, steps: StepLog, here: NDArray[np.intp], edges: Floats) -> None:
    prefill = in_flight(steps, here, edges, steps.prefill_tokens)
    axes.fill_between(_middles(edges), prefill, color=ORANGE, alpha=0.6, linewidth=0, label="prefill tokens")
    decode = in_flight(steps, here, edges, steps.decode_requests)
    axes.plot(_middles(edges), decode, color=BLUE, linewidth=1.1, label="decode batch")
    axes.set_yscale("symlog", linthresh=10)


def _draw_level(axes: Axes, edges: Floats, sampled_s: Floats, values: Floats, colour: str) -> None:
    if not len(sampled_s):
        return
    means = level(edges, sampled_s, values)
    axes.fill_between(_middles(edges), means, color=colour, alpha=0.25, linewidth=0)
    axes.plot(_middles(edges), means, color=colour, linewidth=0.9)


def _middles(edges: Floats) -> Floats:
    middles: Floats = (edges[:-1] + edges[1:]) / 2
    return middles


def _legend(drawing: Figure, panels: Iterable[Axes]) -> None:
    """Every series once, above the panels."""
    entries: dict[str, Artist] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        entries.update(zip(labels, handles, strict=True))
    columns = min(len(entries), 3)
    drawing.legend(list(entries.values()), list(entries), loc="outside upper center", ncols=columns, handlelength=1.6)
