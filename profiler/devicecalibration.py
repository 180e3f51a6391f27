"""A fitted latency model of one device: everything measured, assumed and known of its errors, as one JSON file.

The file holds numbers and their provenance, never code. It belongs to a device and to no model: which kernels a model
launches is counted, not measured.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

from profiler.calibration import OpCalibration
from profiler.composition import AS_ALONE, NOTHING, LayerCosts, ProductFactors
from profiler.kernelsum import LAUNCH_OVERHEAD_S, PASS_OVERHEAD_S
from profiler.kerneltime import KernelClock
from profiler.mixed import MixedAttention
from profiler.roofline import Efficiencies
from profiler.specs import DeviceSpec
from profiler.structure import AXES, FEATURES_VERSION

FORMAT_VERSION = 1
"""Of the file; a newer one is refused."""

KIND = "bulletsim latency model"
BUILT_IN = "builtin"
Origin = Literal["measured", "assumed", "stated"]
"""Stated: given by whoever fitted the model, from knowledge that the profile does not have."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """DRAM bandwidth by SMs: D_p = D_peak (1 + (N_d / N_p)^p)^(-1/p), scaled to D_peak on the whole device.

    knee_sms: N_d. sharpness: p; the paper's min(1, N_p / N_d) is p without bound.
    """

    knee_sms: float
    sharpness: float
    origin: Origin = "assumed"

    def curve(self, device: DeviceSpec) -> tuple[float, ...]:
        """Bytes/s of 0, 1, ... all SMs."""

        def rising(sms: int) -> float:
            return float((1 + (self.knee_sms / sms) ** self.sharpness) ** (-1 / self.sharpness))

        whole = rising(device.sms)
        rates = (device.dram_bytes_per_s * rising(sms) / whole for sms in range(1, device.sms + 1))
        return (0.0, *rates)


LEAST_SLOWDOWN, LARGEST_SLOWDOWN = 1e-3, 1e6
"""Of a launch beside another: no device makes it faster or slower than that."""


@dataclass(frozen=True, slots=True)
class Contention:
    """By how much a co-runner slows a launch that decodes, or one that only prefills.

    decode, prefill: the most that DRAM-bound work loses, to one that draws all of the DRAM.
    decode_any, prefill_any: what a launch loses to any co-runner, as clocks and caches are shared.
    table: the measured co-runs.
    """

    decode: float
    prefill: float = 0.0
    decode_any: float = 0.0
    prefill_any: float = 0.0
    origin: Origin = "assumed"
    table: tuple[Mapping[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Host:
    """Seconds that the host adds to a pass over the model, and to a launch."""

    pass_s: float = PASS_OVERHEAD_S
    launch_s: float = LAUNCH_OVERHEAD_S
    origin: Origin = "assumed"


@dataclass(frozen=True, slots=True)
class Composition:
    """What whole layers take beyond the sum of their kernels, each timed alone, and their products among these."""

    costs: LayerCosts = NOTHING
    origin: Origin = "assumed"
    products: ProductFactors = AS_ALONE

    def document(self) -> dict[str, Any]:
        """JSON types; :meth:`read` makes it again."""
        return {**self.costs.document(), "products": self.products.document(), "origin": self.origin}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Files of before there were factors on products have none."""
        products = ProductFactors.read(document.get("products", ()))
        return cls(LayerCosts.read(document), document["origin"], products)


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """Efficiencies of ops that nobody measured: shares of the peaks, and seconds of the smallest launch."""

    gemm: float = Efficiencies().gemm
    attention: float = Efficiencies().attention
    bandwidth: float = Efficiencies().bandwidth
    floor_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DeviceCalibration:
    """Measured ops of a device, what is assumed of the rest, and where it all comes from.

    provenance: profile hash, origin of the measurements, date, versions. holdout, learning_curve: errors, as fit
    stated them.
    """

    device: DeviceSpec
    ops: Mapping[str, OpCalibration]
    bandwidth: Bandwidth
    contention: Contention
    host: Host = Host()
    unmeasured: Unmeasured = Unmeasured()
    composition: Composition = Composition()
    mixed: MixedAttention | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    holdout: tuple[Mapping[str, Any], ...] = ()
    learning_curve: tuple[Mapping[str, Any], ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceCalibration) and (self is other or self.document() == other.document())

    def __hash__(self) -> int:
        return hash((self.device.name, str(self.provenance.get("rows_sha256")), tuple(self.ops), self.composition))

    def clock(self) -> KernelClock:
        """The formula with this device's floors, bandwidth curve and measured SM shares."""
        device = self.device
        flops = {("gemm", "bf16"): device.bf16_flops, ("attention", "bf16"): device.bf16_flops}
        if device.fp8_flops is not None:
            flops["gemm", "fp8"] = device.fp8_flops
        floors = dict.fromkeys(("", *AXES), self.unmeasured.floor_s)
        floors |= {op: calibration.floor_s for op, calibration in self.ops.items()}
        shares = {op: calibration.share_sms for op, calibration in self.ops.items()}
        return KernelClock(device, flops, self.bandwidth.curve(device), floors, shares)

    @property
    def host_in_layers_s(self) -> float:
        """Of whole layers as they are timed: on a CPU with the host's time between kernels, which is the launch's."""
        return self.host.launch_s if self.device.name == "cpu" else 0.0

    def with_products(self, factors: ProductFactors) -> Self:
        """With products in layers taking so many times as long as they do here."""
        found = self.composition
        return replace(self, composition=replace(found, products=found.products.times(factors)))

    def with_losses(self, losses: Mapping[str, tuple[float, float]]) -> Self:
        """With launches of these kinds, ``prefill`` or ``decode``, losing so much to others on SMs of their own.

        The two numbers: to any, and of DRAM-bound work to one that draws all of the bandwidth.
        """
        known = self.contention
        prefill_any, prefill = losses.get("prefill", (known.prefill_any, known.prefill))
        decode_any, decode = losses.get("decode", (known.decode_any, known.decode))
        changed = replace(known, prefill=prefill, prefill_any=prefill_any, decode=decode, decode_any=decode_any)
        return replace(self, contention=changed)

    def document(self) -> dict[str, Any]:
        """JSON types; :meth:`read` makes it again."""
        return {
            "format": FORMAT_VERSION,
            "kind": KIND,
            "features": FEATURES_VERSION,
            "device": {**asdict(self.device), "sources": dict(self.device.sources)},
            "provenance": dict(self.provenance),
            "holdout": [dict(row) for row in self.holdout],
            "learning_curve": [dict(row) for row in self.learning_curve],
            "bandwidth": asdict(self.bandwidth),
            "contention": {**asdict(self.contention), "table": [dict(row) for row in self.contention.table]},
            "host": asdict(self.host),
            "unmeasured": asdict(self.unmeasured),
            "composition": self.composition.document(),
            "mixed": None if self.mixed is None else self.mixed.document(),
            "ops": {op: calibration.document() for op, calibration in self.ops.items()},
        }

    @classmethod
    def read(cls, document: Any) -> Self:
        """Raises ValueError, without the file's name, where ``document`` is none, of a newer format, or not sound."""
        _check_version(document)
        # Imported here, as pydantic would double the time of importing the profiler.
        from profiler.modelfile import check

        check(document)
        return cls.of_sound(document)

    @classmethod
    def of_sound(cls, document: Mapping[str, Any]) -> Self:
        """What :meth:`read` makes of a document that is known to be sound, but for the nodes of its trees."""
        try:
            device = dict(document["device"])
            device["sources"] = tuple(device["sources"].items())
            contention = dict(document["contention"])
            contention["table"] = tuple(contention["table"])
            return cls(
                device=DeviceSpec(**device),
                ops={op: _read_op(op, part) for op, part in document["ops"].items()},
                bandwidth=Bandwidth(**document["bandwidth"]),
                contention=Contention(**contention),
                host=Host(**document["host"]),
                unmeasured=Unmeasured(**document["unmeasured"]),
                composition=Composition.read(document["composition"]),
                mixed=None if document["mixed"] is None else MixedAttention.read(document["mixed"]),
                provenance=document["provenance"],
                holdout=tuple(document["holdout"]),
                learning_curve=tuple(document["learning_curve"]),
            )
        except ValueError as error:
            raise ValueError(f"is no complete latency model: {error}; fit it again") from None

    def save(self, path: Path) -> Path:
        """Write ``path`` to a temporary name, then rename it. One line a field, so that files can be compared."""
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = [
            f"{json.dumps(name)}:{json.dumps(part, separators=(',', ':'))}" for name, part in self.document().items()
        ]
        temporary = path.with_name(path.name + ".partial")
        temporary.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")
        temporary.replace(path)
        return path


