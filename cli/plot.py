"""``bulletsim plot``: figures, and a trace of steps, from a sweep's or a run's directory."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.rundir import Run


class Kind(StrEnum):
    """What there is to draw."""

    frontier = "frontier"
    latency = "latency"
    timeline = "timeline"
    prediction = "prediction"
    trace = "trace"


KIND = "frontier and latency take a sweep, timeline, prediction and trace a run."
OUT = "A .pdf, .svg or .png; a PNG (or PDF) of the same name is written beside it. trace: a .json."


def plot(
    kind: Annotated[Kind, typer.Argument(help=KIND)],
    directory: Annotated[Path, typer.Argument(help="The --out of bulletsim sweep, or of bulletsim simulate.")],
    out: Annotated[Path | None, typer.Option(help=OUT)] = None,
    start: Annotated[float | None, typer.Option(min=0, help="timeline, prediction: from this second.")] = None,
    end: Annotated[float | None, typer.Option(min=0, help="timeline, prediction: to this second.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Draw a figure, or write a run's steps for Perfetto."""
    from cli.output import print_json, searching
    from sim.rundir import load_run

    if kind not in (Kind.timeline, Kind.prediction) and (start is not None or end is not None):
        raise ValueError(f"--start and --end are for timeline and prediction; {kind} has all there is")
    if start is not None and end is not None and end <= start:
        raise ValueError(f"--end is {end:g}, which is not after --start {start:g}")
    if kind is Kind.trace:
        paths = [_trace(load_run(directory), out or directory / "trace.json", quiet=json)]
    else:
        from sim.plots.style import save

        curves = kind in (Kind.frontier, Kind.latency)
        with searching("drawing", quiet=json):
            figure = _curves(kind, directory) if curves else _over_time(kind, load_run(directory), start or 0.0, end)
            paths = list(save(figure, out or directory / f"{kind}.pdf"))
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


def _over_time(kind: Kind, run: Run, start: float, end: float | None) -> Figure:
    from sim.plots.prediction import prediction
    from sim.plots.timeline import timeline
    from sim.rundir import device_sms

    if kind is Kind.prediction:
        return prediction(run.steps, start_s=start, end_s=end)
    return timeline(run.steps, device_sms(run), start_s=start, end_s=end)


def _trace(run: Run, out: Path, *, quiet: bool) -> Path:
    from cli.output import progress
    from sim.rundir import replacing
    from sim.trace_events import write_events

    if out.suffix != ".json":
        raise ValueError(f"{out}: a trace ends in .json")
    out.parent.mkdir(parents=True, exist_ok=True)
    total = len(run.steps) + len(run.records)
    with (
        progress("steps and requests", total, quiet=quiet) as tell,
        replacing(out) as partial,
        partial.open("w", encoding="utf-8") as file,
    ):
        write_events(file, run.steps, run.records, lambda done: tell(done, ""))
    return out
