"""Where the installed package aiconfigurator-core keeps its kernel tables: data/SYSTEM/FAMILY/FRAMEWORK/VERSION/."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

PACKAGE = "aiconfigurator-core"
MODULE = "aiconfigurator_core"

SYSTEMS = {"A100-80G": "a100_sxm", "H100": "h100_sxm", "H200": "h200_sxm", "L40S": "l40s"}
"""The package's name for each of our devices that it has."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The package's version and the folder of its data."""

    version: str
    data: Path


def installed() -> Installed:
    """Found without importing the package, which would load its own models."""
    spec = util.find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"the package {PACKAGE} is not installed; run pip install 'bulletsim[aic]', or give its tables as files"
        )
    return Installed(metadata.version(PACKAGE), Path(spec.submodule_search_locations[0]) / "systems" / "data")


def tables(package: Installed, device: str, backend: str, version: str | None, *, nccl: bool) -> list[Path]:
    """The files of products, attention and all-reduces of a device under a framework."""
    if device not in SYSTEMS:
        raise ValueError(f"{PACKAGE} {package.version} has no tables of {device}; it has: {', '.join(SYSTEMS)}")
    system = package.data / SYSTEMS[device]
    gemm = _folder(system / "gemm" / backend, version, package)
    attention = _folder(system / "attention" / backend, version, package)
    found = [
        gemm / "gemm_perf.parquet",
        attention / "context_attention_perf.parquet",
        attention / "generation_attention_perf.parquet",
    ]
    communication = system / "comm" / ("nccl" if nccl else backend)
    name = "nccl_perf.parquet" if nccl else "custom_allreduce_perf.parquet"
    all_reduce = _newest(communication, name, None if nccl else version)
    return [*found, all_reduce] if all_reduce else found


def _folder(family: Path, version: str | None, package: Installed) -> Path:
    """The folder of a version, or of the newest one."""
    versions = _versions(family)
    if not versions:
        known = sorted(path.name for path in family.parent.glob("*") if _versions(path))
        raise ValueError(
            f"{PACKAGE} {package.version} has no {family.parent.name} tables under {family.name!r} for "
            f"{family.parents[1].name}; it has: {', '.join(known) or 'none'}"
        )
    if version is not None and version not in versions:
        raise ValueError(
            f"{PACKAGE} {package.version} has no {family.parent.name} tables of {family.name} {version} for "
            f"{family.parents[1].name}; it has: {', '.join(versions)}"
        )
    return family / (version or versions[-1])


def _newest(family: Path, name: str, version: str | None) -> Path | None:
    """The newest file of that name, not after ``version`` where one before it has any; None where none has."""
    versions = [found for found in _versions(family) if (family / found / name).is_file()]
    before = [found for found in versions if version is None or _order(found) <= _order(version)]
    chosen = before[-1:] or versions[:1]
    return family / chosen[0] / name if chosen else None


def _versions(family: Path) -> list[str]:
    """Versions that hold a table, oldest first."""
    return sorted({path.parent.name for path in family.glob("*/*_perf.parquet")}, key=_order)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
