"""The part of the page about one policy at one rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from matplotlib.figure import Figure

from real.attribution import CAUSES, Attribution
from real.comparison import METRICS, PARTS, WHOLE, Comparison, Side, Statistic
from real.report import figures
from real.report.document import request_errors
from real.report.picture import picture
from real.report.study import Studied
from real.stepwise import StepGroup
from sim.records import STATES
from sim.report.markup import Markup, facts, joined, table, tag
from sim.report.words import DASH, NAMES, amount, number, percent, seconds

UNAVAILABLE = "not available on this device"


def cell_section(studied: Studied, place: int) -> Markup:
    """Everything about a cell, folded up unless it is the first."""
    cell = studied.comparison.cell
    parts = [tag("summary", f"{cell.policy} at {cell.rate:g} requests/s"), *_parts(studied)]
    attributes = {"id": f"cell-{place}"} | ({"open": "open"} if not place else {})
    return tag("details", *parts, **attributes)


def _parts(studied: Studied) -> Iterator[Markup]:
    comparison, cell = studied.comparison, studied.comparison.cell
    yield from _warnings(comparison)
    yield tag("h3", "Percentiles")
    yield _statistics(comparison)
    yield tag("h3", "Requests, one by one")
    yield _shown(figures.requests(comparison), "Requests: simulated against measured times")
    yield _request_errors(comparison)
    yield _shown(figures.distributions(cell), "Distribution of times in every real run and in the simulated one")
    yield tag("h3", "Where the error comes from")
    yield from _causes(studied)
    yield tag("h3", "Steps")
    yield _shown(figures.steps(comparison), "Steps: predicted against measured duration")
    yield _steps(comparison)
    yield tag("h3", "Timelines")
    yield _shown(figures.timelines(cell, studied.sms), "Shares and batches over time, measured above simulated")
    yield _shown(figures.lanes(cell), "Lanes in close-up, measured above simulated")
    yield tag("p", "Close-up: coloured while the device is at a step, grey from decision to notice.", class_="note")
    yield tag("h3", "Overlap of lanes, and the host")
    yield _overlaps(comparison)
    yield _host(comparison)
    yield tag("h3", "Runs")
    yield _runs(comparison)
    yield from _energy(cell.real)
    yield _settings(cell.real, cell.simulated)


def _shown(drawing: Figure | None, alt: str) -> Markup:
    return tag("p", f"{alt}: nothing to draw.", class_="note") if drawing is None else picture(drawing, alt)


def _warnings(comparison: Comparison) -> Iterator[Markup]:
    cell = comparison.cell
    lost = sum(not side.finished for side in cell.real)
    if cell.partial:
        kept = len(cell.among or ())
        words = f"Every real run was cut off: statistics are over the {kept} requests that finished in all runs."
        yield tag("p", words, class_="off")
    elif lost:
        yield tag("p", f"{lost} of {len(cell.real)} real runs were cut off and do not count.", class_="off")
    if len(cell.used) == 1:
        yield tag("p", "A single real run counts: how far the machine repeats itself is unknown.", class_="note")


def _statistics(comparison: Comparison) -> Markup:
    head = ("statistic", "", "simulated", "measured", "error", "repeatability", "real runs")
    wanted = [(metric, part) for metric in METRICS for part in PARTS] + [(metric, "whole") for metric in WHOLE]
    return table(head, [_statistic(comparison.statistic(*names)) for names in wanted], left=2)


def _statistic(statistic: Statistic) -> tuple[object, ...]:
    metric = statistic.metric
    return (
        NAMES[metric],
        "" if statistic.part == "whole" else statistic.part,
        amount(metric, statistic.simulated),
        amount(metric, statistic.measured),
        percent(statistic.error),
        percent(statistic.repeatability),
        ", ".join(amount(metric, value) for value in statistic.runs),
    )


def _request_errors(comparison: Comparison) -> Markup:
    rows = []
    for metric in METRICS:
        found = request_errors(comparison, metric)
        row = (NAMES[metric], str(found["count"]), *(percent(found[name]) for name in ("p50", "p90", "within")))
        rows.append(row)
    head = ("error of a request's", "requests", "median", "P90", f"within {comparison.limit:.0%}")
    return table(head, rows)


def _causes(studied: Studied) -> Iterator[Markup]:
    found = studied.attribution
    if found is None:
        yield tag("p", f"Not known: {studied.unexplained}.", class_="note")
        return
    yield _shown(figures.causes(found), "From the simulated to the measured mean, a cause at a time")
    rows = []
    for metric, cause in found.causes.items():
        values = [_cause(getattr(cause, name), cause.measured, (cause.shares() or {}).get(name)) for name in CAUSES]
        rows.append((f"mean {NAMES[metric]}", seconds(cause.simulated), *values, seconds(cause.measured)))
    yield table(("", "simulated", *CAUSES, "measured"), rows)
    yield tag("p", "In brackets: percent of the measured value; percent of the error explained.", class_="note")
    yield _corrections(found)


def _cause(value: float, measured: float, share: float | None) -> str:
    of_error = DASH if share is None else f"{100 * share:.0f} %"
    of_measured = f"{100 * value / measured:+.1f} %" if measured else DASH
    return f"{seconds(value)} ({of_measured}; {of_error})"


def _corrections(found: Attribution) -> Markup:
    rows = [(kind, "", "host", seconds(value), "") for kind, value in found.corrections.host_s.items()]
    for name, factors, counts in (
        ("alone", found.corrections.kernels, found.steps_alone),
        ("beside another lane", found.corrections.contention, found.steps_beside),
    ):
        for key in sorted(factors, key=lambda key: (key[0], key[1] or 0)):
            share = "all" if key[1] is None else str(key[1])
            rows.append((key[0], share, name, f"{factors[key]:.3f}", str(counts[key])))
    inner = table(("launch", "SMs", "what", "measured / predicted", "steps"), rows, left=3)
    words = "Host: seconds of a launch outside the device beyond those that the simulation's model holds"
    held = ", ".join(f"{kind} {seconds(value)}" for kind, value in found.corrections.outside_s.items())
    words += f" ({held} a launch)." if held else "."
    return tag("details", tag("summary", "Corrections that the causes rest on"), inner, tag("p", words, class_="note"))


STEPS_HEAD = (
    "lane",
    "SMs",
    "ran",
    "steps",
    "measured",
    "predicted",
    "error",
    "weighted",
    "P10",
    "median",
    "P90",
    "device",
)


def _steps(comparison: Comparison) -> Markup:
    words = "Sums over all real runs, from decision to notice; predicted as the policy planned. Error: predicted less"
    words += " measured, over measured; weighted: the same of each step, without sign. Then measured over predicted,"
    words += " step by step, and the median of the device's own time over the prediction."
    whole = table(STEPS_HEAD, [_group(group) for group in comparison.steps if group.sms is None], left=3)
    shares = table(STEPS_HEAD, [_group(group) for group in comparison.steps if group.sms is not None], left=3)
    folded = tag("details", tag("summary", "By SM share"), shares)
    return joined([whole, tag("p", words, class_="note"), folded])


def _group(group: StepGroup) -> tuple[str, ...]:
    ratios = (group.ratio_p10, group.ratio_p50, group.ratio_p90, group.device_ratio)
    return (
        group.lane,
        "all" if group.sms is None else str(group.sms),
        "beside" if group.beside else "alone",
        str(group.count),
        seconds(group.measured_s),
        seconds(group.predicted_s),
        DASH if group.error is None else f"{100 * group.error:+.1f} %",
        percent(group.weighted_error),
        *(number(ratio) for ratio in ratios),
    )


def _overlaps(comparison: Comparison) -> Markup:
    rows = []
    for found in comparison.overlaps:
        share = percent(found.both_s / found.either_s) if found.either_s else DASH
        busy = ", ".join(f"{lane} {seconds(value)}" for lane, value in found.busy_s.items())
        processor = DASH
        if found.processor_s is not None:
            total = sum(found.processor_s.values())
            parts = ", ".join(f"{lane} {seconds(value)}" for lane, value in found.processor_s.items())
            processor = f"{parts} ({number(total / found.either_s) if found.either_s else DASH} busy at once)"
        rows.append((found.run, busy, processor, seconds(found.both_s), seconds(found.either_s), share))
    return table(("run", "lanes busy", "processor time", "both", "either", "both / either"), rows, left=3)


def _host(comparison: Comparison) -> Markup:
    if not comparison.host:
        return tag("p", "Host time: no real run has a record of its launches.", class_="note")
    rows = [
        (host.lane, host.part.replace("_", " "), str(host.count), *map(seconds, (host.mean_s, host.p50_s, host.p99_s)))
        for host in comparison.host
    ]
    words = "Host time of a launch. React: arrival or completion to decision; decide: to its sending; hand over: to the"
    words += " device's beginning; notice: from the device's finish."
    return joined(
        [table(("lane", "host", "launches", "mean", "P50", "P99"), rows, left=2), tag("p", words, class_="note")]
    )


def _runs(comparison: Comparison) -> Markup:
    cell = comparison.cell
    named = [(f"real {place}", side) for place, side in enumerate(cell.real, 1)] + [("simulated", cell.simulated)]
    rows = []
    for name, side in named:
        states = [str(int((side.run.records.state == state).sum())) for state in range(len(STATES))]
        waited_s = side.facts.get("waited_s")
        without = DASH if waited_s is None else seconds(waited_s)
        rows.append((name, "to its end" if side.finished else "cut off", *states, str(len(side.run.steps)), without))
    note = "Without a core: all threads of the lanes together, held up by each other, the loop or other programs."
    return joined(
        [table(("run", "ran", *STATES, "steps", "without a core"), rows, left=2), tag("p", note, class_="note")]
    )


def _energy(sides: tuple[Side, ...]) -> Iterator[Markup]:
    known = {f"real {place}": _measured(side.facts) for place, side in enumerate(sides, 1)}
    found = {run: entries for run, entries in known.items() if entries}
    if found:
        yield facts(found)
    else:
        yield tag("p", f"Energy and clocks: {UNAVAILABLE}.")


def _measured(entries: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's facts say of energy and clocks."""
    return {"energy": entries["energy"]} if entries.get("energy") is not None else {}


def _settings(real: tuple[Side, ...], simulated: Side) -> Markup:
    known = {f"real {place}": dict(side.facts) for place, side in enumerate(real, 1) if side.facts}
    known |= {"settings": simulated.run.config.model_dump(mode="json", exclude_none=True)}
    inner = [part for name, entries in known.items() for part in (tag("h3", name), facts(entries))]
    return tag("details", tag("summary", "Settings and what the device said"), *inner)
