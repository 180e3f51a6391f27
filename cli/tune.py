"""``bulletsim tune``: the settings of a policy that nothing beats, in throughput against latency within an SLO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import run_options as options
from cli.backends import Address, BackendOption, Jobs

if TYPE_CHECKING:
    from sim.results import Row
    from sim.tuning import Tuner, Tuning, Varied

VARY = "A policy setting: NAME=LOW:HIGH, NAME=LOW:HIGH:log, or NAME=ONE,OTHER; repeatable."
RATES = "Requests/s in all, LOW:HIGH, between which runs are tried."
LATENCY = "What is to be low: ttft, tpot, itl, e2e, normalised or queueing, with _mean, _p50, _p90, _p95 or _p99."


@options.of_a_run(*(name for name in options.SEARCHED if name != "rate"))
def tune(
    settings: dict[str, Any],
    out: Annotated[Path, typer.Option(help="Directory of the trials; finished ones in it are not run again.")],
    vary: Annotated[list[str], typer.Option(help=VARY)],
    rates: Annotated[str, typer.Option(help=RATES)],
    config: options.Stored = None,
    minimise: Annotated[str, typer.Option(help=LATENCY)] = "ttft_p90",
    target: Annotated[float, typer.Option(help="Share of requests that must meet the SLO.")] = 0.9,
    trials: Annotated[int, typer.Option(min=1, help="Runs in all.")] = 60,
    jobs: Jobs = None,
    backend: BackendOption = "local",
    address: Address = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")] = False,
) -> None:
    """Search a policy's settings for the highest throughput at the lowest latency."""
    from cli.backends import fanout
    from cli.output import kept, note, print_json, progress
    from sim.tuning import Tuner, varied

    ranges = [varied(text) for text in vary]
    _check_once(settings.get("policy", {}).get("settings", {}), ranges)
    run = options.run_settings(settings, config, command="tune", quiet=quiet)
    tuner = Tuner(base=run, settings=ranges, rate=_rates(rates), latency=f"{minimise}_s", target=target)
    _check(tuner)
    silent = quiet or json
    with kept(out, quiet=silent), progress("tuning", trials, quiet=silent) as tell:
        found = tuner.run(
            out, trials, fanout=fanout(backend, jobs, address), progress=lambda done, total: tell(done, "trials")
        )
    if json:
        front = [{**_shown(tuner, row), "attainment": row["attainment"], "cell": row["cell"]} for row in found.front]
        print_json({"trials": len(found.rows), "failed": found.failed, "front": front, "out": str(out)})
        return
    print(_table(tuner, found, minimise))
    if not quiet:
        note(f"trials in {out}")


def _check_once(fixed: Mapping[str, Any], ranges: Sequence[Varied]) -> None:
    for one in ranges:
        if one.name in fixed:
            raise ValueError(f"{one.name} is in --set and in --vary; keep one")


def _rates(text: str) -> Varied:
    from dataclasses import replace

    from sim.tuning import varied

    try:
        found = varied(f"rate={text}:log")
    except ValueError:
        raise ValueError(f"--rates is {text!r}; give LOW:HIGH in requests/s, such as 1:10") from None
    return replace(found, low=float(found.low), high=float(found.high))


def _check(tuner: Tuner) -> None:
    from sim.metrics import has_limits
    from sim.results import LATENCIES

    if tuner.latency not in LATENCIES:
        raise ValueError(f"--minimise is {tuner.latency.removesuffix('_s')!r}; give one such as ttft_p90 or e2e_mean")
    if not has_limits(tuner.base.slo.value()):
        raise ValueError("there is no SLO to keep; give a limit, such as --slo-tpot 0.1")


def _shown(tuner: Tuner, row: Row) -> dict[str, Any]:
    """A row's varied settings, rate and objectives."""
    import json as codec

    from sim.tuning import THROUGHPUT

    settings = codec.loads(row["policy_settings"])
    found = {one.name: settings[one.name] for one in tuner.settings}
    return {**found, "rate": row["rate"], THROUGHPUT: row[THROUGHPUT], tuner.latency: row[tuner.latency]}


def _table(tuner: Tuner, found: Tuning, minimise: str) -> str:
    from cli.output import WIDTH, number, table
    from sim.tuning import THROUGHPUT

    failed = f", {found.failed} failed" if found.failed else ""
    if not found.front:
        return f"no setting tried keeps the SLO for {tuner.target:.4g} of requests ({len(found.rows)} trials{failed})"
    names = [one.name for one in tuner.settings]
    values, metrics = [], []
    for row in found.front:
        shown = _shown(tuner, row)
        values.append([f"{shown[name]:.4g}" if isinstance(shown[name], float) else str(shown[name]) for name in names])
        metrics.append(
            [
                number(shown["rate"]),
                number(shown[THROUGHPUT]),
                number(shown[tuner.latency], 1e3),
                number(row["attainment"], 100),
            ]
        )
    head = ["rate", "requests/s per GPU", f"{minimise} (ms)", "SLO met (%)"]
    lines = table([*names, *head], [[*own, *met] for own, met in zip(values, metrics, strict=True)], left=0)
    if max(map(len, lines.splitlines())) > WIDTH:
        stacked = ["\n".join(f"{name} = {value}" for name, value in zip(names, own, strict=True)) for own in values]
        lines = table(["settings", *head], [[own, *met] for own, met in zip(stacked, metrics, strict=True)])
    title = f"{tuner.base.policy.name}: of {len(found.rows)} trials{failed}, those that no other beats"
    return f"{title}\nthe SLO is kept for {tuner.target:.4g} of requests or more\n\n{lines}"
