"""What to buy and how to set it: the fewest instances that keep an SLO at a rate, and the best of settings in a row.

The settings are the x and y of disaggregation, or the SMs of a static split. Along such a row the capacity of prefill
falls while that of decode rises, and the lower of the two decides, so it rises to one peak. The peak is closed in by
thirds on one seed: of two settings the better is found by asking the second whether it keeps what the first can just
keep. The best one then gets the full search of :mod:`sim.capacity`, and its neighbours are asked for its rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import policies
from sim.capacity import FIRST_PER_GPU, LEAST_SEEDS, Capacity, Point, Search, typed
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

    Raises ValueError where the policy runs on one number only, where all share one device, and where as many instances
    as requests are too few.
    """
    if config.shared_device:
        raise ValueError(
            "shared_device is true, and a search for GPUs adds them; leave --shared-device out, or find a rate"
        )
    fewest = policies.load(config.policy.name, config.policy.settings).fewest_instances
    try:
        check_names(_of(config, fewest + 1))
    except ValueError as error:
        raise ValueError(f"instances cannot be added one by one: {error}") from None
    most = min(MOST_INSTANCES, len(prepare(_of(config, fewest)).trace))  # as many as requests: each is alone on one
    sizes = _Sizes(search, config)
    enough = sizes.one_seed_keeps(fewest, most)
    while sizes.point(enough).decision != "kept" and enough < 2 * most:
        enough += 1
    while enough > fewest and sizes.point(enough - 1).decision == "kept":
        enough -= 1
    return Fewest(instances=enough, point=sizes.point(enough), below=sizes.known(enough - 1))


class _Sizes:
    """What several seeds said of so many instances."""

    def __init__(self, search: Search, config: RunConfig) -> None:
        self._search, self._config = search, config
        self._points: dict[int, Point] = {}

    def one_seed_keeps(self, fewest: int, most: int) -> int:
        """The fewest that one seed says are enough."""
        search, outlook = self._search, self._search.outlook
        too_few, enough = fewest - 1, fewest
        with outlook.followed_by(LEAST_SEEDS):
            outlook.foresee(1, least=True)
            while not search.keeps(_of(self._config, enough)):
                too_few, enough = enough, enough * 2
                if too_few >= most:
                    rate = self._config.rate
                    raise ValueError(f"{too_few} instances do not keep the SLO at {rate:g} requests/s; loosen it")
                outlook.foresee(1 + math.ceil(math.log2(enough - too_few)), least=True)
            while enough - too_few > 1:
                outlook.foresee(math.ceil(math.log2(enough - too_few)), least=True)
                middle = (enough + too_few) // 2
                kept = search.keeps(_of(self._config, middle))
                too_few, enough = (too_few, middle) if kept else (middle, enough)
        return enough

    def point(self, instances: int) -> Point:
        if instances not in self._points:
            self._search.outlook.foresee(LEAST_SEEDS, least=True)
            self._points[instances] = self._search.decide(_of(self._config, instances))
        return self._points[instances]

    def known(self, instances: int) -> Point | None:
        """What was said of so many, if they were asked about."""
        return self._points.get(instances)


def _of(config: RunConfig, instances: int) -> RunConfig:
    return config.model_copy(update={"instances": instances})


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
    best = peak.place()
    name, config = row[best]
    beside = [place for place in (best - 1, best + 1) if 0 <= place < len(row)]
    with search.outlook.followed_by(LEAST_SEEDS * len(beside)):
        capacity = search.capacity(config, peak.rate(best) or None)
    limited = 0 < capacity.rate < float("inf")
    at = {row[place][0]: row[place][1].model_copy(update={"rate": typed(capacity.rate)}) for place in beside if limited}
    search.outlook.foresee(LEAST_SEEDS * len(at), least=True)
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

    def place(self) -> int:
        """The place of the highest."""
        low, high = 0, len(self._configs) - 1
        while high - low > 2:
            third = (high - low) // 3
            left, right = low + third, high - third
            if self._better(left, right, among=high - low + 1) == left:
                high = right - 1 if right - 1 > left else right
            else:
                low = left + 1 if left + 1 < right else left
        best = low
        for other in range(low + 1, high + 1):
            best = self._better(best, other, among=high - other + 2)
        return best

    def rate(self, place: int, first: float | None = None) -> float:
        if place not in self.rates:
            config = self._configs[place]
            start = first or config.rate or FIRST_PER_GPU * config.gpus
            kept, missed = self._search.bracket(config, start, 1 + self._search.question.tolerance)
            self.rates[place] = start if missed == float("inf") else kept
        return self.rates[place]

    def _better(self, one: int, other: int, *, among: int) -> int:
        """The better of two that are left ``among`` so many."""
        search = self._search
        # The full search of the best follows, and one neighbour of it at least.
        with search.outlook.followed_by(_comparisons(among) - 1 + search.least_runs + LEAST_SEEDS):
            if one in self.rates and other in self.rates:
                return max(one, other, key=self.rates.__getitem__)
            known, asked = (other, one) if other in self.rates else (one, other)
            with search.outlook.followed_by(1):
                asked_rate = self.rate(known) * (1 + search.question.tolerance)
            search.outlook.foresee(1, least=True)
            if asked_rate == 0.0 or search.keeps(self._configs[asked].model_copy(update={"rate": asked_rate})):
                self.rate(asked, asked_rate or None)
                return max(one, other, key=self.rates.__getitem__)
            return known


def _comparisons(count: int) -> int:
    """The fewest comparisons of two that leave one of so many, but for one between two whose rates are known."""
    found = 0
    while count > 3:
        count, found = max(2, count - (count - 1) // 3 - 1), found + 1
    return found + max(1, count - 2)


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
