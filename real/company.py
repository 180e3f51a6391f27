"""What launches on SMs of their own lose to each other now: shapes that the profile has as pairs, beside each other.

A profile has each pair once, and a shared machine is at another speed from one minute to the next by more than most
lose. So here each of the two runs alone and then beside the other, within a second or two, and again between other
runs. And it has the same few layers over and over, which may stay in a cache that passes through the whole model drive
them from: here they are passes.
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

PAIRS = 4
"""The shortest of the profile; half of them run at a time."""


class Company(NamedTuple):
    """Passes of one shape beside those of another: what they took, alone in ``own.seconds`` and then in ``seconds``."""

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
        passes = (one.work._replace(layers=None, head=True) for one in (own, other))
        work, beside = passes
        runs.setdefault(own.kind, []).append(CoRun(work, own.sms, beside, other.sms, beside_s / alone_s))
    return {kind: losses(model, runs[kind]) for kind in KINDS if kind in runs}


def accompanied(profile: Profile, lanes: Lanes, places: Sequence[Place], layers: int, session: int) -> list[Company]:
    """Both sides of every other of PAIRS, from the second on in sessions of odd numbers.

    places: two lanes; nothing where they are one, or on GPUs of their own. layers: of the model.
    """
    one, other = places
    if one == other or (one[0] != other[0] and profile.provenance.device != "cpu"):
        return []
    pairs = sorted(_pairs(profile, lanes, one, other), key=lambda pair: pair[0].profiled_s)
    return [side for pair in pairs[:PAIRS][session % 2 :: 2] for side in _both(lanes, (one, other), pair, layers)]


def _pairs(profile: Profile, lanes: Lanes, one: Place, other: Place) -> Iterator[tuple[Probe, Probe]]:
    rows = profile.rows[(profile.rows["kernel"] == LAYERS[0]) & (profile.rows["beside"] == LAYERS[1])]
    for row in rows.to_dict("records"):
        own, beside = Probe.of(row), Probe.of(row, "beside_")
        apart = own.sms + beside.sms <= profile.provenance.sms
        slots = lanes.slots - own.sequences if one[0] == other[0] else lanes.slots
        if apart and own.fits(lanes, one) and beside.fits(lanes, other, slots):
            yield own, beside


def _both(lanes: Lanes, places: tuple[Place, Place], pair: tuple[Probe, Probe], layers: int) -> Iterator[Company]:
    alone = [_again(lanes, place, probe, layers) for place, probe in zip(places, pair, strict=True)]
    beside = _together(lanes, places, pair, layers)
    own, other = (probe._replace(seconds=seconds) for probe, seconds in zip(pair, alone, strict=True))
    yield Company(own, other, beside[0])
    yield Company(other, own, beside[1])


def _again(lanes: Lanes, place: Place, probe: Probe, layers: int) -> float:
    """Seconds of a pass that follows one like it."""
    run(lanes, place, probe, layers)
    return run(lanes, place, probe, layers)


def _together(lanes: Lanes, places: tuple[Place, Place], pair: tuple[Probe, Probe], layers: int) -> list[float]:
    """Mean seconds of each while the other runs over and over: of all but its first, and those that end after that."""
    slots = 0, pair[0].sequences if places[0][0] == places[1][0] else 0

    def submit(side: int) -> None:
        lanes.submit(pair[side].job(places[side], job_id=side, layers=layers, slot=slots[side]))

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
