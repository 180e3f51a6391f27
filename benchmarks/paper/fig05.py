"""Figure 5: compute efficiency and latency of each chunk of a 16k prompt, Llama-3.1-8B on an A100.

    python -m benchmarks.paper.fig05 [--out out/paper]

By the roofline with waves at its default efficiencies (docs/latency.md), which no number of this figure went into.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from benchmarks.paper.command import finish, options
from benchmarks.paper.numbers import Number
from benchmarks.paper_kernels import PROMPT, chunking, llama_on_a100
from profiler import Work
from sim.plots.style import BLUE, ORANGE, figure, legend_above, styled

CHUNKS = {1024: BLUE, 2048: ORANGE}


def chunks(tokens: int) -> list[tuple[int, float, float]]:
    """(tokens before, seconds, share of the peak FLOP/s) of each chunk."""
    model = llama_on_a100()
    found = []
    for done in range(0, PROMPT, tokens):
        work = Work(prefill=((tokens, done),))
        seconds = model.estimate(work, model.device.sms).seconds
        found.append((done, seconds, model.cost(work)[0] / seconds / model.device.bf16_flops))
    return found


def numbers() -> list[Number]:
    """What the text states."""
    one, two = chunking(1024), chunking(2048)
    stated = (
        ("first", "efficiency of the first 1k chunk", 71.0, 100 * one.first_efficiency, " %"),
        ("last", "efficiency of the last 1k chunk", 61.0, 100 * one.last_efficiency, " %"),
        ("last_over_first", "time of the last 1k chunk over the first", 1.9, one.last_over_first, "x"),
        ("total", "16k prompt in 1k chunks over the whole at once", 1.13, one.total_ratio, "x"),
        ("two_over_one", "time of a 2k chunk over a 1k chunk", 1.86, two.first_s / one.first_s, "x"),
    )
    return [
        Number(figure="5", key=f"fig05.{key}", what=what, paper=paper, ours=ours, unit=unit)
        for key, what, paper, ours, unit in stated
    ]


def draw() -> Figure:
    """Efficiency and time by tokens before; the paper's first and last efficiency as stars."""
    with styled():
        drawing = figure(7.2, 2.6)
        left, right = drawing.subplots(1, 2)
        for tokens, colour in CHUNKS.items():
            done, seconds, efficiency = zip(*chunks(tokens), strict=True)
            left.plot(done, [100 * share for share in efficiency], "o-", color=colour, label=f"chunks of {tokens}")
            right.plot(done, [1e3 * one for one in seconds], "o-", color=colour)
        left.plot((0, PROMPT - 1024), (71, 61), "k*", ms=9, label="paper, chunks of 1024")
        left.set_ylabel("share of peak FLOP/s (%)")
        right.set_ylabel("time of the chunk (ms)")
        right.set_ylim(bottom=0)
        for panel in (left, right):
            panel.set_xlabel("tokens of the prompt before it")
        legend_above(drawing, left)
    return drawing


def main() -> None:
    """See the module."""
    rows = [(tokens, *row) for tokens in CHUNKS for row in chunks(tokens)]
    header = ("chunk_tokens", "cached_tokens", "latency_s", "efficiency")
    finish("fig05", options(__doc__), draw(), header, rows, numbers())


if __name__ == "__main__":
    main()
