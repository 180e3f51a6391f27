"""Two lanes on an instance, one for each phase: their names, and what the policies on them ask alike."""

from __future__ import annotations

from typing import Final

from policies.admission import Relief, relieve
from policies.api import RequestProgress, Step, View
from profiler.work import Work

PREFILL: Final = "prefill"
DECODE: Final = "decode"

new: Final = tuple.__new__
"""For what each decision makes: their own constructors take three times as long."""


def decode_step(sms: int, victims: tuple[RequestProgress, ...], again: bool = False) -> Step:
    """A step of all that decode."""
    return new(Step, (DECODE, sms, (), None, True, victims, None, again, None, False, False))


def room(view: View) -> Relief:
    """Whom to pre-empt for a decode step that may start now; for the one after a step in flight, nobody."""
    if view.lanes[DECODE].busy:
        return Relief((), len(view.decoding), view.free_blocks - view.decode_block_demand)
    return relieve(view)


def next_decode(view: View) -> Work:
    """The next step of all that are decoding; there is one or more."""
    decodes = len(view.decoding)
    return Work(decode_requests=decodes, decode_context_tokens=view.decode_context_tokens + decodes)


def whole_steps(view: View, sm_step: int | None) -> int:
    """SMs by which shares change: ``sm_step``, None for the device's granularity, and at most half of them."""
    return min(sm_step or view.latency.device.sm_granularity, view.sms // 2) or 1


def split_steps(view: View, sm_step: int | None) -> int:
    """:func:`whole_steps` of a policy that always splits. Raises ValueError for an instance that cannot be split."""
    if view.sms < 2:
        raise ValueError("an instance has 1 SM, and each phase needs one of its own; give it 2 or more")
    return whole_steps(view, sm_step)
