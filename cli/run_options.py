"""The options that say what a run is, one name each for all commands that take them, and the settings they make."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import completion

if TYPE_CHECKING:
    from sim.config import RunConfig

Text = str | None
Number = float | None
Whole = int | None
Texts = list[str] | None

RATE = "Requests/s in all: recorded arrivals are rescaled to it, a trace of lengths gets Poisson arrivals."

TRACE = "A trace file, or workload:NAME (see bulletsim traces list)."

POLICY = "A name from bulletsim policies, or path.py:Class."

SET = "A policy setting, key=value; repeatable."

MODEL = "A name from bulletsim models, or a config.json."

DEVICE = "A name from bulletsim devices."

PART = "SMs (of a CPU: cores) of each device that an instance has (default: all)."

SHARED = "All instances are parts of one device and slow each other; needs --instance-sms (default no)."

ESTIMATOR = "What the policy plans with, where it is another latency model, key=value; repeatable."

REUSE = "A pre-empted request takes over what its freed KV blocks still hold, as with prefix caching (default no)."

PREFIXES = "Prompts that begin alike share KV; needs block_hashes or session_id in the trace (default no)."

Trace = Annotated[Text, typer.Option(help=TRACE, autocompletion=completion.traces)]
Policy = Annotated[Text, typer.Option(help=POLICY, autocompletion=completion.policies)]
Settings = Annotated[Texts, typer.Option("--set", help=SET, autocompletion=completion.settings)]
Model = Annotated[Text, typer.Option(help=MODEL, autocompletion=completion.models)]
Device = Annotated[Text, typer.Option(help=DEVICE, autocompletion=completion.devices)]
Arrivals = Annotated[Text, typer.Option(help="How requests arrive, such as poisson:4 or closed:32.")]
Rate = Annotated[Number, typer.Option(help=RATE)]
Slice = Annotated[Text, typer.Option("--slice", help="Of the trace's own times, START:END in seconds.")]
Requests = Annotated[Whole, typer.Option(help="Serve only so many, from the start.")]
Instances = Annotated[Whole, typer.Option(help="Replicas of the model (default: as few as it takes).")]
InstanceSms = Annotated[Whole, typer.Option(help=PART)]
SharedDevice = Annotated[bool | None, typer.Option(help=SHARED)]
TensorParallel = Annotated[Whole, typer.Option(help="GPUs of an instance (default 1).")]
SloTtft = Annotated[Number, typer.Option(help="TTFT limit, seconds.")]
SloTtftPerToken = Annotated[Number, typer.Option(help="TTFT limit, seconds per prompt token.")]
SloTtftFloor = Annotated[Number, typer.Option(help="The TTFT limit is at least this, seconds.")]
SloTpot = Annotated[Number, typer.Option(help="TPOT limit, seconds.")]
Seed = Annotated[Whole, typer.Option(help="Of every random draw (default 0).")]
QueueLimit = Annotated[Whole, typer.Option(help="Waiting requests of an instance; more are rejected.")]
KvBlocks = Annotated[Whole, typer.Option(help="KV blocks of an instance (default: what fits).")]
MemoryFraction = Annotated[Number, typer.Option(help="Memory for weights and KV (default 0.9).")]
ReusePreempted = Annotated[bool | None, typer.Option(help=REUSE)]
PrefixCache = Annotated[bool | None, typer.Option(help=PREFIXES)]
Latency = Annotated[Texts, typer.Option(help="A latency model setting, key=value; repeatable.")]
Estimator = Annotated[Texts, typer.Option(help=ESTIMATOR)]
Until = Annotated[Number, typer.Option(help="Stop at this simulated second.")]
Oversized = Annotated[Text, typer.Option(help="A request that can never fit: error (default) or reject.")]
Warmup = Annotated[Number, typer.Option(help="Leave the first seconds of arrivals out of the metrics.")]
Drain = Annotated[Number, typer.Option(help="Leave the last seconds of arrivals out of the metrics.")]
Stored = Annotated[Path | None, typer.Option(help="Repeat this config.json; other options change it.")]

OPTIONS: Mapping[str, tuple[Any, str]] = {
    "trace": (Trace, "trace"),
    "policy": (Policy, "policy.name"),
    "set_": (Settings, "policy.settings"),
    "model": (Model, "model"),
    "device": (Device, "device"),
    "arrivals": (Arrivals, "arrivals"),
    "rate": (Rate, "rate"),
    "requests": (Requests, "requests"),
    "slice_": (Slice, "slice"),
    "instances": (Instances, "instances"),
    "instance_sms": (InstanceSms, "instance_sms"),
    "shared_device": (SharedDevice, "shared_device"),
    "tensor_parallel": (TensorParallel, "tensor_parallel"),
    "slo_ttft": (SloTtft, "slo.ttft_s"),
    "slo_ttft_per_token": (SloTtftPerToken, "slo.ttft_per_token_s"),
    "slo_ttft_floor": (SloTtftFloor, "slo.ttft_floor_s"),
    "slo_tpot": (SloTpot, "slo.tpot_s"),
    "seed": (Seed, "seed"),
    "queue_limit": (QueueLimit, "queue_limit"),
    "kv_blocks": (KvBlocks, "kv_blocks"),
    "memory_fraction": (MemoryFraction, "memory_fraction"),
    "reuse_preempted": (ReusePreempted, "reuse_preempted"),
    "prefix_cache": (PrefixCache, "prefix_cache"),
    "latency": (Latency, "latency"),
    "estimator": (Estimator, "estimator"),
    "until": (Until, "until_s"),
    "oversized": (Oversized, "oversized"),
    "warmup": (Warmup, "window.warmup_s"),
    "drain": (Drain, "window.drain_s"),
}
"""Of a run: each option's name and help, and the setting (of sim.config.RunConfig) that it gives."""


