"""Figure 11: error of the performance estimator by number and range of samples, on 7,360 co-running states.

    python -m benchmarks.paper.fig11 [--out out/paper]

Nobody has published co-runs on an A100, so what stands for the truth is our own fitted A100 with its contention, and
the spread that the paper measured on top (95 % of repeats within 6.8 % of their mean, 30 repeats a state). So only the
order of the estimators can be compared, and it favours those that know the same physics. Three estimate a decode step
beside a prefill:

- SRM: the paper's roofline with the bandwidth that is attainable beside the prefill, times alpha, interpolated (and
  extrapolated linearly) over the logarithms of the state;
- contention ignored: the same without the prefill in it, its alpha fitted to decode steps that ran alone;
- linear regression from the state to seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.interpolate import RBFInterpolator

from benchmarks.paper.command import finish, options
from benchmarks.paper.fig09 import ideal, measured
from benchmarks.paper.numbers import Number
from profiler import Work
from sim.plots.style import BLUE, ORANGE, VERMILION, PlainLog, figure, legend_above, styled

Floats = NDArray[np.float64]

SPREAD = 0.068 / 1.96
"""Standard deviation of one repeat, as a share of the mean."""

REPEATS = 30
PROMPTS = (512, 1024, 2048, 3072, 4096, 6144, 8192, 16384)
SPLITS = tuple(range(10, 102, 4))
BATCHES = (4, 8, 16, 32, 64, 96, 128, 192)
CONTEXTS = (256, 512, 1024, 2048, 4096)
SAMPLES = (16, 32, 64, 128, 256, 512)
CLEARLY = 1.1
"""How many times another's error counts as clearly worse."""

COLOURS = {"SRM": VERMILION, "contention ignored": BLUE, "linear regression": ORANGE}
RANGES = ("whole range", "smaller half")

Estimator = Callable[[NDArray[np.intp]], Floats]
"""From the states that were sampled to seconds of all of them."""


