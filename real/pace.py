"""How fast the device is now, against when it was profiled: whole layers that the profile has, run again.

A shared machine is not as fast at noon as it was in the morning, and a GPU's clocks follow its temperature. So this is
done before a run and after it, in turns as a profile does, and the simulation of the run goes at that pace. Nothing of
the served requests enters it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple, Self

from policies.api import LINK
from profiler.measure.attention import Sequenced
from profiler.profile import Profile
from real.lanes import Batch, DeviceError, Job, Lanes

KINDS = ("prefill", "decode")
REPEATS = 5
MOST_ROWS = 4
"""Rows of the profile for each kind of layers and share, from the shortest to the longest: small launches, which wait
for memory and for each other's threads, do not slow down as large ones do."""

TIMEOUT_S = 120.0


class Probe(NamedTuple):
    """Layers of the profile and how long they took now."""

    kind: str
    sms: int
    sequences: tuple[Sequenced, ...]
    layers: int
    profiled_s: float
    seconds: float = 0.0

    @property
    def ratio(self) -> float:
        return self.seconds / self.profiled_s


class Pace(NamedTuple):
    """Layers run again, and what that says of the device."""

    probes: tuple[Probe, ...] = ()

    def by_sms(self, kind: str) -> list[tuple[int, float]]:
        """Time now over time when profiled, of layers of a kind on each share they were run again on.

        Their mean: a machine that is now at one speed, now at another is at neither on the average, and the sum of
        many steps goes by the average. What one probe met by accident is gone with the median of its repeats.
        """
        ratios: dict[int, list[float]] = {}
        for probe in self.probes:
            if probe.kind == kind:
                ratios.setdefault(probe.sms, []).append(probe.ratio)
        return [(sms, fmean(found)) for sms, found in sorted(ratios.items())]

    @classmethod
    def read(cls, documents: Iterable[Mapping[str, Any]]) -> Self:
        """All probes of what :meth:`document` gave, of one pace or several."""
        rows = [row for found in documents for row in found["probes"]]
        return cls(tuple(Probe(row["kind"], row["sms"], (), 0, row["profiled_s"], row["seconds"]) for row in rows))

    def document(self) -> dict[str, Any]:
        """JSON types, for a run's facts."""
        rows = [
            {"kind": probe.kind, "sms": probe.sms, "profiled_s": probe.profiled_s, "seconds": probe.seconds}
            for probe in self.probes
        ]
        return {**{kind: [list(point) for point in self.by_sms(kind)] for kind in KINDS}, "probes": rows}


def paced(profile: Profile, lanes: Lanes, names: Sequence[Sequence[str]], layers: int) -> Pace:
    """Runs layers of ``profile`` again on idle ``lanes``, whose names of each instance are ``names``.

    ``layers``: of the model; a launch of all of them would have the LM head too, which the profile's have not.
    Prefill on the first lane that computes, decode on the last, each at every share that the profile has and the lane
    grants. Raises DeviceError as lanes do.
    """
    computing = [(instance, name) for instance, own in enumerate(names) for name in own if name != LINK]
    places = {"prefill": computing[0], "decode": computing[-1]}
    probes = [probe for kind, place in places.items() for probe in _probes(profile, kind, lanes, place, layers)]
    # In turns, as in a profile. The first is a warm-up: buffers grow, libraries choose their kernels.
    turns = [[_seconds(lanes, places[probe.kind], probe) for probe in probes] for _ in range(1 + REPEATS)][1:]
    found = [
        probe._replace(seconds=median(times)) for probe, times in zip(probes, zip(*turns, strict=True), strict=True)
    ]
    return Pace(tuple(found))


def _probes(profile: Profile, kind: str, lanes: Lanes, place: tuple[int, str], layers: int) -> Iterator[Probe]:
    rows = profile.select(f"{kind}_layers").sort_values("latency_s", ascending=False)
    by_sms: dict[int, list[Probe]] = {}
    for row in rows[rows["layers"] < layers].to_dict("records"):
        if kind == "prefill":
            one = row["new_tokens"], row["cached_tokens"]
            count = row["sequences"]
        else:
            one, count = (1, row["decode_context_tokens"] - 1), row["decode_requests"]
        sms = int(row["sms"])
        if count <= lanes.slots and sum(one) <= lanes.slot_tokens and lanes.granted(*place, sms) == sms:
            sequences = tuple(Sequenced(slot, int(one[0]), int(one[1])) for slot in range(int(count)))
            probe = Probe(kind, sms, sequences, int(row["layers"]), float(row["latency_s"]))
            by_sms.setdefault(sms, []).append(probe)
    for found in by_sms.values():
        yield from _spread(found, MOST_ROWS)


def _spread(probes: Sequence[Probe], most: int) -> list[Probe]:
    """At most so many of them, the first and the last among these, at even distances."""
    if len(probes) <= most:
        return list(probes)
    return [probes[place * (len(probes) - 1) // (most - 1)] for place in range(most)]


def _seconds(lanes: Lanes, place: tuple[int, str], probe: Probe) -> float:
    tokens = (1,) * sum(sequence.new for sequence in probe.sequences)
    lanes.submit(Job(-1, *place, probe.sms, Batch(probe.sequences, tokens, 0, probe.layers)))
    done = lanes.wait(TIMEOUT_S)
    if done is None:
        raise DeviceError(f"layers that took {probe.profiled_s:.3g} s when profiled took over {TIMEOUT_S:g} s")
    return done.finish_s - done.begin_s
