"""``bulletsim validate``: policies served for real and simulated, and how far the two are apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import completion
from cli.run_options import TRACE

if TYPE_CHECKING:
    from real.plan import Plan
    from real.report import Study
    from real.telling import Teller
    from sim.config import Place

Texts = list[str]
Number = float | None
Whole = int | None

MODEL = "A name from bulletsim models, a config.json, or a folder of weights."
POLICY = "NAME, or NAME:key=value,key=value; repeatable. NAME may be path.py:Class."
RATE = "Requests/s in all; repeatable. Without it the trace's own times."
SHRINK = "Divide prompts and answers by this, for a device too small for the real ones."
TIME = "Stretch the trace's own times by this factor."
LATENCY = "A latency model that bulletsim fit wrote for this device; nothing is measured then."
PROFILE = "A profile of this device, from bulletsim profile (default: measure one first)."
REPORT = "Only make the report anew from the runs at --out."


def validate(
    context: typer.Context,
    device: Annotated[str, typer.Option(help="What to serve on: cpu or cuda.", autocompletion=completion.machines)],
    model: Annotated[str, typer.Option(help=MODEL, autocompletion=completion.models)],
    trace: Annotated[str, typer.Option(help=TRACE, autocompletion=completion.traces)],
    policy: Annotated[Texts, typer.Option(help=POLICY, autocompletion=completion.policies)],
    out: Annotated[Path, typer.Option(help="Directory of runs and report; what is finished there is kept.")],
    rate: Annotated[list[float] | None, typer.Option(help=RATE)] = None,
    requests: Annotated[Whole, typer.Option(help="Serve only so many, from the start.")] = None,
    shrink: Annotated[int, typer.Option(help=SHRINK)] = 1,
    time_scale: Annotated[float, typer.Option(help=TIME)] = 1.0,
    repeats: Annotated[int, typer.Option(help="Real runs of each policy at each rate.")] = 2,
    slo_ttft: Annotated[Number, typer.Option(help="TTFT limit, seconds.")] = None,
    slo_ttft_per_token: Annotated[Number, typer.Option(help="TTFT limit, seconds per prompt token.")] = None,
    slo_ttft_floor: Annotated[float, typer.Option(help="The TTFT limit is at least this, seconds.")] = 0.0,
    slo_tpot: Annotated[Number, typer.Option(help="TPOT limit, seconds.")] = None,
    profile: Annotated[Path | None, typer.Option(help=PROFILE)] = None,
    latency_model: Annotated[Path | None, typer.Option(help=LATENCY)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure the coarse grid only.")] = False,
    slots: Annotated[Whole, typer.Option(help="Requests whose KV an instance may hold.")] = None,
    temperature: Annotated[float, typer.Option(help="Of sampling; 0 takes the likeliest token.")] = 0.0,
    until: Annotated[Number, typer.Option(help="Stop each run at this second.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights, prompts and arrivals.")] = 0,
    report: Annotated[bool, typer.Option("--report", help=REPORT)] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")] = False,
) -> None:
    """Serve a trace for real under each policy, simulate the same, and compare."""
    from sim.config import checked

    check_torch("serving for real")
    from real.plan import Plan

    plan = checked(Plan, _chosen(context.params), "options", _option)
    _validated(plan, out, only_report=report, json=json, quiet=quiet)


def _chosen(options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a plan that these options give."""
    slo = {f"{name.removeprefix('slo_')}_s": value for name, value in options.items() if name.startswith("slo_")}
    as_they_are = ("device", "model", "trace", "time_scale", "requests", "shrink", "seed", "repeats", "slots", "quick")
    files = {"profile": options["profile"], "latency": options["latency_model"]}
    return {
        **{name: options[name] for name in (*as_they_are, "temperature")},
        **{name: None if path is None else str(path) for name, path in files.items()},
        "policies": list(map(_entry, options["policy"])),
        "rates": list(options["rate"] or ()),
        "slo": slo,
        "until_s": options["until"],
    }


def _option(place: Place) -> str:
    """The option that gives what is at ``place`` in a plan."""
    setting, *inside = map(str, place)
    if setting == "slo" and inside:
        return f"--slo-{inside[0].removesuffix('_s').replace('_', '-')}"
    others = {
        "rates": "--rate",
        "policies": "--policy",
        "until_s": "--until",
        "latency": "--latency-model",
        "slo": "SLO",
    }
    return others.get(setting) or f"--{setting.replace('_', '-')}"


def check_torch(what: str) -> None:
    """Raises ValueError, saying ``what`` needs it and what to do, where torch is not installed or cannot be loaded."""
    from importlib import import_module

    try:
        import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ValueError(
            f"{what} needs torch, which is not installed; install: pip install 'bulletsim[real]'"
        ) from None
    except (ImportError, OSError) as error:
        raise ValueError(
            f"{what} needs torch, which cannot be loaded ({' '.join(str(error).split())}); if memory is limited "
            "(ulimit -v), allow more, or else install it anew: pip install --force-reinstall torch"
        ) from None


def _entry(text: str) -> dict[str, Any]:
    """A policy and its settings. A colon may also be in the name: path.py:Class."""
    from cli.settings import pairs

    found = re.fullmatch(r"(.+?):(\w+=.*)", text)
    if found is None:
        return {"name": text}
    return {"name": found[1], "settings": pairs(f"--policy {found[1]}", found[2].split(","))}


def _validated(plan: Plan, out: Path, *, only_report: bool, json: bool, quiet: bool) -> None:
    from cli.output import note, print_json
    from real.lanes import DeviceError
    from real.validation import Validation
    from sim.config import read_json

    validation = Validation(plan, out, teller(quiet or json))
    try:
        found = validation.report() if only_report else validation.run()
    except BaseException as error:
        # What was refused is not mended by the same command.
        stopped = isinstance(error, DeviceError) or not isinstance(error, Exception)
        if stopped and not quiet and not only_report and (out / "plan.json").is_file():
            note(f"what is done stays in {out}; the same command goes on")
        raise
    if json:
        print_json(read_json(out / "report.json"))
        return
    print(summary(found))
    if not quiet:
        note(f"report written to {out / 'report.html'}")


def summary(found: Study) -> str:
    """The verdicts, and the order of the policies in both worlds."""
    from cli.output import table
    from real.report import SUMMARY_HEAD, summary_lines, summary_rows

    return "\n".join([table(SUMMARY_HEAD, summary_rows(found), left=2), "", *summary_lines(found)])


def teller(quiet: bool) -> Teller:
    """What shows on stderr how far a validation is."""
    from cli import output
    from real.telling import Begin, Teller

    class Progress(Teller):
        def stage(self, what: str) -> AbstractContextManager[Begin]:
            return output.stage(what, quiet=quiet)

        def note(self, text: str) -> None:
            if not quiet:
                output.note(text)

    return Progress()
