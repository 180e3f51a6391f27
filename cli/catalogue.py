"""``bulletsim models`` and ``bulletsim devices``: what is built in, and where its numbers come from."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, sources included.")]


def models(json: AsJson = False) -> None:
    """List the built-in models. Elsewhere a path to a Hugging Face config.json does as well."""
    from cli.output import print_json, table
    from profiler import MODELS

    if json:
        print_json({"models": [_model_fields(spec) for spec in MODELS]})
        return
    head = ("model", "params", "active", "layers", "hidden", "heads/KV", "GB", "KiB/token")
    rows = [
        (
            spec.name,
            _scaled(spec.parameters),
            _scaled(spec.active_parameters),
            str(spec.layers),
            str(spec.hidden),
            f"{spec.heads}/{spec.kv_heads}",
            f"{spec.weight_bytes / 1e9:.1f}",
            f"{spec.kv_bytes_per_token / 1024:.0f}",
        )
        for spec in MODELS
    ]
    print(table(head, rows))


def devices(json: AsJson = False) -> None:
    """List the built-in devices, and whether their kernel times are fitted to measurements."""
    from dataclasses import asdict

    from cli.output import print_json, table
    from profiler import DEVICES
    from profiler.devicecalibration import built_in_names

    fitted = built_in_names()
    kernels = {spec.name: "fitted" if spec.name in fitted else "roofline" for spec in DEVICES}
    if json:
        known = [{**asdict(spec), "kernels": kernels[spec.name], "sources": dict(spec.sources)} for spec in DEVICES]
        print_json({"devices": known})
        return
    head = ("device", "SMs", "TFLOP/s bf16", "fp8", "DRAM GB/s", "GiB", "link GB/s", "knee SMs", "kernels")
    rows = [
        (
            spec.name,
            str(spec.sms),
            f"{spec.bf16_flops / 1e12:.0f}",
            "none" if spec.fp8_flops is None else f"{spec.fp8_flops / 1e12:.0f}",
            f"{spec.dram_bytes_per_s / 1e9:.0f}",
            f"{spec.memory_bytes / (1 << 30):.0f}",
            f"{spec.link_bytes_per_s / 1e9:.0f}",
            str(spec.bandwidth_knee_sms),
            kernels[spec.name],
        )
        for spec in DEVICES
    ]
    print(table(head, rows))


def _model_fields(spec: object) -> dict[str, object]:
    from dataclasses import asdict

    from profiler import ModelSpec

    assert isinstance(spec, ModelSpec)
    derived = ("parameters", "active_parameters", "weight_bytes", "kv_bytes_per_token")
    return {**asdict(spec), **{name: getattr(spec, name) for name in derived}}


def _scaled(count: int) -> str:
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"
