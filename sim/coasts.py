"""Several instances that coast, each with a clock of its own, and none ahead of what could change it.

What an instance does while it coasts concerns nobody else, and what others do does not concern it until they touch it:
a request is put in its queue or offered to it, a transfer to it begins or ends, or a router looks at a cache that it is
taking blocks of. The step that it is in the middle of then becomes a launch in flight that began when the step did, and
the policy is asked as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from policies.api import Step
from sim.coast import UNKNOWN, Coast, Coasting
from sim.effects import Effects
from sim.instance import Instance
from sim.launch import NEVER, Coaster
from sim.view import Clock


class Coasts:
    """``launch`` begins a step of an instance, by its number, at the clock's present.

    ``changed`` hears about which instance the policy is to be asked.
    """

    def __init__(
        self,
        *,
        coast: Coast,
        executor: Coaster,
        clock: Clock,
        effects: Effects,
        launch: Callable[[Instance, Step, int], None],
        changed: Callable[[Instance], None],
    ) -> None:
        self._coast = coast
        self._executor = executor
        self._clock = clock
        self._effects = effects
        self._launch = launch
        self._changed = changed
        self.under_way: dict[int, Coasting] = {}

    def begin(self, instance: Instance, step: Step, number: int) -> None:
        """From now on the instance repeats a decode step, with nothing beside it; ``number`` as of a launch."""
        instance.coasting = True
        self.under_way[instance.index] = Coasting(instance, step, self._clock.now_s, number)

    def end(self, instance: Instance) -> None:
        """Something is about to touch the instance."""
        coasting = self.under_way.pop(instance.index, None)
        if coasting is None:
            return
        instance.coasting = False
        clock, now = self._clock, self._clock.now_s
        clock.now_s = coasting.now_s
        self._launch(instance, coasting.step, coasting.number)
        clock.now_s = now

    def end_if_evicting(self, instances: Sequence[Instance]) -> None:
        """A router is about to see these: the steps that they are in take their blocks, with what was cached there."""
        for instance in instances:
            if instance.coasting and instance.cache is not None and instance.cohort.block_demand:
                self.end(instance)

    def end_all(self) -> None:
        """The run is over."""
        for coasting in list(self.under_way.values()):
            self.end(coasting.instance)

    def run(self, limit_s: float) -> bool:
        """Steps that end by ``limit_s`` and before anything in flight, in order of their ends over all instances.

        Whether the policy is to be asked: an instance has stopped by itself, and the clock stands at that instant.
        """
        executor, under_way, steps = self._executor, self.under_way, self._coast.run
        first_end_s = executor.first_end_s()
        while under_way:
            coasting, second_s = self._first()
            end_s = coasting.end_s
            if end_s > limit_s or end_s > first_end_s:
                break
            before_s = second_s if second_s < first_end_s else first_end_s
            if end_s == before_s != UNKNOWN:
                # What ends at one instant ends in the order in which it began: the executor knows how.
                self.end(coasting.instance)
                first_end_s = executor.first_end_s()
                continue
            ended = steps(coasting, end_s=limit_s, before_s=before_s)
            if coasting.stopped:
                instance = coasting.instance
                del under_way[instance.index]
                instance.coasting = False
                self._clock.now_s = coasting.now_s
                executor.jump(coasting.now_s)
                self._changed(instance)
                self._effects.decoded(instance, ended)
                return True
        self._end_at(limit_s)
        return False

    def first_end_s(self, limit_s: float | None) -> float | None:
        """The first end of a step of those under way, or ``limit_s`` (None: never) where that is earlier."""
        first_s = NEVER if limit_s is None else limit_s
        for coasting in self.under_way.values():
            first_s = min(first_s, coasting.end_s)
        return limit_s if limit_s is None and first_s == NEVER else first_s

    def _first(self) -> tuple[Coasting, float]:
        """Whose next step ends first, and when the first of the others' does."""
        coasting, second_s = None, NEVER
        for other in self.under_way.values():
            if coasting is None:
                coasting = other
            elif other.end_s < coasting.end_s:
                coasting, second_s = other, coasting.end_s
            elif other.end_s < second_s:
                second_s = other.end_s
        assert coasting is not None
        return coasting, second_s

    def _end_at(self, limit_s: float) -> None:
        """Those who are between two steps at the limit: what comes then, comes before the next step."""
        for coasting in [one for one in self.under_way.values() if one.now_s == limit_s]:
            del self.under_way[coasting.instance.index]
            coasting.instance.coasting = False
            self._changed(coasting.instance)
