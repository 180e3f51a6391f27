"""A sweep's rows as the curves of its figures: one workload a row of panels, one policy a curve."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from sim.intervals import interval
from sim.metrics import Knee, knee
from sim.results import Row

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The rows of one policy on one workload, by ascending offered rate; seeds of one rate are replications.

    Where there are several, points are their means, and bands and half widths Student's t intervals at 95 %.
    """

    label: str
    policy: str
    rows: tuple[tuple[float, tuple[Row, ...]], ...]

    def points(self, column: str) -> list[Point]:
        """(offered rate per GPU, mean of ``column``); rates at which no row has a value are left out."""
        found = []
        for rate, rows in self.rows:
            values = [row[column] for row in rows if row.get(column) is not None]
            if values:
                found.append((rate, fmean(values)))
        return found

    def at(self, column: str, rate: float) -> float | None:
        """Mean of ``column`` at a rate that was run; None where no row has a value."""
        return dict(self.points(column)).get(rate)

    def band(self, column: str) -> list[tuple[float, float, float]]:
        """(offered rate per GPU, low, high) of the mean of ``column``, at rates that have it of several seeds."""
        found = []
        for rate, rows in self.rows:
            values = [row[column] for row in rows if row.get(column) is not None]
            if len(values) > 1:
                mean = interval(values)
                found.append((rate, mean.low, mean.high))
        return found

    def knee_half_width(self) -> float | None:
        """Of the interval of the mean over the knees of single seeds; None unless several seeds cross the target."""
        by_seed: dict[object, list[Point]] = defaultdict(list)
        for rate, rows in self.rows:
            for row in rows:
                if row.get("attainment") is not None:
                    by_seed[row.get("seed")].append((rate, row["attainment"]))
        knees = [knee([x for x, _ in points], [y for _, y in points]) for points in by_seed.values()]
        rates = [found.rate for found in knees if found.kind == "crossing" and found.rate is not None]
        return interval(rates).half_width if len(rates) == len(knees) > 1 else None

    def knee(self) -> Knee | None:
        """Where its attainment falls below the target; None where nothing arrived or no SLO was given."""
        points = self.points("attainment")
        return knee([rate for rate, _ in points], [value for _, value in points]) if points else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A workload under one SLO, and the curves of all policies on it."""

    title: str
    workload: str
    curves: tuple[Curve, ...]
    slo: Row


_SLO = ("slo_ttft_s", "slo_ttft_per_token_s", "slo_ttft_floor_s", "slo_tpot_s")
_WORLD = ("trace", "model", "device", "tensor_parallel", "instances", "instance_sms", "shared_device", *_SLO)


def panels(rows: Sequence[Row]) -> list[Panel]:
    """Rows grouped by everything but policy, rate and seed. Raises ValueError where no row has a rate."""
    groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["rate"] is not None:
            groups[tuple(row.get(name) for name in _WORLD)].append(row)
    if not groups:
        raise ValueError(
            "no cell of this sweep sets a rate, so there is no axis; give rate or rate_per_gpu in its grid"
        )
    titles = Counter(_title(members[0]) for members in groups.values())
    found = []
    for members in groups.values():
        title = _title(members[0])
        title += f", {slo_text(members[0])}" if titles[title] > 1 else ""
        found.append(
            Panel(title=title, workload=workload_name(members[0]["trace"]), curves=_curves(members), slo=members[0])
        )
    return found


def _curves(rows: Sequence[Row]) -> tuple[Curve, ...]:
    by_label: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_label[row["policy"]].append(row)
    return tuple(
        Curve(label=label, policy=members[0]["policy_name"], rows=_by_rate(members))
        for label, members in by_label.items()
    )


def _by_rate(rows: Sequence[Row]) -> tuple[tuple[float, tuple[Row, ...]], ...]:
    rates: dict[float, list[Row]] = defaultdict(list)
    for row in rows:
        rates[row["rate"] / row["gpus"]].append(row)
    return tuple((rate, tuple(rates[rate])) for rate in sorted(rates))


def _title(row: Row) -> str:
    gpus = f"{row['gpus']}\N{MULTIPLICATION SIGN} {row['device']}" if row["gpus"] > 1 else row["device"]
    parallel = f" (TP {row['tensor_parallel']})" if row["tensor_parallel"] > 1 else ""
    whose = "for each instance" if row.get("shared_device") else "of each"
    part = "" if row.get("instance_sms") is None else f", {row['instance_sms']:g} SMs {whose}"
    return f"{workload_name(row['trace'])}: {row['model']} on {gpus}{parallel}{part}"


def workload_name(trace: str) -> str:
    """A trace's short name: that of the workload or of the file."""
    return trace.rsplit("/", 1)[-1].removeprefix("workload:")


def has_slo(panel: Panel) -> bool:
    """Whether there is a limit at all, and with it an attainment and knees."""
    return any(panel.slo[name] is not None for name in ("slo_ttft_s", "slo_ttft_per_token_s", "slo_tpot_s"))


def slo_text(row: Row) -> str:
    """The SLO of a row in a reader's units."""
    ttft = []
    if row["slo_ttft_s"] is not None:
        ttft.append(f"{row['slo_ttft_s']:g} s")
    if row["slo_ttft_per_token_s"] is not None:
        ttft.append(f"{row['slo_ttft_per_token_s'] * 1e3:g} ms/token")
    floor = f" (at least {row['slo_ttft_floor_s']:g} s)" if row["slo_ttft_floor_s"] else ""
    parts = [f"TTFT {' + '.join(ttft)}{floor}"] if ttft else []
    if row["slo_tpot_s"] is not None:
        parts.append(f"TPOT {row['slo_tpot_s'] * 1e3:g} ms")
    return ", ".join(parts) or "no SLO"
