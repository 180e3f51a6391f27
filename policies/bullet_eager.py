"""Bullet that slows decode only for as long as prefill gains from it, and saves first tokens that can be saved: ours.

The paper gives decode the fewest SMs that hold its SLO. With a loose SLO and a short queue the prefill that this makes
room for ends long before the slow step does, and the rest of the GPU idles until then; and where KV or places run out
rather than SMs, slow decodes are what the queue waits for. Two limits, both derived from what the policy forecasts
anyway:

- a step lasts no longer than the prefill that it makes room for, all that waits included (``cap_at_drain``);
- while requests wait for KV or places, decode takes all SMs that it can use, since only its ending frees them
  (``hurry_for_kv``).

Decode pauses only when TTFTs are in danger, not for any queue. And the queue is put in the order that gets most first
tokens out in time (Moore and Hodgson, 1968), not shortest first: under load, short prompts that have time go behind
long ones that have none, and prompts that are late whatever happens go last (``on_time``). It is what the oracle gains
most by, and needs no knowledge that a server lacks. It takes small batches (``batch_fill``): whoever shares one waits
for all of it, and nobody can be put first within it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.bullet import Bullet


@dataclass(frozen=True, slots=True, kw_only=True)
class BulletEager(Bullet):
    """Settings are those of Bullet; these begin elsewhere."""

    name: ClassVar[str] = "bullet-eager"

    batch_fill: float = 0.2
    pause_on_queue: bool = False
    on_time: bool = True
    hurry_for_kv: bool = True
    cap_at_drain: bool = True
