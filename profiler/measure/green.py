"""Disjoint pairs of SM shares, by green contexts of the CUDA driver.

One split of the device's SMs into a group and the rest makes a pair that cannot overlap. torch's own green contexts
split the whole device anew each time, so that two of them do. The driver rounds a group up to what it can grant, so
granted counts are read back and never computed. The module of driver calls is handed in: cuda.bindings.driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple


class ShareError(Exception):
    """The driver does not grant shares; its message is one line."""


class Side(NamedTuple):
    """One share: its granted SMs and the address of a stream that runs on them alone."""

    sms: int
    stream: int


class GreenContexts:
    """Shares of one device. The streams live until :meth:`close`; never make one of the contexts current."""

    def __init__(self, driver: Any, ordinal: int) -> None:
        self.driver = driver
        self._call(driver.cuInit, 0)
        self.device = self._call(driver.cuDeviceGet, ordinal)
        self.kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        self.resource = self._call(driver.cuDeviceGetDevResource, self.device, self.kind)
        self.whole = int(self.resource.sm.smCount)
        self._open: list[tuple[Any, Any]] = []

    def split(self, sms: int) -> tuple[Side, Side]:
        """At least ``sms`` SMs, and the rest. Raises ShareError where the driver refuses or nothing is left."""
        groups, count, rest = self._call(self.driver.cuDevSmResourceSplitByCount, 1, self.resource, 0, sms)
        if count < 1 or int(rest.sm.smCount) < 1:
            raise ShareError(f"a share of {sms} of {self.whole} SMs leaves no other")
        return self._side(groups[0]), self._side(rest)

    def close(self) -> None:
        """Streams before their contexts: the other way round leaks them."""
        for context, stream in reversed(self._open):
            self.driver.cuStreamDestroy(stream)
            self.driver.cuGreenCtxDestroy(context)
        self._open.clear()

    def _side(self, resource: Any) -> Side:
        driver = self.driver
        descriptor = self._call(driver.cuDevResourceGenerateDesc, [resource], 1)
        flags = int(driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)
        context = self._call(driver.cuGreenCtxCreate, descriptor, self.device, flags)
        blocking = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        stream = self._call(driver.cuGreenCtxStreamCreate, context, blocking, 0)
        self._open.append((context, stream))
        granted = self._call(driver.cuGreenCtxGetDevResource, context, self.kind)
        return Side(int(granted.sm.smCount), int(stream))

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The value or values that follow a driver call's result code."""
        code, *values = function(*arguments)
        if int(code) != 0:
            _, name = self.driver.cuGetErrorName(code)
            text = name.decode() if isinstance(name, bytes) else str(name)
            raise ShareError(f"{getattr(function, '__name__', 'the driver')} answers {text}")
        return values[0] if len(values) == 1 else values


def asked(whole: int) -> list[int]:
    """Sizes to ask for: eighths of the device up to three quarters, in multiples of 8, which Hopper grants."""
    return list(dict.fromkeys(size for eighths in range(1, 7) if (size := round(whole * eighths / 64) * 8) > 0))


def misplaced(pairs: Iterable[tuple[Side, Side]], seen: Mapping[int, set[int]]) -> str | None:
    """What is wrong with where blocks ran, None if nothing is. ``seen``: SM numbers by stream."""
    for pair in pairs:
        for side in pair:
            if len(seen[side.stream]) > side.sms:
                return f"a share of {side.sms} SMs ran on {len(seen[side.stream])}"
        both = seen[pair[0].stream] & seen[pair[1].stream]
        if both:
            return f"shares of {pair[0].sms} and {pair[1].sms} SMs both ran on {len(both)}"
    return None
