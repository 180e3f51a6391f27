"""What to buy and how to set it: the fewest instances that keep an SLO at a rate, and the best of settings in a row.

The settings are the x and y of disaggregation, or the SMs of a static split. Along such a row the capacity of prefill
falls while that of decode rises, and the lower of the two decides, so it rises to one peak. The peak is closed in by
thirds on one seed: of two settings the better is found by asking the second whether it keeps what the first can just
keep. The best one then gets the full search of :mod:`sim.capacity`, and its neighbours are asked for its rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import policies
from sim.capacity import FIRST_PER_GPU, Capacity, Point, Search, typed
from sim.config import RunConfig
from sim.simulate import check_names, prepare

MOST_INSTANCES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Fewest:
    """Instances, and what several seeds said of as many and of one fewer (None where there cannot be fewer)."""

    instances: int
    point: Point
    below: Point | None


def fewest_instances(search: Search, config: RunConfig) -> Fewest:
    """The fewest instances that keep the SLO at the rate of ``config``, each time adding whole instances.

    Raises ValueError where the policy runs on one number only, and where as many instances as requests are too few.
    """
    fewest = policies.load(config.policy.name, config.policy.settings).fewest_instances

    def of(instances: int) -> RunConfig:
        return config.model_copy(update={"instances": instances})

    try:
        check_names(of(fewest + 1))
    except ValueError as error:
        raise ValueError(f"instances cannot be added one by one: {error}") from None
    most = min(MOST_INSTANCES, len(prepare(of(fewest)).trace))  # as many as requests: each is alone on one
    too_few, enough = fewest - 1, fewest
    while not search.keeps(of(enough)):
        too_few, enough = enough, enough * 2
        if too_few >= most:
            raise ValueError(f"{too_few} instances do not keep the SLO at {config.rate:g} requests/s; loosen it")
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        too_few, enough = (too_few, middle) if search.keeps(of(middle)) else (middle, enough)
    points = {enough: search.decide(of(enough))}
    while points[enough].decision != "kept" and enough < 2 * most:
        enough += 1
        points[enough] = search.decide(of(enough))
    while enough > fewest:
        if enough - 1 not in points:
            points[enough - 1] = search.decide(of(enough - 1))
        if points[enough - 1].decision != "kept":
            break
        enough -= 1
    return Fewest(instances=enough, point=points[enough], below=points.get(enough - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best of a row of settings, its capacity, its neighbours at that rate, and rates that one seed kept."""

    name: str
    config: RunConfig
    capacity: Capacity
    neighbours: dict[str, Point]
    tried: dict[str, float]


def best_setting(search: Search, row: Sequence[tuple[str, RunConfig]]) -> Best:
    """The setting of ``row``, (name, run) in order, with the highest capacity."""
    peak = _Peak(search, [config for _, config in row])
    low, high = 0, len(row) - 1
    while high - low > 2:
        third = (high - low) // 3
        left, right = low + third, high - third
        if peak.better(left, right) == left:
            high = right - 1 if right - 1 > left else right
        else:
            low = left + 1 if left + 1 < right else left
    best = low
    for other in range(low + 1, high + 1):
        best = peak.better(best, other)
    name, config = row[best]
    capacity = search.capacity(config, peak.rate(best) or None)
    beside = [place for place in (best - 1, best + 1) if 0 <= place < len(row) and 0 < capacity.rate < float("inf")]
    at = {row[place][0]: row[place][1].model_copy(update={"rate": typed(capacity.rate)}) for place in beside}
    return Best(
        name=name,
        config=config,
        capacity=capacity,
        neighbours={name: search.decide(run) for name, run in at.items()},
        tried={row[place][0]: rate for place, rate in sorted(peak.rates.items())},
    )


class _Peak:
    """Rates that one seed keeps under each setting, as far as comparing them takes."""

    def __init__(self, search: Search, configs: Sequence[RunConfig]) -> None:
        self._search, self._configs = search, configs
        self.rates: dict[int, float] = {}

    def rate(self, place: int, first: float | None = None) -> float:
        if place not in self.rates:
            config = self._configs[place]
            start = first or config.rate or FIRST_PER_GPU * config.gpus
            kept, missed = self._search.bracket(config, start, 1 + self._search.question.tolerance)
            self.rates[place] = start if missed == float("inf") else kept
        return self.rates[place]

    def better(self, one: int, other: int) -> int:
        if one in self.rates and other in self.rates:
            return max(one, other, key=self.rates.__getitem__)
        known, asked = (other, one) if other in self.rates else (one, other)
        asked_rate = self.rate(known) * (1 + self._search.question.tolerance)
        if asked_rate == 0.0 or self._search.keeps(self._configs[asked].model_copy(update={"rate": asked_rate})):
            self.rate(asked, asked_rate or None)
            return max(one, other, key=self.rates.__getitem__)
        return known


def xy_row(config: RunConfig) -> list[tuple[str, RunConfig]]:
    """Every xPyD of the instances of ``config`` under disaggregation. Raises ValueError for fewer than 2."""
    total = config.instances
    if total < 2:
        raise ValueError(f"instances is {total}; disaggregation needs 2 or more (--instances 4)")
    return [
        (f"{x}P{total - x}D", _with(config, prefill_instances=x, decode_instances=total - x)) for x in range(1, total)
    ]


def split_row(config: RunConfig) -> list[tuple[str, RunConfig]]:
    """Every static split of an instance's SMs in steps of its device. Raises ValueError where there is only one SM."""
    device = check_names(config)[1].device
    step = max(1, min(device.sm_granularity, device.sms // 2))
    shares = range(step, device.sms, step)
    if not shares:
        raise ValueError(f"{device.name} has {device.sms} SM to an instance; a split needs 2 or more")
    return [(f"{device.sms - sms}+{sms} SMs", _with(config, decode_sms=sms)) for sms in shares]


def _with(config: RunConfig, **settings: int) -> RunConfig:
    policy = config.policy.model_copy(update={"settings": {**config.policy.settings, **settings}})
    return config.model_copy(update={"policy": policy})
