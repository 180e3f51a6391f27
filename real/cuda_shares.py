"""Which stream a lane's job runs on: one of the lane's shares of the SMs, or the whole device.

Shares come in pairs that one split of the device makes, a group of about the SMs asked for and the rest. Of two lanes
the second has the groups and the first the rests. At one split they have no SM in common; while one is at the next
split already they may, and how many depends on which SMs the driver takes for a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from profiler.measure.green import GreenContexts, Side
from profiler.measure.shares_cuda import disjoint_pairs


class Share(NamedTuple):
    """SMs that were granted, and a stream that runs on them."""

    sms: int
    stream: Any


class LaneShares(NamedTuple):
    """A lane's choice. ``parts``: no two of the same size; none where lanes share all SMs, or have a device alone."""

    whole: Share
    parts: tuple[Share, ...] = ()

    def nearest(self, sms: int) -> Share:
        """What a job that asks for ``sms`` SMs gets: the nearest size, the smaller of two.

        All SMs go only to who asks for all: a job that leaves some means them for the other lane.
        """
        if sms >= self.whole.sms or not self.parts:
            return self.whole
        return min(self.parts, key=lambda share: (abs(share.sms - sms), share.sms))

    @property
    def all(self) -> tuple[Share, ...]:
        return *self.parts, self.whole


class DeviceShares(NamedTuple):
    """Shares of the lanes of one device. ``kind`` says in words what they are; ``splits``: granted SMs of each pair."""

    lanes: tuple[LaneShares, ...]
    kind: str
    splits: tuple[tuple[int, int], ...]
    contexts: GreenContexts | None


def device_shares(runtime: Any, driver: Any, lanes: int, sizes: Sequence[int]) -> DeviceShares:
    """Shares for one or two ``lanes`` that use SMs; ``sizes``: what the second, or the only one, will ask for.

    Where the driver grants none, lanes are streams over all SMs, and the second's kernels come first.
    """
    whole = runtime.properties.multi_processor_count
    if not sizes:
        wholes = [LaneShares(Share(whole, runtime.stream())) for _ in range(lanes)]
        return DeviceShares(tuple(wholes), "whole device", (), None)
    contexts, pairs, kind = disjoint_pairs(driver, runtime, sizes)
    if contexts is not None:
        # Times are of all streams against one event, and a lane may go from a share to the whole device.
        try:
            runtime.probe(runtime.stream(pairs[0][0].stream), runtime.stream())
        except RuntimeError as error:
            contexts.close()
            contexts, pairs, kind = None, [], f"shared streams: {str(error).splitlines()[0]}"
    if contexts is None:
        streams = [runtime.stream(priority=-lane) for lane in range(lanes)]
        return DeviceShares(tuple(LaneShares(Share(whole, stream)) for stream in streams), kind, (), None)
    splits = tuple((group.sms, rest.sms) for group, rest in pairs)
    groups, rests = ([pair[side] for pair in pairs] for side in (0, 1))
    sides = [rests, groups] if lanes == 2 else [[*groups, *rests]]
    found = tuple(LaneShares(Share(whole, runtime.stream()), _parts(runtime, several)) for several in sides)
    return DeviceShares(found, kind, splits, contexts)


def _parts(runtime: Any, sides: Sequence[Side]) -> tuple[Share, ...]:
    known: dict[int, Share] = {}
    for side in sides:
        if side.sms not in known:
            known[side.sms] = Share(side.sms, runtime.stream(side.stream))
    return tuple(known.values())
