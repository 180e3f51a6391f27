"""How near whole layers come to the best that the device reached: prefill to a matrix product, decode to a copy.

    python benchmarks/efficiency.py out/profile --json out/efficiency.json

Both ceilings and the layers' times are of one profile, all on the whole device: the largest matrix product's FLOP/s,
and the bytes/s of a copy of device memory, read and written. Of prefill, useful FLOPs are counted, of decode bytes of
weights, KV cache and activations that must move, both as the latency model counts them. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.paper_kernels import table  # noqa: E402
from profiler.fitting import device_of  # noqa: E402
from profiler.profile import Profile, load_profile  # noqa: E402
from profiler.roofline import roofline  # noqa: E402
from profiler.work import Work  # noqa: E402

PREFILL_TOKENS, DECODE_REQUESTS = 4096, 64
TARGETS = {"prefill": 0.6, "decode": 0.7}
"""At so many tokens and requests."""

BYTES: Mapping[str, int] = {"fp32": 4, "bf16": 2, "fp8": 1}


class Layers(NamedTuple):
    """Whole layers that were timed. rate: useful FLOP/s of prefill, bytes/s of decode; ceiling: the like."""

    kind: str
    shape: str
    asked: bool
    layers: int
    seconds: float
    rate: float
    ceiling: float

    @property
    def share(self) -> float:
        return self.rate / self.ceiling

    def document(self) -> dict[str, Any]:
        """JSON types. ``met`` is null where layers of the size that the target is for were not measured."""
        target = TARGETS[self.kind]
        met = self.share >= target if self.asked else None
        return {**self._asdict(), "share": self.share, "target": target, "met": met}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("profile", type=Path, help="of a device and model, by bulletsim profile")
    parser.add_argument("--json", type=Path, help="also write it there")
    options = parser.parse_args(arguments)
    try:
        found = measured(load_profile(options.profile))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        document = [layers.document() for layers in found]
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    show(found)
    return 0


def measured(profile: Profile) -> list[Layers]:
    """Prefill and decode, as far as the profile has them. Raises ValueError where it has no ceilings or no model."""
    name, settings = profile.provenance.model, profile.provenance.settings
    ceilings = settings.get("ceilings") or {}
    flops = next((rate for key, rate in ceilings.items() if key.endswith("_flops")), None)
    if name is None or flops is None or "dram_bytes_per_s" not in ceilings:
        raise ValueError("the profile has no model, matrix product or copy; profile with these (ceilings come first)")
    model = roofline(name, device_of(profile))
    found = []
    for kind, row, asked in (("prefill", *_prefill(profile)), ("decode", *_decode(profile))):
        if row is None:
            continue
        work = _work(kind, row)
        useful, moved = model.cost(work)
        moved *= BYTES[row["dtype"]] / BYTES[model.model.dtype]
        seconds, layers = float(row["latency_s"]), int(row["layers"])
        amount, ceiling = (useful, flops) if kind == "prefill" else (moved, ceilings["dram_bytes_per_s"])
        found.append(Layers(kind, _shape(kind, row), asked, layers, seconds, amount / seconds, float(ceiling)))
    return found


Row = Mapping[Any, Any]


def _prefill(profile: Profile) -> tuple[Row | None, bool]:
    """One prompt of the tokens asked for, else the longest; and whether it is that."""
    rows = [row for row in _whole(profile, "prefill_layers") if not row["cached_tokens"] and row["sequences"] == 1]
    return _nearest(rows, "new_tokens", PREFILL_TOKENS)


def _decode(profile: Profile) -> tuple[Row | None, bool]:
    return _nearest(_whole(profile, "decode_layers"), "decode_requests", DECODE_REQUESTS)


def _nearest(rows: Sequence[Row], column: str, asked: int) -> tuple[Row | None, bool]:
    row = min(rows, key=lambda row: (row[column] != asked, -row[column]), default=None)
    return row, row is not None and row[column] == asked


def _whole(profile: Profile, kernel: str) -> list[Row]:
    rows = profile.select(kernel)
    return list(rows[rows["sms"] == profile.provenance.sms].to_dict("records"))


def _work(kind: str, row: Row) -> Work:
    layers = int(row["layers"])
    if kind == "prefill":
        return Work(prefill=((int(row["new_tokens"]), 0),), layers=layers, head=False)
    requests = int(row["decode_requests"])
    context = requests * int(row["decode_context_tokens"])
    return Work(decode_requests=requests, decode_context_tokens=context, layers=layers, head=False)


def _shape(kind: str, row: Row) -> str:
    if kind == "prefill":
        return f"{int(row['new_tokens'])} tokens"
    return f"{int(row['decode_requests'])} requests of {int(row['decode_context_tokens'])} tokens"


def show(found: Sequence[Layers]) -> None:
    """Prints the table."""
    rows = []
    for layers in found:
        met = layers.document()["met"]
        unit, scale = ("TFLOP/s", 1e12) if layers.kind == "prefill" else ("TB/s", 1e12)
        rows.append(
            (
                layers.kind,
                layers.shape,
                layers.layers,
                1e3 * layers.seconds,
                f"{layers.rate / scale:.3g} {unit}",
                f"{layers.ceiling / scale:.3g} {unit}",
                f"{layers.share:.0%}",
                f"{TARGETS[layers.kind]:.0%}",
                {None: "not of the size it is for", True: "yes", False: "NO"}[met],
            )
        )
    head = ("layers", "of", "layers", "ms", "reached", "ceiling", "share", "target", "met")
    table("Whole layers against the device's ceilings", head, rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
