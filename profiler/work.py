"""The shape of one launch: what a latency model needs to know of a step, and nothing about requests.

Work is built several times for every simulated step, so it is a named tuple: a frozen dataclass of as many
fields costs three times as much to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from profiler.specs import DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Kernels of one launch beside each other, where others run one after another.

    nano_batches: parts that each layer's kernels are cut into, so that those of one part run beside those of another
        which need something else of the device (NanoFlow).
    fused_attention: attention of prefilling and of decoding sequences in one kernel (POD-Attention).
    Raises ValueError unless it is one of the two: nobody has said what they come to together.
    """

    nano_batches: int = 1
    fused_attention: bool = False

    def __post_init__(self) -> None:
        if self.nano_batches < 1 or (self.nano_batches > 1) == self.fused_attention:
            raise ValueError(
                f"nano_batches is {self.nano_batches} and fused_attention {self.fused_attention}; give 2 or more "
                "nano-batches, or fused attention, not both"
            )


class Work(NamedTuple):
    """Token counts of one launch on one instance.

    prefill: (new_tokens, cached_tokens) of each sequence being prefilled; cached tokens are already in the KV.
    decode_requests: sequences that decode one token each.
    decode_context_tokens: KV tokens those sequences attend to, summed, the new tokens included.
    layers: transformer layers launched; None means the whole model, embedding to sampling.
    head: with ``layers`` given, whether the launch ends with the LM head and sampling.
    kv_transfer_tokens: tokens whose KV crosses the link, of ``layers`` layers; such work has nothing else in it.
    overlap: kernels that run beside each other; None for one after another, as ever.
    """

    prefill: tuple[tuple[int, int], ...] = ()
    decode_requests: int = 0
    decode_context_tokens: int = 0
    layers: int | None = None
    head: bool = True
    kv_transfer_tokens: int = 0
    overlap: Overlap | None = None

    @property
    def new_tokens(self) -> int:
        """Tokens that pass through the GEMMs: every prefill token and one per decoding sequence."""
        return sum(new for new, _ in self.prefill) + self.decode_requests


def bad_sms(name: str, value: int, device: DeviceSpec) -> ValueError:
    """The error for a number of SMs that the device has not."""
    return ValueError(f"{name} is {value}; {device.name} has SMs 1 to {device.sms}")


def bad_layers(work: Work, model_layers: int) -> ValueError:
    """The error for a number of layers that the model has not."""
    return ValueError(f"work.layers is {work.layers}; it must be 1 to {model_layers}, or None for the whole model")
