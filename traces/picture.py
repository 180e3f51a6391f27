"""A trace in pictures: distributions of lengths, and arrivals over time; for a terminal and for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from traces.errors import TraceError
from traces.request import FloatColumn, IntColumn, Trace
from traces.statistics import window_counts

ENDINGS = (".png", ".svg", ".pdf")
_BARS = " ▁▂▃▄▅▆▇█"
_ASCII_BARS = " .:-=+*#@"  # darker for higher
_BLUE, _ORANGE = "#0072B2", "#D55E00"  # told apart by colour-blind readers and in grey


def bars(counts: IntColumn, encoding: str = "utf-8") -> str:
    """One character a count, its height in proportion to the highest; what is above 0 stays visible.

    An ``encoding`` that has no blocks gets ASCII characters that are darker instead of higher.
    """
    try:
        _BARS.encode(encoding)
        marks = _BARS
    except UnicodeEncodeError:
        marks = _ASCII_BARS
    top = max(int(counts.max()), 1)
    steps = np.ceil(counts * (len(marks) - 1) / top).astype(int)
    return "".join(marks[step] for step in steps.tolist())


def length_counts(tokens: IntColumn, bins: int) -> tuple[IntColumn, FloatColumn]:
    """How many of ``tokens`` lie in each of ``bins`` bins of equal width on a log axis, and the edges (bins + 1,)."""
    low, high = int(tokens.min()), int(tokens.max())
    edges = np.geomspace(low, max(high, low + 1), bins + 1)
    edges[0], edges[-1] = low, max(high, low + 1)
    return np.histogram(tokens, edges)[0].astype(np.int64), edges


def arrival_counts(arrivals: FloatColumn, bins: int) -> IntColumn:
    """Arrivals in each of ``bins`` equal parts of the span, shape (bins,)."""
    return np.histogram(arrivals, bins)[0].astype(np.int64)


def draw(trace: Trace, path: Path) -> None:
    """Write a figure of ``trace`` to ``path`` (.png, .svg or .pdf).

    Above, the cumulative distributions of prompt and output tokens; below, arrivals over time if there are any.
    Equal traces give equal files; folders above them are made.
    """
    if path.suffix not in ENDINGS:
        raise TraceError(f"{path}: a picture is {', '.join(ENDINGS)}; choose one of these endings")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = 1 if trace.arrival_s is None else 2
    with rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "trace"}):
        figure = Figure(figsize=(6.0, 2.6 * rows), layout="constrained")
        figure.suptitle(f"{trace.name}: {len(trace):,} requests")
        panels = figure.subplots(rows, 1, squeeze=False)[:, 0]
        _draw_lengths(panels[0], trace)
        if trace.arrival_s is not None:
            _draw_arrivals(panels[1], trace.arrival_s)
        path.parent.mkdir(parents=True, exist_ok=True)
        stamp = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[path.suffix]
        figure.savefig(path, dpi=200, metadata=stamp)


def _draw_lengths(panel: Any, trace: Trace) -> None:
    sides = (("prompt", trace.prompt_tokens, _BLUE, "-"), ("output", trace.output_tokens, _ORANGE, "--"))
    for label, tokens, colour, style in sides:
        values, counts = np.unique(tokens, return_counts=True)
        share = np.cumsum(counts) / len(tokens)
        panel.step(
            np.concatenate((values[:1], values)),
            np.concatenate(([0.0], share)),
            where="post",
            color=colour,
            linestyle=style,
            label=f"{label}: median {np.median(tokens):,.0f}, mean {tokens.mean():,.0f}",
        )
    panel.set_xscale("log")
    panel.set_ylim(0, 1.02)
    panel.set_xlabel("tokens")
    panel.set_ylabel("share of requests")
    _legend_above(panel)


def _draw_arrivals(panel: Any, arrivals: FloatColumn) -> None:
    span_s = float(arrivals[-1] - arrivals[0])
    if span_s == 0:
        panel.text(0.5, 0.5, "all requests arrive at once", ha="center", transform=panel.transAxes)
        panel.set_axis_off()
        return
    window_s = _round_window(span_s / 300)
    rates = window_counts(arrivals, window_s) / window_s
    unit_s, unit = (3600.0, "h") if span_s > 7200 else (60.0, "min") if span_s > 300 else (1.0, "s")
    edges = np.arange(len(rates) + 1) * window_s / unit_s
    panel.stairs(rates, edges, fill=True, color=_BLUE, alpha=0.6)
    mean = (len(arrivals) - 1) / span_s
    panel.axhline(mean, color="black", linewidth=0.8, linestyle=":", label=f"mean: {mean:.3g} requests/s")
    panel.set_xlim(0, span_s / unit_s)
    panel.set_ylim(0, None)
    panel.set_xlabel(f"time ({unit})")
    panel.set_ylabel(f"requests/s in {window_s:g} s")
    _legend_above(panel)


def _round_window(least_s: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten seconds that is ``least_s`` or more."""
    power = 10.0 ** np.floor(np.log10(least_s))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= least_s))


def _legend_above(panel: Any) -> None:
    panel.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.98), ncols=2)


def text_rows(trace: Trace, width: int, encoding: str = "utf-8") -> list[tuple[str, str, str]]:
    """Pictures of ``width`` characters, each (what, bars, range): prompt and output tokens, and arrivals."""
    rows = []
    for what, tokens in (("prompt", trace.prompt_tokens), ("output", trace.output_tokens)):
        counts, edges = length_counts(tokens, width)
        rows.append((what, bars(counts, encoding), f"{edges[0]:,.0f} to {edges[-1]:,.0f} tokens (log)"))
    if trace.arrival_s is not None and (span_s := float(trace.arrival_s[-1] - trace.arrival_s[0])):
        counts = arrival_counts(trace.arrival_s, width)
        rows.append(("arrivals", bars(counts, encoding), f"{span_s:,.0f} s"))
    return rows
