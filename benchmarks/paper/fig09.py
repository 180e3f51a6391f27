"""Figure 9: decode latency by SMs, of a formula that two measured samples calibrate, Llama-3.1-8B on an A100.

    python -m benchmarks.paper.fig09 [--out out/paper]

The formula is the paper's: SM-scaling roofline at the peaks of the specification, without waves, times an alpha that is
linear in SMs through two samples. What it is held against: the slowdown curves of a published predictor
(sm_scaling_derived.csv, where it is at hand: shapes alone, of a shard), and our fitted A100, whose dependence on SMs
was assumed after the same curves. Alpha is of whole launches of that fitted model, prefill and decode, without host
time; its mean depends on which launches are counted, and the paper does not say which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from matplotlib.figure import Figure

from benchmarks.data import FOLDER
from benchmarks.paper.command import finish, options
from benchmarks.paper.numbers import Number
from benchmarks.paper_kernels import decode, derived_decode_curves
from profiler import Work, device, roofline
from profiler.devicecalibration import built_in
from profiler.fittedmodel import fitted
from profiler.kernelsum import KernelSumModel
from profiler.presets import model
from profiler.roofline import Efficiencies
from sim.plots.style import BLUE, ORANGE, figure, legend_above, styled

SAMPLED = (16, 108)
"""SMs of the two samples."""

SMS = (8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 108)
BATCHES, CONTEXTS = (8, 32, 64, 128, 256), (512, 1024, 2048, 4096)
PROMPTS = (256, 512, 1024, 2048, 4096, 8192, 16384)
DRAWN = ((16, 1024), (64, 1024), (64, 1920))
"""Batch and context of the published curves."""


@cache
def ideal() -> KernelSumModel:
    """T': peaks, no waves, no host."""
    spec = replace(device("A100-80G"), tiled=False)
    return replace(
        roofline("Llama-3.1-8B", spec, efficiencies=Efficiencies(gemm=1, attention=1, bandwidth=1)),
        pass_overhead_s=0,
        launch_overhead_s=0,
    )


@cache
def measured() -> KernelSumModel:
    """Kernel times fitted to measurements of the whole GPU."""
    calibration = built_in("A100-80G")
    assert calibration is not None
    return fitted(model("Llama-3.1-8B"), calibration, 1)


def calibrated(work: Work, samples: dict[int, float]) -> Callable[[int], float]:
    """Seconds by SMs: T' times an alpha linear through the samples (seconds by SMs)."""
    base = {sms: ideal().estimate(work, sms).seconds for sms in samples}
    slope, level = np.polyfit(list(samples), [samples[sms] / base[sms] for sms in samples], 1)
    return lambda sms: float((slope * sms + level) * ideal().estimate(work, sms).seconds)


def alphas(works: Sequence[Work]) -> list[float]:
    """Measured over T' of every launch on every share."""
    return [measured().device_seconds(work, sms) / ideal().estimate(work, sms).seconds for work in works for sms in SMS]


def errors(work: Work, curve: dict[int, float]) -> list[float]:
    """|predicted / told - 1| where no sample is."""
    predict = calibrated(work, {sms: curve[sms] for sms in SAMPLED})
    return [abs(predict(sms) / told - 1) for sms, told in curve.items() if sms not in SAMPLED]


def published() -> Iterator[tuple[Work, dict[int, float]]]:
    """Slowdowns of the shared file by SMs, if it is there."""
    if not (FOLDER.parent / "profiles" / "sm_scaling_derived.csv").exists():
        return
    curves: dict[str, dict[int, float]] = {}
    for shape, sms, slowdown in derived_decode_curves(FOLDER.parent):
        curves.setdefault(shape, {})[sms] = slowdown
    for shape, curve in curves.items():
        batch, context = (int(part.partition("=")[2]) for part in shape.split())
        yield Work(decode_requests=batch, decode_context_tokens=context), curve


def our_curve(work: Work) -> dict[int, float]:
    """Seconds of the fitted model by SMs."""
    return {sms: measured().device_seconds(work, sms) for sms in SMS}


def numbers() -> list[Number]:
    """Mean alpha, and how far two samples carry."""
    decodes = [decode(batch, context) for batch in BATCHES for context in CONTEXTS]
    prefills = [Work(prefill=((tokens, 0),)) for tokens in PROMPTS]
    ours = float(np.mean([error for work in decodes for error in errors(work, our_curve(work))]))
    found = [
        Number(
            figure="9",
            key="fig09.alpha",
            what="mean alpha, decode and prefill alike",
            paper=1.61,
            ours=float(np.mean([*alphas(decodes), *alphas(prefills)])),
            unit="",
        ),
        Number(figure="9", key="fig09.alpha_decode", what="mean alpha of decode", ours=float(np.mean(alphas(decodes)))),
        Number(
            figure="9", key="fig09.alpha_prefill", what="mean alpha of prefill", ours=float(np.mean(alphas(prefills)))
        ),
        Number(
            figure="9",
            key="fig09.error_fitted",
            what="mean error with two samples, our fitted A100",
            ours=100 * ours,
            unit=" %",
        ),
    ]
    theirs = [error for work, curve in published() for error in errors(work, curve)]
    if theirs:
        found.append(
            Number(
                figure="9",
                key="fig09.error_published",
                what="mean error with two samples, published curves",
                ours=100 * float(np.mean(theirs)),
                unit=" %",
            )
        )
    return found


def draw() -> Figure:
    """Lines are calibrated by the two samples, marks what they are held against."""
    with styled():
        drawing = figure(7.2, 2.6)
        left, right = drawing.subplots(1, 2)
        for (batch, context), shade in zip(DRAWN, (0.4, 0.7, 1.0), strict=True):
            work = decode(batch, context)
            curve = our_curve(work)
            predict = calibrated(work, {sms: curve[sms] for sms in SAMPLED})
            label = f"batch {batch}, context {context}"
            left.plot(list(curve), [1e3 * one for one in curve.values()], "o", color=BLUE, alpha=shade, label=label)
            left.plot(SMS, [1e3 * predict(sms) for sms in SMS], color=BLUE, alpha=shade)
        for (work, curve), shade in zip(published(), (0.4, 0.7, 1.0), strict=False):
            predict = calibrated(work, {sms: curve[sms] for sms in SAMPLED})
            right.plot(list(curve), list(curve.values()), "s", color=ORANGE, alpha=shade)
            right.plot(list(curve), [predict(sms) for sms in curve], color=ORANGE, alpha=shade)
        left.set_title("our fitted A100")
        left.set_ylabel("decode step (ms)")
        right.set_title("published curves")
        right.set_ylabel("slowdown")
        for panel in (left, right):
            panel.set_xlabel("SMs")
            panel.set_ylim(bottom=0)
        legend_above(drawing, left)
    return drawing


def main() -> None:
    """See the module."""
    rows = []
    for batch, context in DRAWN:
        work = decode(batch, context)
        curve = our_curve(work)
        predict = calibrated(work, {sms: curve[sms] for sms in SAMPLED})
        rows += [(batch, context, sms, told, predict(sms)) for sms, told in curve.items()]
    finish("fig09", options(__doc__), draw(), ("batch", "context", "sms", "fitted_s", "calibrated_s"), rows, numbers())


if __name__ == "__main__":
    main()
