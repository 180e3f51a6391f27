"""The frame of every page: style, script and head, so that the one file is all there is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from sim.report.markup import Markup, joined, tag, text

Cells = tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]
"""Of cells that are pointed at: the settings that all share, and of each its own settings and metrics."""


def page(title: str, body: Iterable[object], *, cells: Cells | None = None, script: bool = True) -> str:
    """A whole HTML document. Elements with ``data-cell`` number ``cells``; without ``script`` nothing moves."""
    parts = [tag("style", _own("page.css"))]
    head = '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    head += '<meta name="color-scheme" content="light dark">\n'
    after = []
    if cells is not None:
        shared, each = cells
        after.append(tag("script", _data({"shared": shared, "cells": each}), type="application/json", id="cells"))
    if script:
        after.append(tag("script", _own("page.js")))
    inside = f"<head>\n{head}<title>{text(title)}</title>\n{joined(parts)}</head>\n"
    return f'<!doctype html>\n<html lang="en">\n{inside}<body>\n{joined([*body, *after])}</body>\n</html>\n'


def _own(name: str) -> Markup:
    return Markup(files("sim.report").joinpath(name).read_text(encoding="utf-8"))


def _data(document: object) -> Markup:
    """JSON that no text in it can end early."""
    shown = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return Markup(shown.replace("<", "\\u003c"))
