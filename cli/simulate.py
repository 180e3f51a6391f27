"""``bulletsim simulate``: one run, its table, and its directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import run_options as options

if TYPE_CHECKING:
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
    _simulate(run, out, force=force, token_times=token_times, json=json, quiet=quiet)


def _simulate(config: RunConfig, out: Path | None, *, force: bool, token_times: bool, json: bool, quiet: bool) -> None:
    from cli.output import note, print_json, shares
    from cli.traces import reading
    from cli.writable import check_writable
    from sim.simulate import prepare

    if out is not None:
        from sim.rundir import check_target, write_run  # with Arrow, which takes a tenth of a second

        check_target(out, force)
        check_writable(out)
    with reading(config.trace, quiet=quiet or json) as tell:
        prepared = prepare(config, reading=tell)
    source = prepared.latency.model.source
    if "read as a Llama-like decoder" in source and not quiet:
        note(f"note: model {config.model}: {source}")
    result, metrics = _run(prepared, token_times, quiet or json)
    if len(result.records) and not metrics.arrived:
        window = f"--warmup {config.window.warmup_s:g} and --drain {config.window.drain_s:g}"
        raise ValueError(f"{window} leave no request to measure; cut less")
    if out is not None:
        with shares(f"writing {out.name}", quiet=quiet or json) as tell:
            write_run(out, prepared.config, result, metrics, force=force, progress=tell)
    if json:
        print_json(
            {
                "config": prepared.config.model_dump(mode="json"),
                "metrics": metrics.to_dict(),
                "out": str(out) if out else None,
            }
        )
        return
    print(summary_table(prepared.config, metrics))
    if out is not None and not quiet:
        note(f"run written to {out}")


def _run(prepared: Prepared, token_times: bool, quiet: bool) -> tuple[RunResult, Metrics]:
    from cli.output import progress
    from sim.metrics import summarise

    config = prepared.config
    with progress("simulating", len(prepared.trace), quiet=quiet) as tell:
        result = prepared.run(
            progress=lambda finished, now_s: tell(finished, f"requests, {now_s:.0f} s simulated"),
            keep_token_times=token_times,
        )
    with progress("summarising", 1, quiet=quiet):
        return result, summarise(result, config.slo.value(), config.gpus, config.window.value())


def summary_table(config: RunConfig, metrics: Metrics) -> str:
    """The headline metrics of a run in a reader's units, at most 80 columns wide."""
    from cli.output import number, table
    from sim.metrics import has_limits

    head = f"{config.policy.name}, {config.model} on {metrics.gpus} x {config.device}"
    if config.instance_sms is not None:
        head += f", {config.instance_sms} SMs of each"
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
