"""What README and docs say of other things than commands: the demo's knees, sources of a comparison, all pages."""

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


def test_every_source_of_the_comparison_is_listed_and_used():
    text = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    body, _, listed = text.partition("## What was read")
    cited = {mark for marks in re.findall(r"\[((?:[A-Z]\d(?:, )?)+)\]", body) for mark in marks.split(", ")}
    assert cited == set(re.findall(r"^\| ([A-Z]\d) \|", listed, re.MULTILINE))


def test_the_index_of_docs_names_every_page_once():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md")
    assert sorted(re.findall(r"^\| \[[^\]]*\]\((\w+\.md)\)", index, re.MULTILINE)) == pages
