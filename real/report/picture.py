"""A matplotlib figure within a page."""

from __future__ import annotations

import base64
import io
from html import escape

import matplotlib
from matplotlib.figure import Figure

from sim.plots.style import RC
from sim.report.markup import Markup


def picture(drawing: Figure, alt: str) -> Markup:
    """A figure as an SVG image within the page: its own document, so that names in it meet no other's."""
    file = io.BytesIO()
    with matplotlib.rc_context(RC):
        drawing.savefig(file, format="svg", metadata={"Date": None}, dpi=130)
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return Markup(f'<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}">\n')
