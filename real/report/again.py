"""The page of a validation from what lies in its directory: nothing is simulated anew but to find causes."""

from __future__ import annotations

from pathlib import Path

from real.comparison import Cell, load_side
from real.hosttime import OutsideTime
from real.layout import SIMULATED, Layout, read_facts
from real.plan import Plan
from real.report import DOCUMENT
from real.report.page import page
from real.report.study import study
from real.telling import SILENT, Teller
from sim.config import checked, read_json


def validation_page(out: Path, teller: Teller = SILENT) -> str:
    """The page of report.html as of now. Raises ValueError where ``out`` has no finished validation."""
    layout = Layout(out)
    plan = checked(Plan, read_json(layout.plan), str(layout.plan))
    if not (out / DOCUMENT).is_file():
        raise ValueError(f"{out} has no {DOCUMENT} yet; finish it with the bulletsim validate that began it")
    document = read_json(out / DOCUMENT)
    cells = [_cell(layout, plan, cell["policy"], cell["rate"]) for cell in document["cells"]]
    return page(study(cells, limit=document["limit"], teller=teller), document["header"], teller)


def _cell(layout: Layout, plan: Plan, policy: str, rate: float) -> Cell:
    folder = layout.cell(policy, rate if plan.rates else None)
    runs = layout.real(folder)
    if not runs:
        raise ValueError(f"{folder} has no run that {DOCUMENT} is of; make the report again with bulletsim validate")
    host = OutsideTime.median([read_facts(run).model_dump()["host_s"] for run in runs])
    return Cell(
        policy=policy,
        rate=rate,
        real=tuple(map(load_side, runs)),
        simulated=load_side(folder / SIMULATED),
        outside_s=host.by_kind(),
    )
