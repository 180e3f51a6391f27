"""A measurement from grid to profile: what ``bulletsim profile`` does."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from profiler.measure.device import GAP, Device, Sample
from profiler.measure.grid import Grid, Group, Target, Variant, plan
from profiler.measure.journal import Header, Journal, read_journal
from profiler.measure.models import check_model
from profiler.presets import model as model_named
from profiler.profile import Profile, Provenance
from profiler.specs import ModelSpec

DEVICES = ("cpu", "cuda")
Progress = Callable[[int, str], None]

SATURATED = 0.95
"""A share of the whole device's copy bandwidth from which more SMs count as bringing nothing."""


class Settings(NamedTuple):
    """What to measure.

    device: ``cpu`` or ``cuda``. model: its shapes are measured. out: see :func:`paths`. quick: the coarse grid alone.
    kernels: only these; all where empty. repeats: of each point, see :func:`rounds_of`.
    limit_s: begin nothing after so many seconds.
    """

    device: str
    model: str
    out: Path
    quick: bool = False
    kernels: tuple[str, ...] = ()
    repeats: int = 5
    limit_s: float | None = None


class Outcome(NamedTuple):
    """A profile, and what to know of how it came about.

    points: of the grid. measured: of these, in this run and before it. failed: why points could not be measured.
    gaps: points of which a repeat lost more than :data:`profiler.measure.device.GAP` of its time to something else.
    """

    path: Path
    profile: Profile
    points: int
    measured: int
    failed: tuple[str, ...]
    gaps: int


def measure(settings: Settings, progress: Callable[[int], Progress] | None = None) -> Outcome:
    """Measures, going on where a journal of the same settings stopped, and writes the profile.

    ``progress`` is told the number of points and gives a function to be told (points done, what is next).
    Raises ValueError, with the remedy, for settings that cannot be, a device that is not there, and a measurement
    that was cut off before its first point.
    """
    model = check(settings)
    journal_path, target = paths(settings.out)
    if settings.out.is_dir():
        raise ValueError(f"{settings.out} is a directory; --out names a file in it, such as {settings.out / 'profile'}")
    if target.exists() and not journal_path.exists():
        raise ValueError(f"{target} exists and is not of an earlier start of this run; take another --out")
    device = open_device(settings.device, model)
    try:
        grid = plan(model, device.shares, device.reach, quick=settings.quick, kernels=settings.kernels)
        with Journal.open(journal_path, _header(settings, model, device, grid)) as journal:
            _fill(journal, grid, device, settings, (progress or _silent)(grid.points * rounds_of(settings, device)))
            return _outcome(journal.path, journal.header, journal.samples, target)
    finally:
        device.close()


def recover(out: Path) -> Outcome:
    """Writes the profile of what a journal holds, without its device: for a measurement that nobody can go on with.

    Raises ValueError where there is no journal, or none with a measurement.
    """
    journal_path, target = paths(out)
    header, samples = read_journal(journal_path)
    return _outcome(journal_path, header, samples, target)


def check(settings: Settings) -> ModelSpec:
    """The model. Raises ValueError for settings that cannot be, before anything is started."""
    if settings.device not in DEVICES:
        raise ValueError(f"device is {settings.device!r}; known: {', '.join(DEVICES)}")
    if settings.repeats < 1:
        raise ValueError(f"repeats is {settings.repeats}; it must be 1 or more")
    if settings.limit_s is not None and not settings.limit_s > 0:
        raise ValueError(f"limit-s is {settings.limit_s:g}; it must be above 0 seconds")
    if find_spec("torch") is None:
        raise ValueError("measuring needs torch, which is not installed; install it by: pip install 'bulletsim[real]'")
    model = model_named(settings.model)
    check_model(model)
    return model


def paths(out: Path) -> tuple[Path, Path]:
    """(journal, profile) of ``--out``, which may be written with the profile's suffix or without."""
    name = out.with_suffix("") if out.suffix in (".parquet", ".json") else out
    return Path(f"{name}.journal.jsonl"), Path(f"{name}.parquet")


def open_device(name: str, model: ModelSpec) -> Device:
    """Raises ValueError where the device is not there."""
    if name == "cuda":
        from profiler.measure.shares_cuda import CudaDevice  # torch

        return CudaDevice(model)
    from profiler.measure.shares_cpu import CpuDevice

    return CpuDevice(model)


