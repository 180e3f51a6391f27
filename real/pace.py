"""How fast the device is now, against when it was profiled: whole layers that the profile has, run again.

A shared machine is not as fast at noon as it was in the morning, and a GPU's clocks follow its temperature. So this is
done before a run and after it, in turns as a profile does, and the simulation of the run goes at that pace. Nothing of
the served requests enters it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from time import perf_counter, sleep
from typing import Any, NamedTuple, Self

from policies.api import LINK
from profiler.composition import ProductFactors
from profiler.fittedmodel import FittedModel
from profiler.layerfit import Timed, product_factors
from profiler.losses import Losses
from profiler.profile import Profile
from real.company import Company, accompanied, losses_now
from real.lanes import Lanes
from real.probes import KINDS, Place, Probe, run

REPEATS = 5
SESSION_S = 2.0
"""What running layers again may take, at the times of the profile: layers are repeated less often where there are more
of them, and where once is too often, some run this time and others the next. Those of all runs count together."""

MOST_PARTS = 4
"""Of a turn: so many times must come for each of its layers to have run."""

REST_S = 0.1
"""What a lane sleeps before layers that show what it takes to wake: a lane that prefills rests about so long where some
ten requests a second arrive. Much less leaves it half awake."""

RESTS = 2
"""So often at a time: each takes a rest and three launches, and those of all runs count together."""


class Session(NamedTuple):
    """Which of how many times that layers run again on a policy's lanes, the first being 0."""

    number: int
    of: int


ONCE = Session(0, 1)


class Pace(NamedTuple):
    """Layers run again, and what that says of the device.

    wakes_s: seconds that layers which prefill took longer after a rest than in a pass, of each time.
    company: layers beside others.
    """

    probes: tuple[Probe, ...] = ()
    wakes_s: tuple[float, ...] = ()
    company: tuple[Company, ...] = ()

    @property
    def wake_s(self) -> float:
        """What a launch that prefills takes longer on a lane that has been at rest: their mean.

        The same layers, whether few or many, take about as much longer: it is no factor.
        """
        return max(0.0, fmean(self.wakes_s)) if self.wakes_s else 0.0

    def rows(self) -> list[Probe]:
        """Each row of the profile once, with the mean of the times that it took.

        One time scatters more than the device drifts. Their mean, not their median: a machine that is now at one speed,
        now at another is at neither on the average, and the sum of many steps goes by the average.
        """
        times: dict[Probe, list[float]] = {}
        for probe in self.probes:
            times.setdefault(probe._replace(seconds=0.0), []).append(probe.seconds)
        return [row._replace(seconds=fmean(seconds)) for row, seconds in times.items()]

    def by_sms(self, kind: str) -> list[tuple[int, float]]:
        """Time now over time when profiled, of layers of a kind on each share they were run again on: their mean."""
        ratios: dict[int, list[float]] = {}
        for row in self.rows():
            if row.kind == kind:
                ratios.setdefault(row.sms, []).append(row.ratio)
        return [(sms, fmean(found)) for sms, found in sorted(ratios.items())]

    def products(self, model: FittedModel) -> ProductFactors:
        """The factors on products by which ``model``, at the pace of each kind and share, says what layers take now.

        So whatever made a single row of the profile faster or slower than others of its kind is gone.
        """
        host_s = model.calibration.host_in_layers_s
        layers = [Timed(row.work, row.sms, row.seconds - host_s) for row in self.rows()]
        return product_factors(self._by_kind(model), layers)

    def losses(self, model: FittedModel) -> dict[str, Losses]:
        """What launches of each kind lose to others on SMs of their own; without a kind that was not run beside any."""
        calibration = model.calibration.with_products(self.products(model))
        return losses_now(replace(self._by_kind(model), calibration=calibration), self.company)

    def _by_kind(self, model: FittedModel) -> FittedModel:
        costs = model.layer_costs.at_pace(*(tuple(self.by_sms(kind)) for kind in KINDS))
        return replace(model, layer_costs=costs)

    @classmethod
    def read(cls, documents: Iterable[Mapping[str, Any]]) -> Self:
        """All probes of what :meth:`document` gave, of one pace or several."""
        return cls.joined(
            cls(
                tuple(Probe(**row) for row in found["probes"]),
                tuple(found["wakes_s"]),
                tuple(map(Company.read, found["company"])),
            )
            for found in documents
        )

    @classmethod
    def joined(cls, several: Iterable[Self]) -> Self:
        """What was measured at several times, as one."""
        together = list(several)
        return cls(
            tuple(probe for one in together for probe in one.probes),
            tuple(seconds for one in together for seconds in one.wakes_s),
            tuple(found for one in together for found in one.company),
        )

    def document(self) -> dict[str, Any]:
        """JSON types, for a run's facts."""
        ratios = {kind: [list(point) for point in self.by_sms(kind)] for kind in KINDS}
        return {
            **ratios,
            "probes": [probe._asdict() for probe in self.probes],
            "wakes_s": list(self.wakes_s),
            "company": [found.document() for found in self.company],
        }


