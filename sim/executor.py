"""Virtual time: steps as SimPy timeouts, re-rated whenever what runs beside them changes.

A step in flight has a share of its work left and a present duration, the latency model's estimate beside its present
co-runner. When a co-runner starts or ends, the share done so far is settled at the old pace and the rest goes on at
the new one: a new timeout is scheduled, and the old one is recognised as stale when it fires. This is processor
sharing when the model says that two halve each other's pace.

Instances that are parts of one device slow each other too (sim.neighbours).

KV transfers use no SMs. Those that read from the same instance share its link equally.

Of a few steps in flight the first to end is found by looking at them, which takes less time than scheduling them; only
while there are more does SimPy hear of them. Both ways give the same answers.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final

import simpy
from simpy.events import Event, Timeout

from profiler.latency import LatencyModel
from profiler.work import Work
from sim.launch import NEVER, Completion, Launch
from sim.neighbours import Neighbours

FEW: Final = 16
"""Steps in flight that are looked at rather than scheduled. SimPy takes delays, not times: among more of them, two that
end within the last digit of each other may end in the other order."""

new: Final = tuple.__new__


class _Flight:
    """A launch in flight: at ``rated_s`` the share ``left`` of it remained, to run at ``duration_s`` for the whole.

    One that is delayed begins to run later, so ``rated_s`` may be still to come. At this pace it ends at ``end_s``.

    ``peers`` are the launches that may slow each other: those on its instance's SMs, or its device's where instances
    share one, or on its source's link.
    ``alone_s`` and ``beside_s`` are its durations without and with the co-runner ``beside``, once estimated.
    ``set_s`` is when its end was last set, which is the order of those that end at one instant.
    """

    __slots__ = (
        "alone_s",
        "beside",
        "beside_s",
        "beside_sms",
        "duration_s",
        "end_s",
        "launch",
        "left",
        "peers",
        "rated_s",
        "set_s",
        "timeout",
    )

    def __init__(self, launch: Launch, peers: list[_Flight]) -> None:
        self.launch = launch
        self.peers = peers
        self.left = 1.0
        self.duration_s = 0.0
        self.rated_s = launch.start_s + launch.delay_s
        self.end_s = NEVER
        self.set_s = NEVER
        self.alone_s: float | None = None
        self.beside: Work | None = None
        self.beside_sms = 0
        self.beside_s = 0.0
        self.timeout: Event | None = None


class SimExecutor:
    """An executor whose clock jumps from event to event. ``latency`` is the truth that steps run by.

    ``neighbours``: given where all instances are parts of one device.
    The clock is kept here: it may stand anywhere between two of SimPy's events. ``_unscheduled`` are the flights of
    which SimPy has not heard, in the order in which they would have been scheduled.
    """

    def __init__(self, *, latency: LatencyModel, neighbours: Neighbours | None = None) -> None:
        self._latency = latency
        self._neighbours = neighbours
        self._env = simpy.Environment()
        self._now_s = 0.0
        self._flying = 0
        self._newest = (0.0, -1)
        self._unscheduled: dict[_Flight, None] = {}
        self._computing: defaultdict[int, list[_Flight]] = defaultdict(list)
        self._sending: defaultdict[int, list[_Flight]] = defaultdict(list)
        self._ended: deque[Completion] = deque()
        self._left_alone: list[_Flight] = []

    def now(self) -> float:
        return self._now_s

    def start(self, launch: Launch) -> None:
        source = launch.source
        device = launch.instance if self._neighbours is None else 0
        peers = self._computing[device] if source is None else self._sending[source]
        flight = _Flight(launch, peers)
        peers.append(flight)
        for peer in peers[:-1]:
            self._rerate(peer)
        known = launch.predictor is self._latency and self._neighbours is None
        if known:
            flight.duration_s = seconds = launch.predicted.seconds
            if launch.beside is None:
                flight.alone_s = seconds
            else:
                flight.beside, flight.beside_sms, flight.beside_s = launch.beside, launch.beside_sms, seconds
        if source is not None or not known:
            flight.duration_s = self._duration_s(flight)
        self._flying += 1
        self._set_end(flight, launch.start_s)
        place = (launch.start_s, launch.launch_id)
        if launch.start_s < self._now_s or place < self._newest:
            self._put_in_order(flight)
        self._newest = max(place, self._newest)

    def next(self, until_s: float | None) -> Completion | None:
        ended, limit = self._ended, NEVER if until_s is None else until_s
        if self._left_alone and not ended:
            self._settle()
        if not ended and self._flying:
            unscheduled = self._unscheduled
            if self._flying == len(unscheduled) <= FEW:
                first = self._first()
                if first.end_s <= limit:
                    del unscheduled[first]
                    self._end(first)
            else:
                self._step(limit)
        if ended:
            return ended.popleft()
        if until_s is not None and until_s > self._now_s:
            self._now_s = until_s
        return None

    @property
    def independent(self) -> bool:
        return self._neighbours is None

    @property
    def truth(self) -> LatencyModel:
        return self._latency

    def first_end_s(self) -> float:
        if not self._flying:
            return NEVER
        if self._left_alone:
            self._settle()
        known_s = self._env.peek() if len(self._unscheduled) < self._flying else NEVER
        return min(known_s, self._first().end_s) if self._unscheduled else known_s

    def jump(self, to_s: float) -> None:
        self._now_s = to_s

    def _first(self) -> _Flight:
        """The first to end of those unscheduled; of several at one instant, the first that would be scheduled."""
        first = None
        for flight in self._unscheduled:
            if first is None or flight.end_s < first.end_s:
                first = flight
        assert first is not None
        return first

    def _step(self, limit_s: float) -> None:
        """Lets SimPy go on until a flight has ended, or until the limit."""
        env = self._env
        for flight in self._unscheduled:
            timeout = Timeout(env, max(0.0, flight.end_s - env.now), flight)
            timeout.callbacks.append(self._on_timeout)
            flight.timeout = timeout
        self._unscheduled.clear()
        while not self._ended and env.peek() <= limit_s:
            env.step()

    def _duration_s(self, flight: _Flight) -> float:
        launch = flight.launch
        if launch.source is not None:
            if flight.alone_s is None:
                flight.alone_s = self._latency.estimate(launch.work, 1).seconds
            return flight.alone_s * len(flight.peers)
        if self._neighbours is not None:
            return self._among_neighbours_s(flight, self._neighbours)
        for peer in flight.peers:
            if peer is not flight:
                return self._beside_s(flight, peer.launch)
        return self._alone_s(flight)

    def _among_neighbours_s(self, flight: _Flight, neighbours: Neighbours) -> float:
        launch = flight.launch
        beside = [peer.launch for peer in flight.peers if peer is not flight]
        own = next((other for other in beside if other.instance == launch.instance), None)
        here_s = self._alone_s(flight) if own is None else self._beside_s(flight, own)
        return here_s + neighbours.loss_s(launch, [other for other in beside if other.instance != launch.instance])

    def _alone_s(self, flight: _Flight) -> float:
        if flight.alone_s is None:
            flight.alone_s = self._latency.estimate(flight.launch.work, flight.launch.step.sms).seconds
        return flight.alone_s

    def _beside_s(self, flight: _Flight, other: Launch) -> float:
        """One layer group after another is the rule, and mostly of the same shape: then nothing is estimated anew."""
        work, sms = other.work, other.step.sms
        if flight.beside is None or flight.beside_sms != sms or flight.beside != work:
            launch = flight.launch
            flight.beside, flight.beside_sms = work, sms
            flight.beside_s = self._latency.estimate(launch.work, launch.step.sms, work, sms).seconds
        return flight.beside_s

    def _rerate(self, flight: _Flight) -> None:
        duration_s = self._duration_s(flight)
        if duration_s == flight.duration_s:
            return
        now = self._now_s
        if now > flight.rated_s:
            flight.left -= (now - flight.rated_s) / flight.duration_s
            flight.rated_s = now
        flight.duration_s = duration_s
        self._set_end(flight, now)

    def _set_end(self, flight: _Flight, now: float) -> None:
        # Rounding may leave a step that is due at this instant a hair below nothing.
        flight.end_s = now + max(0.0, flight.rated_s - now + flight.left * flight.duration_s)
        flight.set_s = now
        flight.timeout = None
        unscheduled = self._unscheduled
        unscheduled.pop(flight, None)
        unscheduled[flight] = None

    def _put_in_order(self, late: _Flight) -> None:
        """Moves one that has begun earlier than it was told to before those that have begun or changed since."""
        unscheduled, place = self._unscheduled, (late.set_s, late.launch.launch_id)
        flights = list(unscheduled)
        if len(flights) < self._flying:
            # SimPy has heard of some: it is to forget them, and hear of them again after this one.
            flights = [one for peers in (*self._computing.values(), *self._sending.values()) for one in peers]
            flights.sort(key=lambda flight: (flight.set_s, flight.launch.launch_id))
        for flight in flights:
            if (flight.set_s, flight.launch.launch_id) > place:
                unscheduled.pop(flight, None)
                unscheduled[flight] = flight.timeout = None

    def _on_timeout(self, event: Event) -> None:
        flight = event.value
        assert isinstance(flight, _Flight)
        if event is flight.timeout:
            self._end(flight)

    def _end(self, flight: _Flight) -> None:
        # A timeout refers to its flight: without this the two would wait for the garbage collector.
        flight.timeout = None
        flight.left = 0.0
        self._now_s = flight.end_s
        self._flying -= 1
        peers = flight.peers
        peers.remove(flight)
        self._ended.append(new(Completion, (flight.launch.launch_id, flight.end_s)))
        if peers:
            self._left_alone.extend(peers)

    def _settle(self) -> None:
        """Re-rates those whose co-runner has ended, once an instant is over or another launch takes its place."""
        for flight in self._left_alone:
            if flight.left:
                self._rerate(flight)
        self._left_alone.clear()
