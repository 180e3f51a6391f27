"""One decode step after another, of any latency model."""

from __future__ import annotations

from profiler.latency import LatencyModel, Pace, Paced, Source
from profiler.work import Overlap, Work


class Pacer:
    """What a :class:`Paced` latency model answers, of any latency model, overlapping kernels included."""

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency
        self._paced = latency if isinstance(latency, Paced) else None

    def decode_pace(self, requests: int, sms: int, overlap: Overlap | None = None) -> Pace:
        """The pace of so many requests' steps alone on ``sms`` SMs."""
        if overlap is None and self._paced is not None:
            return self._paced.decode_pace(requests, sms)
        estimate = self._latency.estimate

        def pace(contexts: range) -> tuple[list[float], list[Source]]:
            found = [estimate(Work((), requests, context, None, True, 0, overlap), sms) for context in contexts]
            return [seconds for seconds, _ in found], [source for _, source in found]

        return pace
