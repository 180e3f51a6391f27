"""KV on its way from the instances that prefill to those that decode.

A request is offered to a decode instance when its prefill ends, or, where it streams, when the launch begins that ends
it: the KV of each layer can then leave while later ones are computed. What has arrived before the last layer is
computed is at most the layers before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from policies.api import Step
from sim.instance import Instance
from sim.state import RequestState


class Handover:
    """Between all instances of a cluster. ``route`` chooses a target; ``touch`` hears which is about to change."""

    def __init__(
        self,
        instances: Sequence[Instance],
        *,
        route: Callable[[RequestState], Instance],
        touch: Callable[[Instance], None],
    ) -> None:
        self._instances = instances
        self._route = route
        self._touch = touch
        self._streaming: dict[int, Instance] = {}

    def announce(self, step: Step, requests: Mapping[int, RequestState]) -> None:
        """A launch has begun: offers those of ``requests``, all that are here, whose prefill it ends."""
        for chunk in step.prefill:
            request = requests[chunk.request.index]
            if request.prefilled_tokens + chunk.tokens == request.prefill_tokens:
                self._streaming[request.index] = self._offer(request)

    def offer(self, request: RequestState) -> None:
        """The prefill of a request has ended: all of its KV can be fetched."""
        target = self._streaming.pop(request.index, None)
        if target is None:
            self._offer(request)
        else:
            self._touch(target)

    def withdraw(self, request: RequestState) -> bool:
        """A request has ended with its prefill; whether its KV can go, as nobody is reading it."""
        target = self._streaming.pop(request.index, None)
        if target is None:
            return True
        if request.index in target.arriving:
            return False
        self._touch(target)
        target.turn_down(request)
        return True

    def land(self, target: Instance, request: RequestState, layers: int | None) -> bool:
        """A fetch of so many layers (None: all) has ended; whether the KV is now the target's alone.

        The source's blocks are then free, and so are the target's where the request has ended meanwhile.
        """
        del target.arriving[request.index]
        request.fetched_layers += target.model_layers if layers is None else layers
        over = request.state == "finished"
        if request.fetched_layers < target.model_layers and not over:
            target.incoming[request.index] = request
            return False
        source = self._instances[request.instance]
        if over:
            target.turn_down(request)
        request.fetched_layers = 0
        self._touch(source)
        source.give_back(request)
        return True

    def check(self, source: Instance) -> list[RequestState]:
        """Requests whose KV is on ``source`` although their prefill there has ended."""
        away = [r for back in self._instances for r in (*back.incoming.values(), *back.arriving.values())]
        return [r for r in away if r.instance == source.index and r.index not in source.prefilling]

    def _offer(self, request: RequestState) -> Instance:
        target = self._route(request)
        self._touch(target)
        target.offer(request)
        return target
