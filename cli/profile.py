"""``bulletsim profile``: kernel times of this machine's device, as a profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import completion

if TYPE_CHECKING:
    from profiler.measure.campaign import Outcome

MODEL = "A name from bulletsim models, or a config.json; its shapes are measured."
KERNELS = "Only this kernel, such as gemm; repeatable, or several with commas."
REPEATS = "How often each point is timed; a CPU makes multiples of 3 of more than 2."
LIMIT = "Begin nothing after so many seconds; what is done by then is the profile."


def profile(
    device: Annotated[str, typer.Option(help="What to measure: cpu or cuda.", autocompletion=completion.machines)],
    model: Annotated[str, typer.Option(help=MODEL, autocompletion=completion.models)],
    out: Annotated[Path, typer.Option(help="Write OUT.parquet and OUT.json; OUT.journal.jsonl on the way.")],
    quick: Annotated[bool, typer.Option("--quick", help="The coarse grid only.")] = False,
    kernels: Annotated[list[str] | None, typer.Option(help=KERNELS)] = None,
    repeats: Annotated[int, typer.Option(help=REPEATS)] = 5,
    limit_s: Annotated[float | None, typer.Option("--limit-s", help=LIMIT)] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")] = False,
) -> None:
    """Measure a model's kernels on this machine's GPU or CPU; started again, it goes on where it stopped."""
    from cli.output import note, print_json
    from profiler.measure.campaign import Settings

    wanted = tuple(name for text in kernels or () for name in text.split(",") if name)
    if kernels and not wanted:
        raise ValueError(f"--kernels {','.join(kernels)!r} names no kernel; leave it out to measure all")
    settings = Settings(device, model, out, quick, wanted, repeats, limit_s)
    outcome = _measured(settings, quiet=quiet or json)
    if json:
        print_json(_document(outcome))
        return
    print(summary(outcome))
    if not quiet:
        note(f"profile written to {outcome.path}")


def _measured(settings: Any, *, quiet: bool) -> Outcome:
    from cli.output import kept, stage
    from profiler.measure.campaign import measure, paths

    with kept(paths(settings.out)[0], quiet=quiet), stage("measuring", quiet=quiet) as begin:
        return measure(settings, begin)


def summary(outcome: Outcome) -> str:
    """What was measured, how far it scatters, and what the device reaches."""
    from cli.output import table
    from profiler.measure.campaign import spreads

    origin = outcome.profile.provenance
    kernels = [
        [kernel, str(alone), str(beside), f"{middle:.1%}", f"{most:.1%}"]
        for kernel, (alone, beside, middle, most) in spreads(outcome.profile).items()
    ]
    missing = outcome.points - outcome.measured
    lines = [
        f"{origin.model} on {origin.device} with {origin.sms} {'cores' if origin.device == 'cpu' else 'SMs'}: "
        f"{outcome.measured} of {outcome.points} points",
        "",
        table(["kernel", "alone", "beside", "spread", "worst"], kernels),
        "",
        *_found(origin.settings),
        f"points that other programs disturbed: {outcome.gaps}",
    ]
    if missing > len(outcome.failed):
        lines.append(f"not measured yet: {missing - len(outcome.failed)}; the same command goes on")
    lines += [f"failed: {text}" for text in outcome.failed[:5]]
    if len(outcome.failed) > 5:
        lines.append(f"failed besides: {len(outcome.failed) - 5}")
    return "\n".join(lines)


def _found(settings: dict[str, Any]) -> list[str]:
    lines = []
    for name, value in settings["ceilings"].items():
        rate = f"{value / 1e12:.1f} TFLOP/s {name.removesuffix('_flops')}" if name.endswith("_flops") else ""
        lines.append(f"reached: {rate or f'{value / 1e9:.1f} GB/s of memory, read and written'}")
    if "bandwidth_knee_sms" in settings:
        lines.append(f"copies gain nothing by more SMs than N_d = {settings['bandwidth_knee_sms']}")
    return lines


def _document(outcome: Outcome) -> dict[str, Any]:
    from profiler.measure.campaign import spreads

    names = ("alone", "beside", "median_spread", "worst_spread")
    return {
        "profile": str(outcome.path),
        "points": outcome.points,
        "measured": outcome.measured,
        "failed": list(outcome.failed),
        "disturbed": outcome.gaps,
        "kernels": {kernel: dict(zip(names, found, strict=True)) for kernel, found in spreads(outcome.profile).items()},
        "provenance": outcome.profile.provenance.model_dump(mode="json"),
    }
