"""Which SMs a stream's blocks run on. Imports triton; without it shares go unchecked."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]

BLOCKS_PER_SM = 64


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _record(out, turns, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    # Blocks take a while, so that no SM runs all of them before the others have begun.
    lanes = tl.arange(0, WIDTH)
    total = tl.zeros((WIDTH,), tl.float32)
    for turn in range(turns):
        total = tl.sin(total + turn)
    smid = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r,r", [lanes], dtype=tl.int32, is_pure=False, pack=1)
    value = tl.max(tl.where(total < 2.0, smid, -1), 0)
    tl.store(out + tl.program_id(0), value)


def sms_of(stream: torch.cuda.Stream, whole: int) -> set[int]:
    """SM numbers that blocks on the stream were seen on."""
    blocks = whole * BLOCKS_PER_SM
    out = torch.full((blocks,), -1, dtype=torch.int32, device=stream.device)
    torch.cuda.synchronize(stream.device)
    with torch.cuda.stream(stream):
        _record[(blocks,)](out, 2000, WIDTH=32)
    stream.synchronize()
    return set(out.tolist()) - {-1}
