"""``bulletsim models`` and ``bulletsim devices``: what is built in, and where its numbers come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, sources included.")]


def models(json: AsJson = False) -> None:
    """List the built-in models. Elsewhere a path to a Hugging Face config.json does as well."""
    from profiler import MODELS

    if json:
        _print_json({"models": [_model_fields(spec) for spec in MODELS]})
        return
    table = _table("model", "params", "active", "layers", "hidden", "heads/KV", "GB", "KV KiB/token")
    for spec in MODELS:
        table.add_row(
            spec.name,
            _scaled(spec.parameters),
            _scaled(spec.active_parameters),
            str(spec.layers),
            str(spec.hidden),
            f"{spec.heads}/{spec.kv_heads}",
            f"{spec.weight_bytes / 1e9:.1f}",
            f"{spec.kv_bytes_per_token / 1024:.0f}",
        )
    _print_table(table)


def devices(json: AsJson = False) -> None:
    """List the built-in devices."""
    from dataclasses import asdict

    from profiler import DEVICES

    if json:
        _print_json({"devices": [{**asdict(spec), "sources": dict(spec.sources)} for spec in DEVICES]})
        return
    table = _table("device", "SMs", "TFLOP/s bf16", "fp8", "DRAM GB/s", "GiB", "link GB/s", "knee SMs")
    for spec in DEVICES:
        table.add_row(
            spec.name,
            str(spec.sms),
            f"{spec.bf16_flops / 1e12:.0f}",
            "none" if spec.fp8_flops is None else f"{spec.fp8_flops / 1e12:.0f}",
            f"{spec.dram_bytes_per_s / 1e9:.0f}",
            f"{spec.memory_bytes / (1 << 30):.0f}",
            f"{spec.link_bytes_per_s / 1e9:.0f}",
            str(spec.bandwidth_knee_sms),
        )
    _print_table(table)


def _model_fields(spec: object) -> dict[str, object]:
    from dataclasses import asdict

    from profiler import ModelSpec

    assert isinstance(spec, ModelSpec)
    derived = ("parameters", "active_parameters", "weight_bytes", "kv_bytes_per_token")
    return {**asdict(spec), **{name: getattr(spec, name) for name in derived}}


def _scaled(count: int) -> str:
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"


def _table(first: str, *others: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _print_table(table: Table) -> None:
    from rich.console import Console

    Console().print(table)


def _print_json(document: dict[str, object]) -> None:
    import json

    typer.echo(json.dumps(document, indent=2))
