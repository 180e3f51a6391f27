"""The report of a validation: the page, its numbers, and what a terminal shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from real.report.document import document
from real.report.page import page
from real.report.study import Studied, Study, study
from real.report.summary import SUMMARY_HEAD, summary_lines, summary_rows
from real.telling import SILENT, Teller
from sim.rundir import replacing, write_json

__all__ = ["SUMMARY_HEAD", "Studied", "Study", "study", "summary_lines", "summary_rows", "write_report"]

DOCUMENT = "report.json"
PAGE = "report.html"


def write_report(found: Study, out_dir: Path, header: Mapping[str, Any], teller: Teller = SILENT) -> None:
    """Writes report.json and report.html into ``out_dir``.

    ``header``: what tells where the runs are from (title, device, versions, profile, model errors, commands); plain
    values or mappings of them, shown as they are named.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    with replacing(out_dir / DOCUMENT) as partial:
        write_json(partial, document(found, header))
    with replacing(out_dir / PAGE) as partial:
        partial.write_text(page(found, header, teller), encoding="utf-8")
