"""README's table of knees is the demo's, as ``make figures`` left it beside the pictures."""

from __future__ import annotations

import csv
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
POLICIES = ("2x chunked prefill", "2x Bullet", "2x Bullet, eager", "1P1D disaggregation")
ROWS = {"sharegpt": "ShareGPT", "code": "code completion"}


def test_the_table_of_knees_is_what_the_demo_printed():
    with (ROOT / "docs" / "figures" / "knees.csv").open(newline="") as file:
        knees = {(row["workload"], row["policy"]): row for row in csv.DictReader(file)}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"| {' | '.join(POLICIES)} |" in readme
    for workload, shown in ROWS.items():
        line = re.search(rf"^\| {shown}:[^|]*\|(.*)\|$", readme, re.MULTILINE)
        assert line, shown
        cells = [cell.strip() for cell in line[1].split("|")]
        for policy, cell in zip(POLICIES, cells, strict=True):
            row = knees[workload, policy]
            assert row["knee_kind"] == "crossing"
            assert cell == f"{float(row['knee_per_s_per_gpu']):#.3g}"
