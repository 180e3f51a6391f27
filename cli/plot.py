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
    slo = "slo"
    trace = "trace"


KIND = "frontier and latency take a sweep, timeline, prediction, slo and trace a run."
DRAWN = 0.15
"""Share of making a figure's files that is done when it is there to be written."""

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
    from cli.output import print_json, shares

    if kind not in (Kind.timeline, Kind.prediction) and (start is not None or end is not None):
        raise ValueError(f"--start and --end are for timeline and prediction; {kind} has all there is")
    if start is not None and end is not None and end <= start:
        raise ValueError(f"--end is {end:g}, which is not after --start {start:g}")
    if kind is Kind.trace:
        paths = [_trace(_loaded(directory, quiet=json), out or directory / "trace.json", quiet=json)]
    else:
        from sim.plots.style import save
        from traces.progress import part

        run = None if kind in (Kind.frontier, Kind.latency) else _loaded(directory, quiet=json)
        with shares("drawing", quiet=json) as tell:
            figure = _curves(kind, directory) if run is None else _of_run(kind, run, start or 0.0, end)
            tell(DRAWN)
            paths = list(save(figure, out or directory / f"{kind}.pdf", part(tell, DRAWN, 1)))
    if json:
        print_json({"files": [str(path) for path in paths]})
        return
    for path in paths:
        print(path)


def _loaded(directory: Path, *, quiet: bool) -> Run:
    from cli.output import duration, note, shares
    from sim.rundir import load_run

    with shares("reading the run", quiet=quiet) as tell:
        run = load_run(directory, tell)
    if run.interrupted_s is not None and not quiet:
        note(f"note: {directory} was interrupted after {duration(run.interrupted_s)} of simulated time")
    return run


def _curves(kind: Kind, directory: Path) -> Figure:
    from sim.plots.frontier import frontier
    from sim.plots.latency import latency
    from sim.results import load_results

    draw = frontier if kind is Kind.frontier else latency
    return draw(load_results(directory))


def _of_run(kind: Kind, run: Run, start: float, end: float | None) -> Figure:
    from sim.plots.prediction import prediction
    from sim.plots.timeline import timeline
    from sim.rundir import device_sms

    if kind is Kind.slo:
        from sim.plots.slo import slo

        return slo(run.records, run.config.slo.value(), run.config.window.value().mask(run.records))
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
