"""Table 2: SM time idle by wave quantisation, Llama-3.1-8B on an A100.

    python -m benchmarks.paper.table2 [--out out/paper]

Counted from thread blocks; no measurement and no fitted number in it.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from benchmarks.paper.command import finish, options
from benchmarks.paper.numbers import Number
from benchmarks.paper_kernels import PAPER_TABLE_2, idle_shares
from sim.plots.style import BLUE, figure, legend_above, styled

COLUMNS = ("QKV", "attention", "O", "MLP", "whole layer")


def ours(tokens: int) -> tuple[float, ...]:
    """A row in percent: the MLP as the paper adds it up, the layer weighted by time."""
    idle = idle_shares(tokens)
    return (*idle[:4], idle.layer)


def numbers() -> list[Number]:
    """All twenty cells."""
    return [
        Number(
            figure="Table 2",
            key=f"table2.{tokens}.{column.replace(' ', '_')}",
            what=f"idle SM share of {column}, {tokens} tokens",
            paper=theirs,
            ours=mine,
            unit=" %",
        )
        for tokens, row in PAPER_TABLE_2.items()
        for column, theirs, mine in zip(COLUMNS, row, ours(tokens), strict=True)
    ]


def draw() -> Figure:
    """A panel a length; the paper's cells as black marks on our bars."""
    with styled():
        drawing = figure(7.2, 2.2)
        panels = drawing.subplots(1, len(PAPER_TABLE_2), sharey=True)
        for panel, (tokens, theirs) in zip(panels, PAPER_TABLE_2.items(), strict=True):
            panel.bar(COLUMNS, ours(tokens), color=BLUE, alpha=0.6, label="ours")
            panel.plot(COLUMNS, theirs, "_k", ms=14, label="paper")
            panel.set_title(f"{tokens} tokens")
            panel.tick_params(axis="x", rotation=60)
        panels[0].set_ylabel("idle SM share (%)")
        legend_above(drawing, panels[0])
    return drawing


def main() -> None:
    """See the module."""
    found = numbers()
    rows = [(number.key, number.paper, number.ours) for number in found]
    finish("table2", options(__doc__), draw(), ("key", "paper_percent", "ours_percent"), rows, found)


if __name__ == "__main__":
    main()