def _fill(journal: Journal, grid: Grid, device: Device, settings: Settings, tell: Progress) -> None:
    """Measures what the journal lacks until all is there or the time is up: the whole grid once in each round.

    What drifts in minutes, as a shared machine does, then shows in a point's own repeats.
    """
    done = Counter((sample.target, sample.variant) for sample in journal.samples if not sample.failed)
    rounds = rounds_of(settings, device)
    repeats = -(-settings.repeats // rounds)
    begun, longest = time.monotonic(), 0.0
    for number, group in product(range(rounds), grid.groups):
        missing = Group(group.target, tuple(v for v in group.variants if done[group.target, v] <= number))
        if not missing.variants:
            continue
        tell(done.total(), missing.target.kernel)
        elapsed = time.monotonic() - begun
        # A group of ordinary length must still fit.
        if settings.limit_s is not None and elapsed + min(longest, settings.limit_s / 20) > settings.limit_s:
            return
        for sample in device.measure(missing, repeats):
            journal.add(sample)
            done[sample.target, sample.variant] += 1
            tell(done.total(), missing.target.kernel)
        longest = max(longest, time.monotonic() - begun - elapsed)
    tell(done.total(), "")


def rounds_of(settings: Settings, device: Device) -> int:
    """The device's rounds, or fewer where fewer repeats are asked for; each has as many, so there may be more."""
    return min(device.rounds, settings.repeats)


def _silent(points: int) -> Progress:
    return lambda done, text: None


def _header(settings: Settings, model: ModelSpec, device: Device, grid: Grid) -> Header:
    described = json.dumps(asdict(model), sort_keys=True).encode()
    return Header(
        {
            "device": device.name,
            "machine": device.settings.get("machine", device.name),
            "sms": device.shares.whole,
            "dtype": device.dtype,
            "model": settings.model,
            "model_sha256": hashlib.sha256(described).hexdigest()[:16],
            "quick": settings.quick,
            "kernels": settings.kernels,
            "repeats": settings.repeats,
            "rounds": rounds_of(settings, device),
            "grid": grid.digest,
        },
        {
            **device.settings,
            "points": grid.points,
            "date": datetime.now(UTC).date().isoformat(),
            "bulletsim": _own_version(),
        },
    )


def _outcome(journal: Path, header: Header, samples: Sequence[Sample], target: Path) -> Outcome:
    points = _points(samples)
    good = [sample for sample in points if not sample.failed]
    failed = tuple(f"{_named(sample)}: {sample.failed}" for sample in points if sample.failed)
    if not good:
        why = f"; {failed[0]}" if failed else "; the time given was too short for one: allow more by --limit-s"
        raise ValueError(f"{journal} holds no measurement{why}")
    gaps = sum(sample.gap is not None and sample.gap > GAP for sample in good)
    settings, about = header
    profile = Profile.of(
        [sample.row(settings["dtype"]) for sample in good],
        Provenance(
            device=settings["device"],
            sms=settings["sms"],
            source="measured",
            origin=f"bulletsim profile on {settings['machine']}",
            date=about["date"],
            model=settings["model"],
            settings={
                **{name: value for name, value in about.items() if name != "date"},
                **{name: settings[name] for name in ("quick", "kernels", "rounds", "grid")},
                # As many as were made, which may be more than were asked for.
                "repeats": -(-settings["repeats"] // settings["rounds"]) * settings["rounds"],
                "interrupted_points": gaps,
                "failed_points": len(failed),
                **derived(good, settings["sms"], settings["dtype"]),
            },
        ),
    )
    profile.save(target)
    return Outcome(target, profile, about["points"], len(good), failed, gaps)


def _points(samples: Iterable[Sample]) -> list[Sample]:
    """Each point once, with its times of all rounds; failed where no round could time it."""
    points: dict[tuple[Target, Variant], Sample] = {}
    for sample in samples:
        before = points.get((sample.target, sample.variant))
        if before is None or before.failed:
            points[sample.target, sample.variant] = sample
        elif not sample.failed:
            gaps = [gap for gap in (before.gap, sample.gap) if gap is not None]
            points[sample.target, sample.variant] = before._replace(
                seconds=before.seconds + sample.seconds, gap=max(gaps, default=None)
            )
    return list(points.values())


def derived(samples: Iterable[Sample], whole: int, dtype: str) -> dict[str, Any]:
    """What the device reaches at best, and N_d: the SMs from which a copy gains nothing by more."""
    alone = [sample for sample in samples if sample.variant.beside is None]
    rates = {
        sample.target: 2 * m * n * k / _middle(sample)
        for sample in alone
        if sample.variant.sms == whole and sample.target.kernel == "gemm"
        for m, n, k in [sample.target.shape]
    }
    copies: dict[Target, dict[int, float]] = {}
    for sample in alone:
        if sample.target.kernel == "copy":
            bandwidth = 2 * sample.target.shape[0] / _middle(sample)
            copies.setdefault(sample.target, {})[sample.variant.sms] = bandwidth
    ceilings: dict[str, float] = {}
    if rates:
        ceilings[f"{dtype}_flops"] = max(rates.values())
    if any(whole in found for found in copies.values()):
        ceilings["dram_bytes_per_s"] = max(found[whole] for found in copies.values() if whole in found)
    found: dict[str, Any] = {"ceilings": ceilings}
    knee = saturation(max(copies.values(), key=len, default={}))
    return {**found, "bandwidth_knee_sms": knee} if knee else found


def saturation(bandwidth: Mapping[int, float]) -> int | None:
    """The fewest SMs with :data:`SATURATED` of the best bandwidth; None where fewer than two shares are known."""
    if len(bandwidth) < 2:
        return None
    best = max(bandwidth.values())
    return min(sms for sms, rate in bandwidth.items() if rate >= SATURATED * best)


def _middle(sample: Sample) -> float:
    return median(sample.seconds)


def _named(sample: Sample) -> str:
    beside = sample.variant.beside
    shape = " x ".join(map(str, sample.target.shape))
    return f"{sample.target.kernel} {shape} on {sample.variant.sms}{f' beside {beside.kernel}' if beside else ''}"


def _own_version() -> str:
    try:
        return version("bulletsim")
    except PackageNotFoundError:
        return "unknown"


def spreads(profile: Profile) -> dict[str, tuple[int, int, float, float]]:
    """By kernel: rows alone, rows beside another, the median and the largest relative deviation."""
    found = {}
    for kernel, rows in profile.rows.groupby("kernel", sort=False):
        spread = rows["spread"].astype(float)
        alone = int((rows["beside"] == "").sum())
        found[str(kernel)] = (alone, len(rows) - alone, float(spread.median()), float(spread.max()))
    return found