def _check_version(document: Any) -> None:
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise ValueError("is no latency model; bulletsim fit writes one")
    written = document.get("format")
    # True is an int to Python, and equals 1.
    if type(written) is not int or not 1 <= written <= FORMAT_VERSION:
        raise ValueError(
            f"has format {reprlib.repr(written)}; this version reads up to {FORMAT_VERSION}: "
            f"update bulletsim, or fit again"
        )
    known = document.get("features")
    if type(known) is not int or known != FEATURES_VERSION:
        raise ValueError(f"has features {reprlib.repr(known)} and this version knows {FEATURES_VERSION}: fit it again")


def _read_op(op: str, part: Mapping[str, Any]) -> OpCalibration:
    try:
        return OpCalibration.read(op, part)
    except ValueError as error:
        # All else is checked before: only whether the nodes are trees shows as they are linked.
        raise ValueError(f"ops.{op}.trees.nodes: {error}") from None


def load_calibration(path: Path) -> DeviceCalibration:
    """The latency model in a file. Raises ValueError, in one line with its name, where it is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; bulletsim fit writes a latency model") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} is no latency model: {reason}; bulletsim fit writes one") from None
    try:
        return DeviceCalibration.read(document)
    except ValueError as error:
        raise ValueError(f"{path} {error}") from None


def built_in_names() -> tuple[str, ...]:
    """Devices with a fitted model in the package."""
    folder = resources.files("profiler").joinpath(BUILT_IN)
    return tuple(sorted(file.name.removesuffix(".json") for file in folder.iterdir() if file.name.endswith(".json")))


@cache
def built_in(device: str) -> DeviceCalibration | None:
    """The fitted model that the package holds of a device, None where it holds none."""
    file = resources.files("profiler").joinpath(BUILT_IN, f"{device}.json")
    if not file.is_file():
        return None
    # The package's own files are read whole by its tests: checking them again is a fortieth of a simulation's start.
    return DeviceCalibration.of_sound(json.loads(file.read_text(encoding="utf-8")))
