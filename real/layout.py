"""The directory of a validation: where its files are, and whose plan it holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from real.plan import Plan
from real.serving import ANSWERS, FACTS, recover
from sim.config import checked, read_json
from sim.rundir import replacing, write_json

GROWS = ("policies", "rates", "repeats")
"""What of a plan may be another when a validation goes on: runs already there stay what they are."""

MEASURED = ("device", "model", "quick")
"""What a profile was measured for, which takes long; all else may change while nothing has been served."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths in ``out``."""

    out: Path

    @property
    def plan(self) -> Path:
        return self.out / "plan.json"

    @property
    def trace(self) -> Path:
        return self.out / "trace.parquet"

    @property
    def profile(self) -> Path:
        """Without a suffix: a profile is two files."""
        return self.out / "profile"

    @property
    def model(self) -> Path:
        return self.out / "model.json"

    def cell(self, label: str, rate: float | None) -> Path:
        """The runs of a policy at a rate; None where the trace's own times were kept."""
        return self.out / "runs" / f"{_plain(label)}-{'recorded' if rate is None else f'{rate:.12g}'}"

    def warm(self, label: str) -> Path:
        return self.out / "warm" / _plain(label)

    def begin(self, plan: Plan) -> None:
        """Makes the directory, or goes on with one of the same plan. A latency model may lie there already.

        Raises ValueError for a directory that holds something else, or a plan with other settings.
        """
        if self.plan.exists():
            known = checked(Plan, read_json(self.plan), str(self.plan))
            served = any(self.out.glob("runs/*/real-*"))
            measured = MEASURED if any(self.out.glob("profile.*")) else ()
            for name in [name for name in Plan.model_fields if name not in GROWS] if served else measured:
                mine, theirs = getattr(plan, name), getattr(known, name)
                if mine != theirs:
                    raise ValueError(
                        f"{self.out} holds a validation whose {name} is {theirs!r}, and {mine!r} is asked for; give "
                        f"the same, or another --out"
                    )
        elif self.out.exists() and (not self.out.is_dir() or any(path != self.model for path in self.out.iterdir())):
            raise ValueError(f"{self.out} exists and is no validation; choose another --out")
        self.out.mkdir(parents=True, exist_ok=True)
        with replacing(self.plan) as partial:
            write_json(partial, plan.model_dump(mode="json"))

    def rescue(self) -> list[Path]:
        """Makes directories of the runs that were cut off too roughly to do so themselves; which these are.

        A recording that cannot be read stays what it is.
        """
        found = []
        for recording in sorted(self.out.glob(f"*/*/.*.{ANSWERS}")) + sorted(self.out.glob(f"*/.*.{ANSWERS}")):
            target = recording.with_name(recording.name[1:].removesuffix(f".{ANSWERS}"))
            try:
                recover(recording, target)
            except ValueError:
                continue
            found.append(target)
        return found

    def real(self, cell: Path) -> list[Path]:
        """The real runs of a cell that are there, whole ones first."""
        runs = [path.parent for path in sorted(cell.glob(f"real-*/{FACTS}"))]
        return sorted(runs, key=lambda run: not finished(run))


def finished(run: Path) -> bool:
    """Whether a real run is there and came to its end."""
    return (run / FACTS).is_file() and read_json(run / FACTS).get("finished") is True


def _plain(label: str) -> str:
    """A label as a file's name."""
    return re.sub(r"[^\w.=,()-]+", "_", label)
