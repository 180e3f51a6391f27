"""Virtual time: steps as SimPy timeouts, re-rated whenever what runs beside them changes.

A step in flight has a share of its work left and a present duration, the latency model's estimate beside its present
co-runner. When a co-runner starts or ends, the share done so far is settled at the old pace and the rest goes on at
the new one: a new timeout is scheduled, and the old one is recognised as stale when it fires. This is processor
sharing when the model says that two halve each other's pace.

KV transfers use no SMs. Those that read from the same instance share its link equally.
"""

from __future__ import annotations

from collections import defaultdict, deque

import simpy
from simpy.events import Event, Timeout

from profiler.latency import Estimate, LatencyModel
from profiler.work import Work
from sim.launch import Completion, Launch

NEVER = float("inf")


class _Flight:
    """A launch in flight: at ``rated_s`` the share ``left`` of it remained, to run at ``duration_s`` for the whole.

    One that is delayed begins to run later, so ``rated_s`` may be still to come.

    ``peers`` are the launches that may slow each other: those on its instance's SMs, or on its source's link.
    """

    __slots__ = ("duration_s", "launch", "left", "peers", "rated_s", "timeout")

    def __init__(self, launch: Launch, peers: list[_Flight], now_s: float) -> None:
        self.launch = launch
        self.peers = peers
        self.left = 1.0
        self.duration_s = 0.0
        self.rated_s = now_s + launch.delay_s
        self.timeout: Event | None = None


class SimExecutor:
    """An executor whose clock jumps from event to event. ``latency`` is the truth that steps run by."""

    def __init__(self, *, latency: LatencyModel) -> None:
        self._latency = latency
        self._env = simpy.Environment()
        self._computing: defaultdict[int, list[_Flight]] = defaultdict(list)
        self._sending: defaultdict[int, list[_Flight]] = defaultdict(list)
        self._ended: deque[Completion] = deque()
        self._left_alone: list[_Flight] = []

    def now(self) -> float:
        return self._env.now

    def start(self, launch: Launch) -> None:
        source = launch.source
        peers = self._computing[launch.instance] if source is None else self._sending[source]
        flight = _Flight(launch, peers, self._env.now)
        peers.append(flight)
        for peer in peers[:-1]:
            self._rerate(peer)
        if source is None and launch.predictor is self._latency:
            flight.duration_s = launch.predicted.seconds
        else:
            flight.duration_s = self._duration_s(flight)
        self._schedule(flight)

    def next(self, until_s: float | None) -> Completion | None:
        env, ended = self._env, self._ended
        limit = NEVER if until_s is None else until_s
        if self._left_alone and not ended:
            self._settle()
        while not ended:
            due = env.peek()
            if due > limit or due == NEVER:
                if until_s is not None and until_s > env.now:
                    Timeout(env, until_s - env.now)
                    env.step()
                return None
            env.step()
        return ended.popleft()

    def alone(self, work: Work, sms: int, predicted: Estimate, predictor: LatencyModel, until_s: float) -> float | None:
        env = self._env
        known = predictor is self._latency
        seconds = predicted.seconds if known else self._latency.estimate(work, sms).seconds
        if env.now + seconds > until_s:
            return None
        timeout = Timeout(env, seconds)
        # Stale timeouts may still be due before it.
        while timeout.callbacks is not None:
            env.step()
        return env.now

    def _duration_s(self, flight: _Flight) -> float:
        launch, estimate = flight.launch, self._latency.estimate
        if launch.source is not None:
            return estimate(launch.work, 1).seconds * len(flight.peers)
        for peer in flight.peers:
            if peer is not flight:
                beside = peer.launch
                return estimate(launch.work, launch.step.sms, beside.work, beside.step.sms).seconds
        return estimate(launch.work, launch.step.sms).seconds

    def _rerate(self, flight: _Flight) -> None:
        duration_s = self._duration_s(flight)
        if duration_s == flight.duration_s:
            return
        now = self._env.now
        if now > flight.rated_s:
            flight.left -= (now - flight.rated_s) / flight.duration_s
            flight.rated_s = now
        flight.duration_s = duration_s
        self._schedule(flight)

    def _schedule(self, flight: _Flight) -> None:
        # Rounding may leave a step that is due at this instant a hair below nothing.
        delay_s = flight.rated_s - self._env.now
        timeout = Timeout(self._env, max(0.0, delay_s + flight.left * flight.duration_s), flight)
        timeout.callbacks.append(self._on_timeout)
        flight.timeout = timeout

    def _on_timeout(self, event: Event) -> None:
        flight = event.value
        assert isinstance(flight, _Flight)
        if event is not flight.timeout:
            return
        # A timeout refers to its flight: without this the two would wait for the garbage collector.
        flight.timeout = None
        peers = flight.peers
        peers.remove(flight)
        self._ended.append(Completion(flight.launch.launch_id, self._env.now))
        self._left_alone.extend(peers)

    def _settle(self) -> None:
        """Re-rates those whose co-runner has ended, once it is known whether another takes its place at that instant.

        One layer group after another is the rule, and mostly of the same shape: then nothing has changed.
        """
        for flight in self._left_alone:
            if flight.timeout is not None:
                self._rerate(flight)
        self._left_alone.clear()
