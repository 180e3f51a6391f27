"""Instances that are parts of one device: what they lose to each other, who share its DRAM."""

from __future__ import annotations

from collections.abc import Sequence

from profiler.latency import LatencyModel
from profiler.work import Work
from sim.launch import Launch


class Neighbours:
    """``whole`` is a latency model of the device that they are parts of.

    On SMs of their own they slow each other as two lanes of one instance on disjoint SMs do. Several are taken as one
    launch on the SMs of them all.
    """

    def __init__(self, whole: LatencyModel) -> None:
        self._whole = whole
        self._alone_s: dict[tuple[Work, int], float] = {}

    def loss_s(self, launch: Launch, others: Sequence[Launch]) -> float:
        """Seconds that ``launch`` takes longer beside ``others``, of other instances, than without them."""
        if not others:
            return 0.0
        work, sms = launch.work, launch.step.sms
        beside = others[0].work if len(others) == 1 else joined([other.work for other in others])
        most = self._whole.device.sms - sms
        beside_sms = min(sum(other.step.sms for other in others), most)
        alone_s = self._alone_s.get((work, sms))
        if alone_s is None:
            alone_s = self._alone_s[work, sms] = self._whole.estimate(work, sms).seconds
        return self._whole.estimate(work, sms, beside, beside_sms).seconds - alone_s


def joined(works: Sequence[Work]) -> Work:
    """All of them as one launch of whole passes: what decides is what they draw of the DRAM, a second."""
    return Work(
        tuple(chunk for work in works for chunk in work.prefill),
        sum(work.decode_requests for work in works),
        sum(work.decode_context_tokens for work in works),
    )
