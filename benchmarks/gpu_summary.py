"""What a bundle of gpu_check.py comes to: its stages, and its numbers against the targets. Needs nothing but Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from xml.etree import ElementTree

from benchmarks.gpu_box import Stage

TTFT_S = 0.015
"""A TTFT this near counts as met, whatever its error."""

COMPARED = ("bullet", "chunked")

Met = Callable[[Mapping[str, Any]], bool]


def _within(limit: float) -> Met:
    return lambda statistic: statistic["error"] <= limit


def _near(statistic: Mapping[str, Any]) -> bool:
    return bool(statistic["error"] <= 0.1 or abs(statistic["simulated"] - statistic["measured"]) <= TTFT_S)


ERRORS: tuple[tuple[str, str, str, str, Met], ...] = (
    ("TPOT, P50", "tpot_s", "p50", "5%", _within(0.05)),
    ("tokens/s", "tokens_per_s", "whole", "5%", _within(0.05)),
    ("end to end, P50", "e2e_s", "p50", "7%", _within(0.07)),
    ("end to end, P99", "e2e_s", "p99", "7%", _within(0.07)),
    ("TTFT, P50", "ttft_s", "p50", "10% or 15 ms", _near),
)
"""Name, metric, part and target of the statistics that are judged."""


class Judged(NamedTuple):
    """One target. met: how many of ``of`` cases meet it; found: in words."""

    what: str
    target: str
    met: int
    of: int
    found: str

    @property
    def verdict(self) -> str:
        return "not measured" if not self.of else "yes" if self.met == self.of else f"{self.met} of {self.of}"


def write(folder: Path, stages: Sequence[Stage], device: str) -> str:
    """Writes summary.json and summary.txt of what is in ``folder``; the latter's text."""
    targets = judged(folder)
    facts = {"tests": _tests(folder / "tests.xml"), "rates": _read(folder / "rates.json"), **_ceilings(folder)}
    document = {
        "device": device,
        "stages": [stage._asdict() for stage in stages],
        "targets": [{**target._asdict(), "verdict": target.verdict} for target in targets],
        **facts,
    }
    (folder / "summary.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    lines = [f"gpu_check on {facts.get('machine') or device}", ""]
    lines += _table(("stage", "status", "seconds", "limit"), [_stage(stage) for stage in stages])
    lines += ["", *_table(("target", "asked", "met", "found"), [_target(target) for target in targets])]
    if facts["tests"]:
        lines += ["", "tests: " + ", ".join(f"{count} {name}" for name, count in facts["tests"].items())]
    text = "\n".join(lines) + "\n"
    (folder / "summary.txt").write_text(text, encoding="utf-8")
    return text


def judged(folder: Path) -> list[Judged]:
    """Every target, also where nothing was measured for it."""
    report = _read(folder / "validation" / "report.json") or {}
    return [
        *_shares(_read(folder / "shares.json")),
        *_efficiency(_read(folder / "efficiency.json") or []),
        *(_error(report.get("cells", []), *row) for row in ERRORS),
        _order(report.get("orders", [])),
    ]


def _shares(document: Mapping[str, Any] | None) -> Iterator[Judged]:
    rows = document["splits"] if document else []
    kind = document["shares"] if document else ""
    known = [row for row in rows if row["disjoint"] is not None]
    yield Judged("shares disjoint", "all", sum(row["disjoint"] for row in known), len(known), kind)
    parts = [f"{row['together_s'] / sum(row['alone_s']):.2f}" for row in rows]
    words = f"of the sum of both alone: {', '.join(parts)}" if parts else ""
    yield Judged("shares overlap", "all", sum(row["overlap"] for row in rows), len(rows), words)


def _efficiency(rows: Sequence[Mapping[str, Any]]) -> Iterator[Judged]:
    known = {row["kind"]: row for row in rows}
    for kind, ceiling, target in (("prefill", "matrix product", "60%"), ("decode", "copy", "70%")):
        row = known.get(kind)
        judgeable = row is not None and row["met"] is not None
        words = f"{row['share']:.0%} at {row['shape']}" if row else ""
        yield Judged(
            f"{kind} of the {ceiling} ceiling", target, int(judgeable and bool(row and row["met"])), judgeable, words
        )


def _error(cells: Sequence[Mapping[str, Any]], what: str, metric: str, part: str, target: str, met: Met) -> Judged:
    found = [
        statistic
        for cell in cells
        for statistic in cell["statistics"]
        if (statistic["metric"], statistic["part"]) == (metric, part) and statistic["error"] is not None
    ]
    errors = [statistic["error"] for statistic in found]
    words = f"median {median(errors):.1%}, worst {max(errors):.1%}" if errors else ""
    return Judged(f"error of {what}", target, sum(map(met, found)), len(found), words)


def _order(orders: Sequence[Mapping[str, Any]]) -> Judged:
    """Of Bullet against chunked prefill, by each statistic that puts policies in order, at each rate."""
    agree, wrong = 0, []
    for order in orders:
        for pair in order["pairs"]:
            if sorted(_bare(pair[side]) for side in ("first", "second")) == sorted(COMPARED):
                agree += pair["agree"]
                wrong += [] if pair["agree"] else [f"{order['metric']} at {order['rate']:g}/s"]
    words = f"other: {', '.join(wrong)}" if wrong else ""
    return Judged("order of Bullet and chunked", "the same", agree, agree + len(wrong), words)


def _bare(label: str) -> str:
    return label.partition("(")[0]


def _tests(path: Path) -> dict[str, int] | None:
    try:
        suites = ElementTree.parse(path).getroot().iter("testsuite")
        counts = [
            {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")} for suite in suites
        ]
    except (OSError, ElementTree.ParseError):
        return None
    return {name: sum(count[name] for count in counts) for name in counts[0]} if counts else None


def _ceilings(folder: Path) -> dict[str, Any]:
    settings = (_read(folder / "profile.json") or {}).get("settings", {})
    return {name: settings.get(name) for name in ("machine", "shares", "splits", "points", "ceilings")}


def _read(path: Path) -> Any:
    """A JSON file's content; None for one that is not there, or was cut off."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _stage(stage: Stage) -> tuple[str, ...]:
    status = f"{stage.status}: {stage.note}" if stage.note else stage.status
    return stage.name, status, f"{stage.seconds:.1f}", f"{stage.limit_s:.0f}"


def _target(target: Judged) -> tuple[str, ...]:
    return target.what, target.target, target.verdict, target.found


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)]
    return [line.rstrip() for line in lines]
