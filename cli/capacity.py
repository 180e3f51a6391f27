"""``bulletsim capacity``: how much traffic a set-up can take within its SLO, found by search and not by a grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import run_options as options

if TYPE_CHECKING:
    from sim.capacity import Capacity, Point, Question, Search
    from sim.config import RunConfig
    from sim.sizing import Best, Fewest


class Find(StrEnum):
    """What is looked for."""

    rate = "rate"
    gpus = "gpus"
    xy = "xy"
    shares = "split"


FIND = "rate: the highest; gpus: the fewest at --rate; xy: the best xPyD; split: the best SM split."
RATE = "Where the search for a rate begins; with --find gpus, the requests/s in all to serve."
SEEDS = "The most runs at a rate, each with other traffic; the first is --seed."
WARMUP = "Share of the span of arrivals, at its start, whose requests are not judged."
DRAIN = "Share of the span of arrivals, at its end, whose requests are not judged."
XY_SETTINGS = ("prefill_instances", "decode_instances")
SPLIT_SETTINGS = ("decode_sms",)
MORE = "more --requests or --seeds would tell"


@options.of_a_run(*options.SEARCHED, rate=Annotated[float | None, typer.Option(help=RATE)])
def capacity(
    settings: dict[str, Any],
    config: options.Stored = None,
    find: Annotated[Find, typer.Option(help=FIND)] = Find.rate,
    target: Annotated[float, typer.Option(help="Share of judged requests that meet the SLO.")] = 0.9,
    confidence: Annotated[float, typer.Option(help="Of what is said to be kept or missed.")] = 0.95,
    tolerance: Annotated[float, typer.Option(help="Of the rate, as a share of it.")] = 0.02,
    seeds: Annotated[int, typer.Option(help=SEEDS)] = 5,
    warmup: Annotated[float, typer.Option(help=WARMUP)] = 0.1,
    drain: Annotated[float, typer.Option(help=DRAIN)] = 0.1,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")] = False,
) -> None:
    """Search for the highest rate, or the smallest or best set-up, that keeps the SLO."""
    from dataclasses import asdict
    from time import monotonic

    from cli.output import print_json, searching
    from sim.capacity import Question, Search

    question = Question(
        target=target, confidence=confidence, tolerance=tolerance, seeds=seeds, warmup=warmup, drain=drain
    )
    run = options.run_settings(_with_policy(settings, find), config, command="capacity", quiet=quiet)
    began_s = monotonic()
    with searching(quiet=quiet or json) as tell:
        search = Search(
            question=question,
            tell=lambda text: tell(text, _left(search, monotonic() - began_s)),
            progress=lambda share: tell("", _left(search, monotonic() - began_s, share)),
        )
        document, text = _FINDERS[find](search, run)
    tested = search.tested
    if json:
        took = {"simulations": tested.simulations, "stopped_early": tested.stopped, "judged_requests": tested.requests}
        asked = {"find": str(find), "question": asdict(question), "config": run.model_dump(mode="json")}
        print_json({**asked, **document, **took})
        return
    print(f"{_head(run)}\n{_condition(run, question)}\n\n{text}\n")
    print(f"{tested.simulations} simulations, {tested.stopped} of them stopped early")


def _left(search: Search, elapsed_s: float, under_way: float = 0.0) -> str:
    """How long the search will go on, the share ``under_way`` of a run being over besides those that have ended."""
    from cli.output import duration

    left_s = elapsed_s / (search.tested.simulations + under_way) * (search.outlook.ahead - under_way)
    more = " or more" if search.outlook.least else ""
    return f"about {duration(left_s)}{more} left" if left_s >= 1 else ""


def _with_policy(given: dict[str, Any], find: Find) -> dict[str, Any]:
    """The policy that ``find`` is about, where none was named."""
    named = {Find.xy: "disaggregation", Find.shares: "static-split"}.get(find)
    policy = given.setdefault("policy", {})
    if named and policy.setdefault("name", named) != named:
        raise ValueError(f"--find {find} is about the policy {named}, not {policy['name']}; leave --policy out")
    settings = policy.get("settings", {})
    for name in {Find.xy: XY_SETTINGS, Find.shares: SPLIT_SETTINGS}.get(find, ()):
        if name in settings:
            raise ValueError(f"--find {find} tries every {name}, so --set {name} has no meaning; leave it out")
    if find is Find.gpus and "rate" not in given:
        raise ValueError("--find gpus needs the --rate that they are to serve")
    if find is Find.xy and "instances" in given:
        if given["instances"] < 2:
            raise ValueError(f"--find xy shares out 2 --instances or more, not {given['instances']}")
        policy["settings"] = settings | dict(zip(XY_SETTINGS, (1, given["instances"] - 1), strict=True))
    return given


def _find_rate(search: Search, run: RunConfig) -> tuple[dict[str, Any], str]:
    found = search.capacity(run)
    return {"capacity": _capacity_document(found, run.gpus)}, _capacity_text(found, run.gpus, search.question)


def _find_gpus(search: Search, run: RunConfig) -> tuple[dict[str, Any], str]:
    from sim.sizing import fewest_instances

    found = fewest_instances(search, run)
    gpus = found.instances * run.tensor_parallel
    document = {
        "gpus": gpus,
        "instances": found.instances,
        "decision": found.point.decision,
        "attainment": found.point.mean,
        "attainment_with_one_fewer": found.below and found.below.mean,
    }
    return document, _fewest_text(found, gpus, run, search.question)


def _find_best(search: Search, run: RunConfig, row: Callable[[RunConfig], Any]) -> tuple[dict[str, Any], str]:
    from sim.sizing import best_setting

    found = best_setting(search, row(run))
    gpus = found.config.gpus
    document = {
        "best": found.name,
        "settings": found.config.policy.settings,
        "capacity": _capacity_document(found.capacity, gpus),
        "neighbours_at_its_rate": {name: _point_document(point) for name, point in found.neighbours.items()},
        "kept_by_one_seed": found.tried,
    }
    return document, _best_text(found, gpus, search.question)


def _find_xy(search: Search, run: RunConfig) -> tuple[dict[str, Any], str]:
    from sim.sizing import xy_row

    return _find_best(search, run, xy_row)


def _find_split(search: Search, run: RunConfig) -> tuple[dict[str, Any], str]:
    from sim.sizing import split_row

    return _find_best(search, run, split_row)


_FINDERS: Mapping[Find, Callable[[Search, RunConfig], tuple[dict[str, Any], str]]] = {
    Find.rate: _find_rate,
    Find.gpus: _find_gpus,
    Find.xy: _find_xy,
    Find.shares: _find_split,
}


def _head(run: RunConfig) -> str:
    from sim.plots.series import workload_name

    return f"{run.policy.name}, {run.model} on {run.device}, {workload_name(run.trace)}"


def _condition(run: RunConfig, question: Question) -> str:
    from sim.plots.series import slo_text

    slo = slo_text({f"slo_{name}": value for name, value in run.slo.model_dump().items()})
    return (
        f"SLO: {slo}, met by {question.target:.4g} of requests\n"
        f"judged: arrivals after the first {question.warmup:.0%} of their span and before the last {question.drain:.0%}"
    )


def _capacity_text(found: Capacity, gpus: int, question: Question) -> str:
    from cli.output import number, table

    if not 0 < found.rate < float("inf"):
        return "capacity: " + ("none, however low the rate" if found.rate == 0 else "no limit; serve more --requests")
    sure = _sure(question)
    lines = [
        ["capacity", number(found.rate), number(found.rate / gpus)],
        [f"kept with {sure}", number(found.kept), number(found.kept and found.kept / gpus)],
        [f"missed with {sure}", number(found.missed), number(found.missed and found.missed / gpus)],
    ]
    tried = [[number(point.rate), *_point_cells(point, question)] for point in found.points]
    parts = [
        table(["highest rate", "requests/s", "per GPU"], lines),
        table(["requests/s", "SLO met (%)", "seeds", "the SLO is"], tried),
    ]
    open_ = [word for word, rate in (("kept", found.kept), ("missed", found.missed)) if rate is None]
    if open_:
        parts.append(f"no rate tried is {' or '.join(open_)} with {sure};\n{MORE}")
    return "\n\n".join(parts)


def _sure(question: Question) -> str:
    return f"{100 * question.confidence:.4g}% confidence"


def _point_cells(point: Point, question: Question) -> list[str]:
    return [_met(point, question), str(len(point.attainments)), point.decision]


def _met(point: Point, question: Question) -> str:
    """The mean attainment in %; at most that where a run was stopped early."""
    from cli.output import number

    return ("<= " if min(point.attainments) <= question.floor else "") + number(point.mean, 100)


def _fewest_text(found: Fewest, gpus: int, run: RunConfig, question: Question) -> str:
    what = f"GPUs ({found.instances} x {run.tensor_parallel})" if gpus > 1 else "GPU"
    lines = [f"fewest for {run.rate:g} requests/s: {gpus} {what}", _said(found.point, question)]
    if found.below is not None:
        lines.append(f"one instance fewer: {_said(found.below, question)}")
    return "\n".join([*lines, *([] if found.point.decision == "kept" else [MORE])])


def _said(point: Point, question: Question) -> str:
    met = f"{_met(point, question)} % meet the SLO"
    if point.decision == "undecided":
        return f"{met}, undecided after {len(point.attainments)} seeds"
    return f"{met}, {point.decision} with {_sure(question)}"


def _best_text(found: Best, gpus: int, question: Question) -> str:
    from cli.output import number, table

    beside = [[name, *_point_cells(point, question)] for name, point in found.neighbours.items()]
    tried = [[name, number(rate)] for name, rate in found.tried.items()]
    parts = [
        f"best: {found.name}",
        _capacity_text(found.capacity, gpus, question),
        table(["neighbours at that rate", "SLO met (%)", "seeds", "the SLO is"], beside) if beside else "",
        table(["one seed", "keeps requests/s"], tried),
    ]
    return "\n\n".join(part for part in parts if part)


def _point_document(point: Point) -> dict[str, Any]:
    return {
        "rate": point.rate,
        "attainment": point.mean,
        "attainments": list(point.attainments),
        "decision": point.decision,
    }


def _capacity_document(found: Capacity, gpus: int) -> dict[str, Any]:
    endless = found.rate == float("inf")
    return {
        "rate": None if endless else found.rate,
        "rate_per_gpu": None if endless else found.rate / gpus,
        "endless": endless,
        "kept": found.kept,
        "missed": found.missed,
        "points": [_point_document(point) for point in found.points],
    }
