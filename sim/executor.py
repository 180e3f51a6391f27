"""Virtual time: steps as SimPy timeouts, re-rated whenever what runs beside them changes.

A step in flight has a share of its work left and a present duration, the latency model's estimate beside its present
co-runner. When a co-runner starts or ends, the share done so far is settled at the old pace and the rest goes on at
the new one: a new timeout is scheduled, and the old one is recognised as stale when it fires. This is processor
sharing when the model says that two halve each other's pace.

KV transfers use no SMs. Those that read from the same instance share its link equally.
"""

from __future__ import annotations

from collections import deque

import simpy
from simpy.events import Event

from profiler.latency import LatencyModel
from sim.launch import Completion, Launch


class _Flight:
    """A launch in flight: at ``rated_s`` the share ``left`` of it remained, to run at ``duration_s`` for the whole."""

    __slots__ = ("duration_s", "launch", "left", "rated_s", "timeout")

    def __init__(self, launch: Launch, duration_s: float, now_s: float) -> None:
        self.launch = launch
        self.left = 1.0
        self.duration_s = duration_s
        self.rated_s = now_s
        self.timeout: Event | None = None


class SimExecutor:
    """An executor whose clock jumps from event to event. ``latency`` is the truth that steps run by."""

    def __init__(self, *, latency: LatencyModel) -> None:
        self._latency = latency
        self._env = simpy.Environment()
        self._running: dict[tuple[str, int], list[_Flight]] = {}
        self._ended: deque[Completion] = deque()

    def now(self) -> float:
        return self._env.now

    def start(self, launch: Launch) -> None:
        group = self._group(launch)
        peers = self._running.setdefault(group, [])
        flight = _Flight(launch, 0.0, self._env.now)
        peers.append(flight)
        if len(peers) > 1:
            for peer in peers[:-1]:
                self._rerate(peer, peers)
        if launch.source is None and launch.predictor is self._latency:
            flight.duration_s = launch.predicted.seconds
        else:
            flight.duration_s = self._duration_s(flight, peers)
        self._schedule(flight)

    def next(self, until_s: float | None) -> Completion | None:
        env, ended = self._env, self._ended
        limit = float("inf") if until_s is None else until_s
        while not ended:
            due = env.peek()
            if due > limit or due == float("inf"):
                if until_s is not None and until_s > env.now:
                    env.run(until=until_s)
                return None
            env.step()
        return ended.popleft()

    @staticmethod
    def _group(launch: Launch) -> tuple[str, int]:
        return ("sms", launch.instance) if launch.source is None else ("link", launch.source)

    def _duration_s(self, flight: _Flight, peers: list[_Flight]) -> float:
        launch = flight.launch
        if launch.source is not None:
            return self._latency.estimate(launch.work, 1).seconds * len(peers)
        for peer in peers:
            if peer is not flight:
                beside = peer.launch
                return self._latency.estimate(launch.work, launch.step.sms, beside.work, beside.step.sms).seconds
        return self._latency.estimate(launch.work, launch.step.sms).seconds

    def _rerate(self, flight: _Flight, peers: list[_Flight]) -> None:
        duration_s = self._duration_s(flight, peers)
        if duration_s == flight.duration_s:
            return
        now = self._env.now
        flight.left -= (now - flight.rated_s) / flight.duration_s
        flight.rated_s = now
        flight.duration_s = duration_s
        self._schedule(flight)

    def _schedule(self, flight: _Flight) -> None:
        # Rounding may leave a step due at this instant a hair below nothing.
        delay = max(0.0, flight.left * flight.duration_s)
        timeout = self._env.timeout(delay, flight)
        timeout.callbacks = [self._on_timeout]
        flight.timeout = timeout

    def _on_timeout(self, event: Event) -> None:
        flight = event.value
        assert isinstance(flight, _Flight)
        if event is not flight.timeout:
            return
        launch = flight.launch
        peers = self._running[self._group(launch)]
        peers.remove(flight)
        self._ended.append(Completion(launch.launch_id, self._env.now))
        for peer in peers:
            self._rerate(peer, peers)