def paced(
    profile: Profile,
    lanes: Lanes,
    names: Sequence[Sequence[str]],
    layers: int,
    host_s: float = 0.0,
    session: Session = ONCE,
) -> Pace:
    """Runs layers of ``profile`` again on idle ``lanes``, whose names of each instance are ``names``.

    ``layers``: of the model; a launch of all of them would have the LM head too, which the profile's have not.
    ``host_s``: for so long the host works before each launch, as it does between launches that serve.
    ``session``: where all are too many, it has some of them, and others have the rest.
    Prefill on the first lane that computes, decode on the last, each at every share that the profile has and the lane
    grants; and beside each other where these are two. Raises DeviceError as lanes do.
    """
    computing = [(instance, name) for instance, own in enumerate(names) for name in own if name != LINK]
    places = {"prefill": computing[0], "decode": computing[-1]}
    probes = [probe for kind, place in places.items() for probe in _probes(profile, kind, lanes, place, layers)]
    turn_s = 3 * sum(probe.profiled_s for probe in probes)
    parts = max(1, min(session.of, MOST_PARTS, math.ceil(turn_s / SESSION_S)))
    probes = probes[session.number % parts :: parts]
    # In turns, as in a profile. No warm-up: what runs before each in its pass lets buffers grow too.
    turns: list[list[float]] = []
    for _ in range(_repeats(probes)):
        turns.append([_in_a_pass(lanes, places[probe.kind], probe, layers, host_s) for probe in probes])
    found = [
        probe._replace(seconds=median(times)) for probe, times in zip(probes, zip(*turns, strict=True), strict=True)
    ]
    rests = [probe for probe in probes if probe.kind == "prefill"]
    step = -(-len(rests) // RESTS) or 1
    return Pace(
        tuple(found),
        tuple(_wake_s(lanes, places["prefill"], probe, layers, host_s) for probe in rests[step // 2 :: step]),
        tuple(accompanied(profile, lanes, (places["prefill"], places["decode"]), layers, session.number)),
    )


def _probes(profile: Profile, kind: str, lanes: Lanes, place: Place, layers: int) -> Iterator[Probe]:
    rows = profile.select(f"{kind}_layers").sort_values("latency_s", ascending=False)
    for probe in map(Probe.of, rows[rows["layers"] < layers].to_dict("records")):
        if probe.fits(lanes, place):
            yield probe


def _repeats(probes: Sequence[Probe]) -> int:
    turn_s = sum(probe.profiled_s for probe in probes)
    # In a turn each comes three times over.
    return REPEATS if not turn_s else min(REPEATS, max(1, int(SESSION_S / (3 * turn_s))))


def _in_a_pass(lanes: Lanes, place: Place, probe: Probe, layers: int, host_s: float) -> float:
    """Seconds of a probe as of a step that follows another like it: before it run the same layers and as many more.

    In a pass the weights of a layer have been driven from the caches by all others'; those of the same few layers over
    and over have not. The lane is at work until then, and not woken after others had its cores. And the host's work
    takes a core and caches from a CPU's lanes, whose threads sleep meanwhile.
    """
    run(lanes, place, probe, min(2 * probe.layers, layers))
    end_s = perf_counter() + host_s
    while perf_counter() < end_s:
        pass
    return run(lanes, place, probe)


def _wake_s(lanes: Lanes, place: Place, probe: Probe, layers: int, host_s: float) -> float:
    """Seconds that a probe takes longer after a rest than in the pass just before it."""
    in_pass_s = _in_a_pass(lanes, place, probe, layers, host_s)
    sleep(REST_S)
    return run(lanes, place, probe) - in_pass_s
