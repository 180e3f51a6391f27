"""``bulletsim plot``: figures from a sweep's or a run's directory."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Kind(StrEnum):
    """What there is to draw."""

    frontier = "frontier"
    latency = "latency"
    timeline = "timeline"


def plot(
    kind: Annotated[Kind, typer.Argument(help="frontier and latency take a sweep, timeline a run.")],
    directory: Annotated[Path, typer.Argument(help="The --out of bulletsim sweep, or of bulletsim simulate.")],
    out: Annotated[
        Path | None, typer.Option(help="A .pdf, .svg or .png; a PNG (or PDF) of the same name is written beside it.")
    ] = None,
    start: Annotated[float | None, typer.Option(min=0, help="timeline: from this simulated second.")] = None,
    end: Annotated[float | None, typer.Option(min=0, help="timeline: to this simulated second.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Draw a figure."""
    from cli.output import print_json
    from sim.plots.style import save

    if kind is not Kind.timeline and (start is not None or end is not None):
        raise ValueError(f"--start and --end are for timeline; {kind} draws every rate of a sweep")
    figure = _timeline(directory, start or 0.0, end) if kind is Kind.timeline else _curves(kind, directory)
    paths = save(figure, out or directory / f"{kind}.pdf")
    if json:
        print_json({"files": [str(path) for path in paths]})
        return
    for path in paths:
        print(path)


def _curves(kind: Kind, directory: Path) -> Figure:
    from sim.plots.frontier import frontier
    from sim.plots.latency import latency
    from sim.results import load_results

    draw = frontier if kind is Kind.frontier else latency
    return draw(load_results(directory))


def _timeline(directory: Path, start: float, end: float | None) -> Figure:
    from profiler.presets import device
    from sim.plots.timeline import timeline
    from sim.rundir import load_run

    run = load_run(directory)
    sms = run.config.instance_sms or device(run.config.device).sms
    return timeline(run.steps, sms, start_s=start, end_s=end)
