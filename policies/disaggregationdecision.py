"""What disaggregation does at an instant: a batch of prompts, a decode step, or the fetch of a request's KV.

Functions of a policy's settings and a view, so that they can be compiled where the policy itself is a dataclass.
"""

from __future__ import annotations

from typing import Final, Protocol

from policies.admission import blocks_for, fill, relieve
from policies.api import LINK, Decision, RequestProgress, Step, View
from policies.phases import DECODE, PREFILL, decode_step

new: Final = tuple.__new__


class Settings(Protocol):
    """Those of policies.disaggregation.Disaggregation."""

    @property
    def batch_tokens(self) -> int: ...
    @property
    def max_resident(self) -> int: ...
    @property
    def layerwise(self) -> bool: ...


def decide(settings: Settings, view: View) -> Decision:
    """See :meth:`policies.api.Policy.decide`."""
    if view.role == "prefill":
        steps: tuple[Step, ...] = _prefill(settings, view) if view.waiting else ()
    else:
        lanes = view.lanes
        steps = _decode(view) if view.decoding and not lanes[DECODE].busy else ()
        if view.incoming and not lanes[LINK].busy:
            steps = (*steps, *_fetch(settings, view))
    # Its own constructor, and a Step's, take three times as long, and most of a run's decisions are made here.
    return new(Decision, (steps, None))


def _prefill(settings: Settings, view: View) -> tuple[Step, ...]:
    chunks = fill(
        view,
        budget_tokens=settings.batch_tokens,
        free_blocks=view.free_blocks,
        max_resident=settings.max_resident,
        whole_prompts=True,
    )
    step = (PREFILL, view.sms, chunks, None, False, (), None, False, None, False, settings.layerwise)
    return (new(Step, step),) if chunks else ()


def _decode(view: View) -> tuple[Step, ...]:
    relief = relieve(view)
    if not relief.decodes:
        return ()
    return (decode_step(view.sms, relief.victims, not view.incoming),)


def _fetch(settings: Settings, view: View) -> tuple[Step, ...]:
    incoming = view.incoming.values()
    streaming = [request for request in incoming if request.fetched_layers] if settings.layerwise else []
    for request in streaming:
        if _prefilled(request):
            return (_transfer(request),)
    waiting = next((request for request in incoming if not request.fetched_layers), None)
    if waiting is None or len(view.decoding) + len(streaming) >= settings.max_resident:
        return ()
    layers = None if _prefilled(waiting) else view.latency.model.layers - 1
    needed = blocks_for(waiting.prefill_tokens, view.block_tokens)
    if layers == 0 or needed + view.decode_block_demand > view.free_blocks:
        return ()
    return (_transfer(waiting, layers),)


def _transfer(request: RequestProgress, layers: int | None = None) -> Step:
    return new(Step, (LINK, 0, (), layers, False, (), request, False, None, False, False))


def _prefilled(request: RequestProgress) -> bool:
    return request.prefilled_tokens == request.prefill_tokens
