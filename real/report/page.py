"""report.html: one page that needs nothing else, for a reader who doubts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from real.comparison import METRICS, OrderedPair
from real.report.cells import cell_section
from real.report.study import Studied, Study
from real.telling import SILENT, Teller
from sim.report.markup import Markup, facts, table, tag
from sim.report.page import page as whole
from sim.report.words import NAMES, percent, seconds, verdict

METHOD = (
    "Error is |simulated - measured| / measured; measured is the mean over the real runs that came to their end.",
    "Repeatability is the largest difference between two of those runs, over measured: what the machine cannot say"
    " twice, no simulator can say once. With a single real run it is unknown, and the limit alone decides.",
    "Real and simulated runs serve the same requests, at the same arrival times, with the same answer lengths, by the"
    " same policy object and serving loop.",
    "A policy's order against another counts as equal where they were measured no further apart than the repeatability"
    " of either; any other pair must have the same sign in both worlds, however small.",
    "Causes are found by repeating the simulation with one thing after another as measured in these very runs: the"
    " host's mean time outside the device, the time of steps that ran alone, that of steps beside others. Their order"
    " matters where they interact; what remains is other decisions and batches, and noise. Where two instances share a"
    " machine's memory, what one costs the other counts as its kernels'.",
    "The latency model's host constants were measured as what a pass takes beyond its kernels, and are compared, with"
    " them, with the time from begin to finish on the device; what lies outside that is the host's. If the simulation"
    " was given some of that time, or a pace of the device, measured before the runs, its settings say so.",
)


def page(found: Study, header: Mapping[str, Any], teller: Teller = SILENT) -> str:
    """The whole page. ``header``: title, and whatever tells of machine, versions, profile and commands; may nest."""
    title = str(header.get("title", "Simulated against measured"))
    body = [
        tag("h1", title),
        _lead(found),
        tag("h2", "Verdict"),
        _verdicts(found),
        *_orders(found),
        tag("h2", "Policies and rates"),
        *_sections(found, teller),
        tag("h2", "How to read this"),
        tag("ul", *(tag("li", sentence) for sentence in METHOD)),
        *_provenance(header),
    ]
    return whole(title, body, script=False)


def _sections(found: Study, teller: Teller) -> list[Markup]:
    sections: list[Markup] = []
    with teller.stage("drawing") as begin:
        tell = begin(len(found.cells))
        for cell in found.cells:
            sections.append(cell_section(cell, len(sections)))
            tell(len(sections), cell.comparison.cell.policy)
    return sections


def _lead(found: Study) -> Markup:
    verdicts = found.verdicts
    runs = sum(len(cell.comparison.cell.real) for cell in found.cells)
    counted = f"{sum(verdicts)} of {len(verdicts)} medians of TTFT, TPOT and end-to-end time"
    sentence = f"{counted} are within {found.limit:.0%} of the measured ones, or within the machine's repeatability"
    sentence += f" ({_counted(len(found.cells), 'combination')} of policy and rate, {_counted(runs, 'real run')})."
    if found.orders:
        agreed = sum(order.agree for order in found.orders)
        sentence += f" The order of policies is the same in both worlds in {agreed} of {len(found.orders)} comparisons."
    return tag("p", sentence, class_="lead")


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _verdicts(found: Study) -> Markup:
    head = ("policy", "requests/s", "median of", "simulated", "measured", "error", "repeatability", "verdict")
    rows = [row for number, cell in enumerate(found.cells) for row in _verdict_rows(cell, number)]
    return table(head, rows)


def _verdict_rows(studied: Studied, number: int) -> list[tuple[object, ...]]:
    cell = studied.comparison.cell
    rows: list[tuple[object, ...]] = []
    for statistic in studied.comparison.headlines:
        first = statistic.metric == next(iter(METRICS))
        name: object = tag("a", cell.policy, href=f"#cell-{number}") if first else ""
        rows.append(
            (
                name,
                f"{cell.rate:g}{' (cut off)' if cell.partial else ''}" if first else "",
                NAMES[statistic.metric],
                seconds(statistic.simulated),
                seconds(statistic.measured),
                percent(statistic.error),
                percent(statistic.repeatability),
                judgement(statistic.within),
            )
        )
    return rows


def judgement(within: bool | None) -> Markup:
    """A verdict in its colour."""
    colour = "" if within is None else " within" if within else " off"
    return tag("span", verdict(within), class_=f"verdict{colour}")


def _orders(found: Study) -> list[Markup]:
    if not found.orders:
        return []
    rows: list[tuple[object, ...]] = []
    for order in found.orders:
        word = "same" if order.agree else "OTHER"
        judged = tag("span", word, class_=f"verdict {'within' if order.agree else 'off'}")
        by = f"{NAMES[order.metric]} {order.part}"
        pairs = "; ".join(_pair(pair) for pair in order.pairs if pair.equal or not pair.agree)
        rows.append((f"{order.rate:g}", by, " < ".join(order.measured), " < ".join(order.simulated), judged, pairs))
    head = ("requests/s", "by", "measured", "simulated", "order", "equal or wrong")
    return [tag("h2", "Order of policies"), table(head, rows, left=6)]


def _pair(pair: OrderedPair) -> str:
    names = f"{pair.first} and {pair.second}"
    if pair.equal:
        return f"{names} equal: {seconds(abs(pair.measured))} apart, repeatable to {seconds(pair.tolerance)}"
    return f"{names} wrong: {seconds(pair.measured)} apart measured, {seconds(pair.simulated)} simulated"


def _provenance(header: Mapping[str, Any]) -> list[Markup]:
    entries = {name: value for name, value in header.items() if name != "title"}
    single = {name: value for name, value in entries.items() if not isinstance(value, Mapping)}
    sections = [tag("h2", "Machine and provenance"), facts(single)]
    for name, value in entries.items():
        if isinstance(value, Mapping):
            sections += [tag("h3", name), facts(value)]
    return sections
