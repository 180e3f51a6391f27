"""``bulletsim simulate``: one run, its table, and its directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import run_options as options

if TYPE_CHECKING:
    from cli.interruption import Held
    from sim.config import RunConfig
    from sim.metrics import Distribution, Metrics
    from sim.records import RunResult
    from sim.simulate import Prepared


@options.of_a_run(*options.OPTIONS)
def simulate(
    settings: dict[str, Any],
    config: options.Stored = None,
    out: Annotated[Path | None, typer.Option(help="Write the run to this new directory.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing run at --out.")] = False,
    token_times: Annotated[bool, typer.Option("--token-times", help="Write every token's time to --out.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")] = False,
) -> None:
    """Serve a trace with a policy on a simulated device."""
    if token_times and out is None:
        raise ValueError("--token-times writes to a run directory; give --out DIR too")
    run = options.run_settings(settings, config, command="simulate", quiet=quiet)
    _simulate(run, _Place(out=out, force=force, json=json, quiet=quiet), token_times=token_times)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a run goes: onto the screen and, where there is one, to the directory ``out``."""

    out: Path | None
    force: bool
    json: bool
    quiet: bool

    def check(self) -> None:
        """Raises ValueError for a directory that cannot be written."""
        if self.out is not None:
            from cli.writable import check_writable
            from sim.rundir import check_target  # with Arrow, which takes a tenth of a second

            check_target(self.out, self.force)
            check_writable(self.out)

    def take(self, config: RunConfig, result: RunResult, metrics: Metrics) -> None:
        """A run that has come to its end, or what there is of one that was interrupted."""
        from cli.output import duration, note

        told, out = "" if self.out is None else f"run written to {self.out}", self.out
        if result.interrupted:
            told = f"interrupted after {duration(result.end_s)} of simulated time"
            if out is not None and self._holds_whole_run():
                told, out = f"{told}; {out} stays the whole run that it was", None
            elif out is not None:
                told += f"; what is done stays in {out}, and with --force the same command begins anew"
        if out is not None:
            self._write(out, config, result, metrics)
        self._show(out, config, result, metrics)
        if told and not (self.quiet or self.json):
            note(told)

    def _holds_whole_run(self) -> bool:
        from sim.rundir import holds_whole_run

        return self.out is not None and holds_whole_run(self.out)

    def _write(self, out: Path, config: RunConfig, result: RunResult, metrics: Metrics) -> None:
        from cli.output import shares
        from sim.rundir import write_run

        with shares(f"writing {out.name}", quiet=self.quiet or self.json) as tell:
            write_run(out, config, result, metrics, force=self.force, progress=tell)

    def _show(self, out: Path | None, config: RunConfig, result: RunResult, metrics: Metrics) -> None:
        from cli.output import print_json
        from sim.metrics import summary_of

        if self.json:
            document = {"config": config.model_dump(mode="json"), "metrics": summary_of(result, metrics)}
            print_json({**document, "out": str(out) if out else None})
        else:
            print(summary_table(config, metrics))


def _simulate(config: RunConfig, place: _Place, *, token_times: bool) -> None:
    from cli.interruption import held_back
    from cli.output import note
    from cli.traces import reading
    from sim.simulate import prepare

    place.check()
    quiet = place.quiet or place.json
    with reading(config.trace, quiet=quiet) as tell:
        prepared = prepare(config, reading=tell)
    source = prepared.latency.model.source
    if "read as a Llama-like decoder" in source and not place.quiet:
        note(f"note: model {config.model}: {source}")
    with held_back() as held:
        result, metrics = _run(prepared, held, token_times, quiet)
        if len(result.records) and not metrics.arrived and not result.interrupted:
            window = f"--warmup {config.window.warmup_s:g} and --drain {config.window.drain_s:g}"
            raise ValueError(f"{window} leave no request to measure; cut less")
        if len(result.steps) or not result.interrupted:
            place.take(prepared.config, result, metrics)


def _run(prepared: Prepared, held: Held, token_times: bool, quiet: bool) -> tuple[RunResult, Metrics]:
    from cli.output import progress
    from sim.metrics import summarise

    config = prepared.config
    with progress("simulating", len(prepared.trace), quiet=quiet) as tell:
        loop = prepared.loop(
            progress=lambda finished, now_s: tell(finished, f"requests, {now_s:.0f} s simulated"),
            keep_token_times=token_times,
        )
        held.stops(loop.stop)
        tell(0, "requests")
        result = loop.run()
    with progress("summarising", 1, quiet=quiet):
        return result, summarise(result, config.slo.value(), config.gpus, config.window.value())


def summary_table(config: RunConfig, metrics: Metrics) -> str:
    """The headline metrics of a run in a reader's units, at most 80 columns wide."""
    from cli.output import number, table
    from sim.metrics import has_limits

    head = f"{config.policy.name}, {config.model} on {metrics.gpus} x {config.device}"
    if config.instance_sms is not None:
        part = "for each instance" if config.shared_device else "of each"
        head += f", {config.instance_sms} SMs {part}"
    states = ", ".join(f"{count} {state}" for state, count in metrics.states.items() if count)
    reasons = ", ".join(f"{reason} {count}" for reason, count in metrics.reject_reasons.items())
    sources = ", ".join(f"{source} {share:.0%}" for source, share in metrics.source_share.items())
    rates = [
        ["requests/s per GPU", number(metrics.requests_per_s_per_gpu)],
        ["tokens/s per GPU", number(metrics.tokens_per_s_per_gpu)],
        ["goodput, requests/s per GPU", number(metrics.goodput_per_s_per_gpu)],
        ["SLO attainment (%)", number(metrics.attainment, 100)],
        ["  TTFT alone (%)", number(metrics.ttft_attainment, 100)],
        ["  TPOT alone (%)", number(metrics.tpot_attainment, 100)],
        ["SM utilisation (%)", number(metrics.utilisation, 100)],
        ["makespan (s)", number(metrics.makespan_s)],
        ["pre-emptions", str(metrics.preemptions)],
    ]
    if metrics.prefix_hit_rate is not None:
        rates.append(["prompt tokens found cached (%)", number(metrics.prefix_hit_rate, 100)])
    unlimited = ["no SLO: attainment and goodput need a limit, such as --slo-tpot 0.1"]
    return "\n".join(
        [
            head,
            f"{metrics.arrived} requests: {states or 'none'}" + (f" ({reasons})" if reasons else ""),
            *(unlimited if not has_limits(config.slo.value()) else []),
            "",
            table(["latency", "mean", "P50", "P90", "P95", "P99"], _latencies(metrics)),
            "",
            table(["run", "value"], rates),
            "",
            f"simulated time rests on: {sources or 'nothing'}",
        ]
    )


def _latencies(metrics: Metrics) -> list[list[str]]:
    return [
        _row("TTFT (ms)", metrics.ttft_s),
        _row("TPOT (ms)", metrics.tpot_s),
        _row("ITL (ms)", metrics.itl_s),
        _row("end to end (s)", metrics.e2e_s, 1.0),
        _row("normalised (ms/token)", metrics.normalised_s),
        _row("queueing (ms)", metrics.queueing_s),
    ]


def _row(name: str, values: Distribution | None, scale: float = 1e3) -> list[str]:
    from cli.output import number

    parts = ("mean", "p50", "p90", "p95", "p99")
    return [name, *(number(getattr(values, part) if values else None, scale) for part in parts)]
