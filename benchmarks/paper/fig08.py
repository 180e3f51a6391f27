"""Figure 8: DRAM bandwidth that a copy draws by its SMs, and the roofline that follows, on A100 and H20.

    python -m benchmarks.paper.fig08 [--out out/paper]

No copy was measured here: N_d of the A100 is the paper's, which the roofline takes as given, and that of the H20 is
scaled from it (see `bulletsim devices --json`). What our fitted A100 draws is beside it: a curve without a sharp knee,
which makes decode depend on SMs as in a published predictor (docs/latency.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from benchmarks.paper.command import finish, options
from benchmarks.paper.numbers import Number
from profiler import device
from profiler.devicecalibration import built_in
from profiler.kerneltime import sharp_bandwidth
from profiler.specs import DeviceSpec
from sim.plots.style import BLUE, GREEN, GREY, ORANGE, figure, styled

DEVICES = ("A100-80G", "H20")
SHARES = (0.1, 0.25, 0.5, 1.0)
SATURATED = 0.999


def fitted_curve(spec: DeviceSpec) -> Sequence[float] | None:
    """Bytes/s by SMs of the model fitted to a device, where there is one."""
    model = built_in(spec.name)
    return None if model is None else model.bandwidth.curve(model.device)


def knee(curve: Sequence[float]) -> int:
    """The fewest SMs that draw all of the bandwidth."""
    return next(sms for sms, drawn in enumerate(curve) if drawn >= SATURATED * max(curve))


def numbers() -> list[Number]:
    """The one number of the text, and the other knees."""
    a100, h20 = (device(name) for name in DEVICES)
    found = [
        Number(
            figure="8",
            key="fig08.a100",
            what="N_d of the A100's roofline",
            paper=30,
            ours=knee(sharp_bandwidth(a100)),
            unit=" SMs",
        ),
        Number(
            figure="8", key="fig08.h20", what="N_d of the H20's roofline", ours=knee(sharp_bandwidth(h20)), unit=" SMs"
        ),
    ]
    fitted = fitted_curve(a100)
    if fitted is not None:
        drawn = 100 * float(fitted[30]) / max(fitted)
        what = "bandwidth that 30 SMs draw of our fitted A100, of all SMs'"
        found.append(Number(figure="8", key="fig08.fitted", what=what, paper=100, ours=drawn, unit=" %"))
    return found


def draw() -> Figure:
    """Bandwidth by SMs, and FLOP/s by arithmetic intensity for some SM shares."""
    with styled():
        drawing = figure(7.2, 4.4)
        panels = drawing.subplots(len(DEVICES), 2)
        for (left, right), name in zip(panels, DEVICES, strict=True):
            spec = device(name)
            curve, fitted = np.array(sharp_bandwidth(spec)), fitted_curve(spec)
            left.plot(curve / 1e12, color=BLUE, label="roofline")
            if fitted is not None:
                left.plot(np.array(fitted) / 1e12, color=ORANGE, label="fitted model")
            left.axvline(spec.bandwidth_knee_sms, color=GREY, ls=":", lw=0.8)
            left.set_title(name)
            left.set_xlabel("SMs")
            left.set_ylabel("DRAM bandwidth (TB/s)")
            left.legend()
            intensity = np.geomspace(1, 1000, 100)
            for share, shade in zip(SHARES, (0.3, 0.5, 0.75, 1.0), strict=True):
                sms = round(share * spec.sms)
                attained = np.minimum(intensity * curve[sms], spec.bf16_flops * sms / spec.sms)
                right.loglog(intensity, attained / 1e12, color=GREEN, alpha=shade, label=f"{sms} SMs")
            right.set_xlabel("FLOPs a byte")
            right.set_ylabel("TFLOP/s")
            right.legend()
    return drawing


def main() -> None:
    """See the module."""
    rows = []
    for name in DEVICES:
        spec = device(name)
        fitted = fitted_curve(spec)
        for sms, drawn in enumerate(sharp_bandwidth(spec)):
            rows.append((name, sms, drawn, "" if fitted is None else float(fitted[sms])))
    finish(
        "fig08",
        options(__doc__),
        draw(),
        ("device", "sms", "roofline_bytes_per_s", "fitted_bytes_per_s"),
        rows,
        numbers(),
    )


if __name__ == "__main__":
    main()
