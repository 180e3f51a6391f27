"""The directory of a validation: where its files are, and whose plan it holds."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from profiler.modelfile import MOST_SEQUENCES
from real.comparison import FACTS
from real.plan import Plan, policy_label, rate_label
from real.serving import ANSWERS, recover
from sim.config import checked, read_json
from sim.rundir import replacing, write_json

SIMULATED = "simulated"
"""Of a policy at a rate, beside its real runs."""

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
        return self.out / "runs" / f"{policy_label(label)}-{'recorded' if rate is None else rate_label(rate)}"

    def warm(self, label: str) -> Path:
        return self.out / "warm" / policy_label(label)

    def begin(self, plan: Plan) -> None:
        """Writes the plan, or goes on with the same. Raises ValueError where it has other settings."""
        if self.plan.exists():
            known = checked(Plan, read_json(self.plan), str(self.plan))
            served = any(self.out.glob("runs/*/real-*"))
            measured = MEASURED if any(self.out.glob("profile.*")) else ()
            for name in [name for name in Plan.model_fields if name not in GROWS] if served else measured:
                if getattr(plan, name) != getattr(known, name):
                    mine, theirs = (one.model_dump(exclude_none=True).get(name) for one in (plan, known))
                    raise ValueError(
                        f"{self.out} holds a validation whose {name} is {theirs!r}, and {mine!r} is asked for; give "
                        f"the same, or another --out"
                    )
        with replacing(self.plan) as partial:
            write_json(partial, plan.model_dump(mode="json"))

    def _refuse_what_is_no_validation(self) -> None:
        if not self.out.exists() or self.plan.exists():
            return
        if any((self.out / "runs").glob("*/real-*")):
            raise ValueError(f"{self.plan} is missing, and there are runs; put it back, or choose another --out")
        if not self.out.is_dir() or set(self.out.iterdir()) - {self.model, self._lock}:
            raise ValueError(f"{self.out} exists and is no validation; choose another --out")

    @property
    def _lock(self) -> Path:
        return self.out / ".lock"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other commands out of the directory, which is made; the system lets go when the process ends.

        A latency model may lie there already. Raises ValueError where another is at work there, and for a directory
        that holds something else.
        """
        self._refuse_what_is_no_validation()
        self.out.mkdir(parents=True, exist_ok=True)
        with self._lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(
                    f"another bulletsim validate is at work in {self.out}; wait for it, or choose another --out"
                ) from None
            yield

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


Said = TypeVar("Said", bound=BaseModel)


Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=1e-9, le=3600, allow_inf_nan=False)]
HostSeconds = Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)]


class Host(BaseModel):
    """OutsideTime.document."""

    decode: HostSeconds
    prefill: HostSeconds


class ProbeRow(BaseModel):
    """Of Pace.document."""

    kind: Literal["prefill", "decode"]
    sms: Count
    sequences: Annotated[int, Field(ge=1, le=MOST_SEQUENCES)]
    new_tokens: Count
    cached_tokens: Annotated[int, Field(ge=0)]
    layers: Count
    profiled_s: Seconds
    seconds: Seconds


class CompanyRow(BaseModel):
    """Company.document."""

    own: ProbeRow
    other: ProbeRow
    seconds: Seconds


class Probed(BaseModel):
    """Pace.document."""

    probes: list[ProbeRow]
    wakes_s: list[Annotated[float, Field(ge=-3600, le=3600, allow_inf_nan=False)]] = []
    company: list[CompanyRow] = []


class Ended(BaseModel):
    """How any run's real.json says whether it came to its end."""

    model_config = ConfigDict(strict=True, frozen=True)

    finished: bool


class Facts(Ended):
    """What a validation reads of the real.json of its runs; there is more in it."""

    host_s: Host
    pace: Probed | None
    waited_s: float | None = None


def read_facts(run: Path) -> Facts:
    """Raises ValueError, with the remedy, for a real.json that is damaged."""
    return _read(run, Facts)


def _read(run: Path, what: type[Said]) -> Said:
    with served_again(run):
        return checked(what, read_json(run / FACTS), str(run / FACTS))


@contextmanager
def served_again(run: Path) -> Iterator[None]:
    """Adds to what is wrong with the files of a real run what to do about it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error}; remove {run}, and the same command serves it again") from None


def finished(run: Path) -> bool:
    """Whether a real run is there and came to its end."""
    return (run / FACTS).is_file() and _read(run, Ended).finished