SEARCHED = (
    "trace",
    "policy",
    "set_",
    "model",
    "device",
    "arrivals",
    "rate",
    "requests",
    "instances",
    "instance_sms",
    "shared_device",
    "tensor_parallel",
    "slo_ttft",
    "slo_ttft_per_token",
    "slo_ttft_floor",
    "slo_tpot",
    "seed",
    "latency",
)
"""Those of a command that makes many runs around one."""

Command = Callable[..., None]


def of_a_run(*names: str, **others: object) -> Callable[[Command], Command]:
    """Makes a command of a function, whose first argument gets the settings that these options gave.

    names: of OPTIONS. others: options whose help differs in this command.
    """

    def command_of(function: Command) -> Command:
        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
        shared = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=others.get(name, OPTIONS[name][0])
            )
            for name in names
        ]
        needed = [one for one in own if one.default is one.empty]

        def command(**chosen: Any) -> None:
            settings = _given({name: chosen.pop(name) for name in names})
            function(settings, **chosen)

        # Typer reads a command's options from its signature.
        everything = [*needed, *shared, *(one for one in own if one not in needed)]
        command.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined]
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        return command

    return command_of


def _given(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The options among ``chosen`` that were given, as settings of a run."""
    from cli.settings import pairs

    options: dict[str, Any] = {}
    for name, value in chosen.items():
        path = OPTIONS[name][1]
        if isinstance(value, list | tuple):
            value = pairs(f"--{name.rstrip('_')}", value)
        if value is None or value == {}:
            continue
        group, _, field = path.rpartition(".")
        (options.setdefault(group, {}) if group else options)[field] = value
    return options


def run_settings(options: dict[str, Any], stored: Path | None, *, command: str, quiet: bool) -> RunConfig:
    """The settings of a run: ``options`` alone, or laid over those in the file ``stored``.

    Raises ValueError for what is missing or wrong; ``command`` is whose --help it refers to.
    """
    import policies
    from cli.output import note
    from cli.settings import overlaid
    from sim.config import RunConfig, checked, load_config, package_version

    if stored is None:
        for name in ("trace", "policy", "model", "device"):
            value = options.get(name)
            if value is None or (name == "policy" and "name" not in value):
                raise ValueError(f"--{name} is missing; see bulletsim {command} --help")
        policy = options["policy"]
        options.setdefault("instances", policies.load(policy["name"], policy.get("settings")).fewest_instances)
        return checked(RunConfig, options, "options")
    base = load_config(stored)
    if base.version not in (None, package_version()) and not quiet:
        note(f"note: {stored} was made with version {base.version}, this is {package_version()}")
    settings = base.model_dump(exclude={"version"})
    if {"trace", "requests", "slice", "seed"} & options.keys():
        del settings["trace_sha256"]
    for group in ("latency", "estimator"):
        if "model" in options.get(group, {}) and settings[group]:
            del settings[group]["model_sha256"]
    if options.get("policy", {}).get("name") not in (None, base.policy.name):
        del settings["policy"]
    return checked(RunConfig, overlaid(settings, options), "options")