class States:
    """All states in columns (prompt, prefill SMs, batch, context, decode SMs), and their seconds by model.

    truth, alone: means of repeats, beside the prefill and without it. base, base_alone: the formula's.
    """

    def __init__(self, seed: int = 0, every: int = 1) -> None:
        total = measured().device.sms
        grid = list(product(PROMPTS, SPLITS, BATCHES, CONTEXTS))[::every]
        self.columns = np.array([(p, n, b, c, total - n) for p, n, b, c in grid], np.float64)
        rows = []
        for prompt, sms, batch, context in grid:
            prefill = Work(prefill=((prompt, 0),))
            step = Work(decode_requests=batch, decode_context_tokens=batch * context)
            left = total - sms
            host = measured().host_seconds(step)
            rows.append(
                (
                    measured().estimate(step, left, prefill, sms).seconds - host,
                    measured().estimate(step, left).seconds - host,
                    ideal().estimate(step, left, prefill, sms).seconds,
                    ideal().estimate(step, left).seconds,
                )
            )
        self.truth, self.alone, self.base, self.base_alone = np.array(rows).T
        noise = np.random.default_rng(seed).normal(1, SPREAD / np.sqrt(REPEATS), (2, len(grid)))
        self.seen, self.seen_alone = self.truth * noise[0], self.alone * noise[1]

    def estimators(self) -> dict[str, Estimator]:
        """Each of the three."""
        return {
            "SRM": lambda sampled: self.base * self._alpha(sampled, self.seen / self.base),
            "contention ignored": lambda sampled: (
                self.base_alone * self._alpha(sampled, self.seen_alone / self.base_alone)
            ),
            "linear regression": self._regression,
        }

    def _alpha(self, sampled: NDArray[np.intp], alphas: Floats) -> Floats:
        """Through the samples, linear beyond them; the decode SMs follow from the prefill's."""
        table = np.log(self.columns[:, :4])
        surface = RBFInterpolator(table[sampled], alphas[sampled], kernel="linear", degree=1)
        return np.asarray(surface(table))

    def _regression(self, sampled: NDArray[np.intp]) -> Floats:
        table = np.column_stack((np.ones(len(self.columns)), self.columns[:, :4]))
        weights, *_ = np.linalg.lstsq(table[sampled], self.seen[sampled], rcond=None)
        return np.asarray(table @ weights)

    def choose(self, count: int, where: str, seed: int) -> NDArray[np.intp]:
        """Random states, of all or of those with prompts, batches and contexts of the smaller halves."""
        allowed = np.ones(len(self.columns), bool)
        if where == "smaller half":
            for column, values in ((0, PROMPTS), (2, BATCHES), (3, CONTEXTS)):
                allowed &= self.columns[:, column] <= values[len(values) // 2]
        return np.random.default_rng(seed).permutation(np.flatnonzero(allowed))[:count]


Curves = dict[tuple[str, str], list[float]]
"""Mean absolute errors by range and estimator, one a number of samples."""


def simulate(states: States, seeds: int) -> Curves:
    """Errors over all states."""
    found: Curves = {}
    for where in RANGES:
        for name, estimate in states.estimators().items():
            found[where, name] = [
                float(
                    np.mean(
                        [
                            np.abs(estimate(states.choose(count, where, seed)) / states.truth - 1).mean()
                            for seed in range(seeds)
                        ]
                    )
                )
                for count in SAMPLES
            ]
    return found


def numbers(curves: Curves, states: States) -> list[Number]:
    """The order at each range, ours alone, and how much contention there is to ignore."""
    found = []
    for where in RANGES:
        key = where.replace(" ", "_")
        of = {name: np.array(curves[where, name]) for name in COLOURS}
        orders = (
            ("linear", "linear regression clearly worse than SRM", "linear regression"),
            ("ignored", "contention ignored clearly worse than SRM", "contention ignored"),
        )
        for order, what, other in orders:
            clearly = bool((of[other] > CLEARLY * of["SRM"]).all())
            found.append(
                Number(figure="11", key=f"fig11.{order}_{key}", what=f"{what}, samples of the {where}", holds=clearly)
            )
        for name, errors in of.items():
            what = f"mean error of {name}, {SAMPLES[-1]} samples of the {where}"
            found.append(
                Number(
                    figure="11",
                    key=f"fig11.{name.replace(' ', '_')}_{key}",
                    what=what,
                    ours=100 * float(errors[-1]),
                    unit=" %",
                )
            )
    lost = 100 * float((states.truth / states.alone).mean() - 1)
    return [
        *found,
        Number(
            figure="11",
            key="fig11.contention",
            what="mean slowdown of a decode step by contention",
            ours=lost,
            unit=" %",
        ),
    ]


def draw(curves: Curves) -> Figure:
    """A panel a range."""
    with styled():
        drawing = figure(7.2, 2.6)
        panels = drawing.subplots(1, len(RANGES), sharey=True)
        for panel, where in zip(panels, RANGES, strict=True):
            for name, colour in COLOURS.items():
                panel.loglog(SAMPLES, [100 * error for error in curves[where, name]], "o-", color=colour, label=name)
            panel.set_title(f"samples of the {where}")
            panel.set_xlabel("samples")
            panel.set_xticks(SAMPLES, [str(count) for count in SAMPLES], minor=False)
            panel.set_xticks([], minor=True)
        panels[0].yaxis.set_minor_formatter(PlainLog())
        panels[0].set_ylabel("mean error (%)")
        legend_above(drawing, panels[0])
    return drawing


def main() -> None:
    """See the module."""
    chosen = options(__doc__, seeds=5)
    states = States()
    curves = simulate(states, chosen.seeds)
    rows = [
        (*key, count, error) for key, errors in curves.items() for count, error in zip(SAMPLES, errors, strict=True)
    ]
    finish(
        "fig11",
        chosen,
        draw(curves),
        ("samples_of", "estimator", "samples", "mean_error"),
        rows,
        numbers(curves, states),
    )


if __name__ == "__main__":
    main()
