"""``bulletsim simulate``: one run, its table, and its directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sim.config import RunConfig
    from sim.metrics import Distribution, Metrics
    from sim.records import RunResult
    from sim.simulate import Prepared

Text = str | None
Number = float | None
Whole = int | None
Texts = list[str] | None

FIELDS = {
    "trace": "trace",
    "arrivals": "arrivals",
    "rate": "rate",
    "requests": "requests",
    "policy": "policy.name",
    "set_": "policy.settings",
    "model": "model",
    "device": "device",
    "tensor_parallel": "tensor_parallel",
    "instances": "instances",
    "instance_sms": "instance_sms",
    "slo_ttft": "slo.ttft_s",
    "slo_ttft_per_token": "slo.ttft_per_token_s",
    "slo_ttft_floor": "slo.ttft_floor_s",
    "slo_tpot": "slo.tpot_s",
    "seed": "seed",
    "queue_limit": "queue_limit",
    "kv_blocks": "kv_blocks",
    "memory_fraction": "memory_fraction",
    "reuse_preempted": "reuse_preempted",
    "latency": "latency",
    "estimator": "estimator",
    "until": "until_s",
    "oversized": "oversized",
    "warmup": "window.warmup_s",
    "drain": "window.drain_s",
}
"""The setting of a run (sim.config.RunConfig) that an option gives."""

RATE = "Requests/s in all: recorded arrivals are rescaled to it, a trace of lengths gets Poisson arrivals."

PART = "SMs (of a CPU: cores) of each device that an instance has (default: all)."

ESTIMATOR = "What the policy plans with, where it is another latency model, key=value; repeatable."

REUSE = "A pre-empted request takes over what its freed KV blocks still hold, as with prefix caching (default no)."


def simulate(  # its length is that of the command: a line an option
    context: typer.Context,
    trace: Annotated[Text, typer.Option(help="A trace file, or workload:NAME (see bulletsim traces list).")] = None,
    policy: Annotated[Text, typer.Option(help="A name from bulletsim policies, or path.py:Class.")] = None,
    set_: Annotated[Texts, typer.Option("--set", help="A policy setting, key=value; repeatable.")] = None,
    model: Annotated[Text, typer.Option(help="A name from bulletsim models, or a config.json.")] = None,
    device: Annotated[Text, typer.Option(help="A name from bulletsim devices.")] = None,
    arrivals: Annotated[Text, typer.Option(help="How requests arrive, such as poisson:4 or closed:32.")] = None,
    rate: Annotated[Number, typer.Option(help=RATE)] = None,
    requests: Annotated[Whole, typer.Option(help="Serve only so many, from the start.")] = None,
    instances: Annotated[Whole, typer.Option(help="Replicas of the model (default: as few as it takes).")] = None,
    instance_sms: Annotated[Whole, typer.Option(help=PART)] = None,
    tensor_parallel: Annotated[Whole, typer.Option(help="GPUs of an instance (default 1).")] = None,
    slo_ttft: Annotated[Number, typer.Option(help="TTFT limit, seconds.")] = None,
    slo_ttft_per_token: Annotated[Number, typer.Option(help="TTFT limit, seconds per prompt token.")] = None,
    slo_ttft_floor: Annotated[Number, typer.Option(help="The TTFT limit is at least this, seconds.")] = None,
    slo_tpot: Annotated[Number, typer.Option(help="TPOT limit, seconds.")] = None,
    seed: Annotated[Whole, typer.Option(help="Of every random draw (default 0).")] = None,
    queue_limit: Annotated[Whole, typer.Option(help="Waiting requests of an instance; more are rejected.")] = None,
    kv_blocks: Annotated[Whole, typer.Option(help="KV blocks of an instance (default: what fits).")] = None,
    memory_fraction: Annotated[Number, typer.Option(help="Memory for weights and KV (default 0.9).")] = None,
    reuse_preempted: Annotated[bool | None, typer.Option(help=REUSE)] = None,
    latency: Annotated[Texts, typer.Option(help="A latency model setting, key=value; repeatable.")] = None,
    estimator: Annotated[Texts, typer.Option(help=ESTIMATOR)] = None,
    until: Annotated[Number, typer.Option(help="Stop at this simulated second.")] = None,
    oversized: Annotated[Text, typer.Option(help="A request that can never fit: error (default) or reject.")] = None,
    warmup: Annotated[Number, typer.Option(help="Leave the first seconds of arrivals out of the metrics.")] = None,
    drain: Annotated[Number, typer.Option(help="Leave the last seconds of arrivals out of the metrics.")] = None,
    config: Annotated[Path | None, typer.Option(help="Repeat this config.json; other options change it.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the run to this new directory.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing run at --out.")] = False,
    token_times: Annotated[bool, typer.Option("--token-times", help="Write every token's time to --out.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")] = False,
) -> None:
    """Serve a trace with a policy on a simulated device."""
    if token_times and out is None:
        raise ValueError("--token-times writes to a run directory; give --out DIR too")
    settings = _settings(_options(context.params), config, quiet)
    _simulate(settings, out, force=force, token_times=token_times, json=json, quiet=quiet)


def _options(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, as settings of a run."""
    from cli.settings import pairs

    options: dict[str, Any] = {}
    for name, path in FIELDS.items():
        value = chosen[name]
        if isinstance(value, list | tuple):
            value = pairs(f"--{name.rstrip('_')}", value)
        if value is None or value == {}:
            continue
        group, _, field = path.rpartition(".")
        (options.setdefault(group, {}) if group else options)[field] = value
    return options


