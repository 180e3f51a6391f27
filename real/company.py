"""What layers on SMs of their own lose to each other now: pairs that the profile has, run again beside each other.

A profile has each pair once, and a shared machine is at another speed from one minute to the next by more than most
lose. So here each of the two runs alone and then beside the other, within a second, and again between other runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple, Self

from profiler.kernelsum import KernelSumModel
from profiler.losses import CoRun, Losses, losses
from profiler.profile import LAYERS, Profile
from real.lanes import Lanes
from real.probes import KINDS, Place, Probe, awaited, run


class Company(NamedTuple):
    """Layers beside others: what they took, alone in ``own.seconds`` and then in ``seconds``."""

    own: Probe
    other: Probe
    seconds: float

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        return cls(Probe(**document["own"]), Probe(**document["other"]), document["seconds"])

    def document(self) -> dict[str, Any]:
        """JSON types; :meth:`read` makes it again."""
        return {"own": self.own._asdict(), "other": self.other._asdict(), "seconds": self.seconds}


def losses_now(model: KernelSumModel, found: Iterable[Company]) -> dict[str, Losses]:
    """By kind, the losses by which ``model`` explains them best; without a kind that there is none of.

    Of each pair the means over all times count.
    """
    times: dict[tuple[Probe, Probe], list[tuple[float, float]]] = {}
    for one in found:
        pair = one.own._replace(seconds=0.0), one.other._replace(seconds=0.0)
        times.setdefault(pair, []).append((one.own.seconds, one.seconds))
    runs: dict[str, list[CoRun]] = {}
    for (own, other), seconds in times.items():
        alone_s, beside_s = map(fmean, zip(*seconds, strict=True))
        runs.setdefault(own.kind, []).append(CoRun(own.work, own.sms, other.work, other.sms, beside_s / alone_s))
    return {kind: losses(model, runs[kind]) for kind in KINDS if kind in runs}


def accompanied(profile: Profile, lanes: Lanes, places: Sequence[Place], layers: int, *, after: bool) -> list[Company]:
    """Both sides of every other pair of the profile, from the second on with ``after``, that the lanes can run.

    places: two lanes; nothing where they are one. layers: of the model.
    """
    one, other = places
    if one == other:
        return []
    pairs = list(_pairs(profile, lanes, one, other, layers))[after::2]
    return [side for pair in pairs for side in _both(lanes, (one, other), pair)]


def _pairs(profile: Profile, lanes: Lanes, one: Place, other: Place, layers: int) -> Iterator[tuple[Probe, Probe]]:
    rows = profile.rows[(profile.rows["kernel"] == LAYERS[0]) & (profile.rows["beside"] == LAYERS[1])]
    for row in rows.to_dict("records"):
        own, beside = Probe.of(row), Probe.of(row, "beside_")
        apart = own.sms + beside.sms <= profile.provenance.sms
        few = max(own.layers, beside.layers) < layers
        slots = lanes.slots - own.sequences if one[0] == other[0] else lanes.slots
        if apart and few and own.fits(lanes, one) and beside.fits(lanes, other, slots):
            yield own, beside


def _both(lanes: Lanes, places: tuple[Place, Place], pair: tuple[Probe, Probe]) -> Iterator[Company]:
    alone = [_again(lanes, place, probe) for place, probe in zip(places, pair, strict=True)]
    beside = _together(lanes, places, pair)
    own, other = (probe._replace(seconds=seconds) for probe, seconds in zip(pair, alone, strict=True))
    yield Company(own, other, beside[0])
    yield Company(other, own, beside[1])


def _again(lanes: Lanes, place: Place, probe: Probe) -> float:
    """Seconds of layers that follow the same layers."""
    run(lanes, place, probe)
    return run(lanes, place, probe)


def _together(lanes: Lanes, places: tuple[Place, Place], pair: tuple[Probe, Probe]) -> list[float]:
    """Mean seconds of each while the other runs over and over: of all but its first, and those that end after that."""
    slots = 0, pair[0].sequences if places[0][0] == places[1][0] else 0

    def submit(side: int) -> None:
        lanes.submit(pair[side].job(places[side], job_id=side, slot=slots[side]))

    times: tuple[list[float], list[float]] = [], []
    for side in (0, 1):
        submit(side)
    while min(map(len, times)) < 2:
        done = awaited(lanes, pair[0])
        times[done.job_id].append(done.finish_s - done.begin_s)
        if min(map(len, times)) < 2:
            submit(done.job_id)
    awaited(lanes, pair[0])
    return [fmean(found[1:]) for found in times]