def _settings(options: dict[str, Any], stored: Path | None, quiet: bool) -> RunConfig:
    import policies
    from cli.output import note
    from cli.settings import overlaid
    from sim.config import RunConfig, checked, load_config, package_version

    if stored is None:
        for name in ("trace", "policy", "model", "device"):
            value = options.get(name)
            if value is None or (name == "policy" and "name" not in value):
                raise ValueError(f"--{name} is missing; see bulletsim simulate --help")
        policy = options["policy"]
        options.setdefault("instances", policies.load(policy["name"], policy.get("settings")).fewest_instances)
        return checked(RunConfig, options, "options")
    base = load_config(stored)
    if base.version not in (None, package_version()) and not quiet:
        note(f"note: {stored} was made with version {base.version}, this is {package_version()}")
    settings = base.model_dump(exclude={"version"})
    if {"trace", "requests", "seed"} & options.keys():
        del settings["trace_sha256"]
    for group in ("latency", "estimator"):
        if "model" in options.get(group, {}) and settings[group]:
            del settings[group]["model_sha256"]
    if options.get("policy", {}).get("name") not in (None, base.policy.name):
        del settings["policy"]
    return checked(RunConfig, overlaid(settings, options), "options")


def _simulate(config: RunConfig, out: Path | None, *, force: bool, token_times: bool, json: bool, quiet: bool) -> None:
    from cli.output import note, print_json
    from sim.metrics import summarise
    from sim.rundir import check_target, write_run
    from sim.simulate import prepare

    if out is not None:
        check_target(out, force)
    prepared = prepare(config)
    source = prepared.latency.model.source
    if "read as a Llama-like decoder" in source and not quiet:
        note(f"note: model {config.model}: {source}")
    result = _run(prepared, token_times, quiet or json)
    metrics = summarise(result, config.slo.value(), config.gpus, config.window.value())
    if len(result.records) and not metrics.arrived:
        window = f"--warmup {config.window.warmup_s:g} and --drain {config.window.drain_s:g}"
        raise ValueError(f"{window} leave no request to measure; cut less")
    if out is not None:
        write_run(out, prepared.config, result, metrics, force=force)
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


def _run(prepared: Prepared, token_times: bool, quiet: bool) -> RunResult:
    from cli.output import progress

    with progress("simulating", len(prepared.trace), quiet=quiet) as tell:
        return prepared.run(
            progress=lambda finished, now_s: tell(finished, f"requests, {now_s:.0f} s simulated"),
            keep_token_times=token_times,
        )


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
