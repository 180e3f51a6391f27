"""A validation from its plan to its report: measure, fit, serve for real, simulate the same, compare.

What is done stays: a validation that was interrupted goes on where it stopped, and a run that was cut off begins anew.
In its directory:

    plan.json                  what it is to do
    trace.parquet              the requests
    profile.*, model.json      what was measured of the device, and the latency model fitted to it
    warm/LABEL                 the first requests, served for the host's time alone
    runs/LABEL-RATE/real-K     runs on the device (real.serving)
    runs/LABEL-RATE/simulated  the same in virtual time
    report.html, report.json
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import policies
from real.calibrating import Calibrated, calibrated, known
from real.comparison import FACTS, Cell, Side, load_side
from real.configs import Setting, Today, contestant, default_slots
from real.hosttime import OutsideTime
from real.lanes import Lanes
from real.layout import SIMULATED, Layout, finished, read_facts, served_again
from real.machine import CpuMachine, CudaMachine, check_gpus
from real.model import open_model
from real.pace import Pace, Session, paced
from real.plan import BLOCK_TOKENS, Contestant, Plan
from real.power import PowerSampler
from real.probes import KINDS
from real.report import Study, study, write_report
from real.serving import check_policy, check_servable, note, serve
from real.telling import SILENT, Teller, Told
from sim.config import PaceSettings
from sim.metrics import summarise
from sim.rundir import write_run
from sim.simulate import prepare
from traces import Trace, open_trace, save, shrunk
from traces.arrivals import rescaled

PROBED_TOKENS = 512
"""Slots hold at least so many tokens, for layers of the profile to be run again in them."""

WARM_REQUESTS = 12

DRIFTED = 1.25
"""A device that is so many times faster or slower than its profile is another one."""

HELD_UP = 0.25
"""Of a run's time; less than that lanes take from each other."""

Machine = CpuMachine | CudaMachine


class Validation:
    """One plan in one directory. Raises ValueError for what cannot be done, before anything is measured."""

    def __init__(self, plan: Plan, out: Path, teller: Teller = SILENT) -> None:
        self.plan, self.layout, self.teller = plan, Layout(out), teller
        self.model = open_model(plan.model, plan.seed)
        self.trace = _trace(plan)
        longest = int((self.trace.prompt_tokens + self.trace.output_tokens).max())
        self.slot_tokens = -(-max(longest, PROBED_TOKENS) // BLOCK_TOKENS) * BLOCK_TOKENS
        most = self.model.spec.max_context
        if longest > most:
            raise ValueError(
                f"trace {plan.trace} has a request of {longest} tokens in all, and {plan.model} takes {most}; give "
                f"--shrink, or another model"
            )
        chosen = [policies.load(entry.name, entry.settings) for entry in plan.policies]
        for policy in chosen:
            check_policy(policy)
        self.needed = max(
            (policy.fewest_instances, entry.shown) for entry, policy in zip(plan.policies, chosen, strict=True)
        )

    def run(self) -> Study:
        """Everything that is not done yet, and the report."""
        if self.plan.device == "cuda":
            check_gpus(*self.needed)
        with self.layout.held():
            self.layout.begin(self.plan)
            self.layout.rescue()
            save(self.trace, self.layout.trace)
            found = calibrated(self.plan, self.layout, self.teller)
            setting, everyone = self._settled(found)
            for who, rate in product(everyone, self.rates):
                check_servable(prepare(setting.config(who, rate, OutsideTime())))
            with closing(self._machine(everyone, setting)) as machine:
                self._serve_all(everyone, setting, found, machine)
            return self._report(everyone, setting, found)

    def report(self) -> Study:
        """The report alone, of the runs that are there. Raises ValueError where there is none."""
        nothing = f"{self.layout.out} holds no run of a validation; leave --report out to begin one"
        if not (self.layout.out / "runs").is_dir():
            raise ValueError(nothing)
        with self.layout.held():
            if not self.layout.rescue() and not any(self.layout.out.glob(f"runs/*/real-*/{FACTS}")):
                raise ValueError(nothing)
            self.layout.begin(self.plan)
            found = known(self.plan, self.layout)
            setting, everyone = self._settled(found)
            return self._report(everyone, setting, found)

    def _settled(self, found: Calibrated) -> tuple[Setting, list[Contestant]]:
        """What all runs have in common, and the policies on their instances."""
        device, requests = found.model.device, len(self.trace)
        slots = self.plan.slots or default_slots(self.plan, self.model.spec, device, requests, self.slot_tokens)
        setting = Setting(self.plan, self.layout.trace, found.path, found.model, slots, self.slot_tokens)
        return setting, [contestant(entry, self.plan, device, slots) for entry in self.plan.policies]

    @property
    def rates(self) -> tuple[float | None, ...]:
        """Requests a second of each cell; None for the trace's own times."""
        return tuple(self.plan.rates) or (None,)

    def _machine(self, everyone: Sequence[Contestant], setting: Setting) -> Machine:
        sizes = {"slots": setting.slots, "slot_tokens": setting.slot_tokens}
        if self.plan.device == "cpu":
            return CpuMachine(self.model, **sizes)
        return CudaMachine(self.model, everyone, **sizes, temperature=self.plan.temperature)

    def _serve_all(self, everyone: Sequence[Contestant], setting: Setting, found: Calibrated, machine: Machine) -> None:
        """Every policy at every rate once, then all again: what drifts meets all alike."""
        todo = [
            (repeat, rate, who)
            for repeat, rate, who in product(range(1, self.plan.repeats + 1), self.rates, everyone)
            if not finished(self.layout.cell(who.label, rate) / f"real-{repeat}")
        ]
        host: dict[tuple[int, str], OutsideTime] = {}
        for number, (repeat, rate, who) in enumerate(todo, start=1):
            where = f"{who.label}{'' if rate is None else f' at {rate:g} req/s'}"
            run = self.layout.cell(who.label, rate) / f"real-{repeat}"
            if (repeat, who.label) not in host:
                host[repeat, who.label] = self._host(who, setting, machine)
            outside = host[repeat, who.label]
            with self.teller.stage(f"run {number} of {len(todo)}: {where}") as begin:
                lanes = machine.lanes(who)
                prepared = prepare(setting.config(who, rate, outside))
                sessions = self._sessions(repeat, rate)
                before = _pace(found, lanes, who, self.model.spec.layers, outside, sessions[0])
                facts = {
                    "device": lanes.settings,
                    "host_s": outside.document(),
                    "pace": None if before is None else before.document(),
                    "temperature": self.plan.temperature,
                }
                with self._drawn(machine) as drawn:
                    serve(
                        prepared,
                        lanes,
                        run,
                        facts=facts,
                        afterwards=drawn,
                        temperature=self.plan.temperature,
                        progress=_requests(begin(len(self.trace))),
                    )
                after = _pace(found, lanes, who, self.model.spec.layers, outside, sessions[1])
            if before is not None and after is not None:
                note(run, {"pace": Pace.joined([before, after]).document()})

    def _sessions(self, repeat: int, rate: float | None) -> tuple[Session, Session]:
        """Of a policy's, those before and after one of its runs."""
        runs = len(self.rates) * self.plan.repeats
        number = (repeat - 1) * len(self.rates) + self.rates.index(rate)
        return Session(2 * number, 2 * runs), Session(2 * number + 1, 2 * runs)

    def _host(self, who: Contestant, setting: Setting, machine: Machine) -> OutsideTime:
        """What the host adds to a launch, from serving the first requests at the highest rate: over soonest."""
        config = setting.config(who, max(self.rates, key=lambda rate: rate or 0.0), OutsideTime())
        requests = min(WARM_REQUESTS, len(self.trace))
        few = config.model_copy(update={"requests": requests})
        with self.teller.stage(f"warming up: {who.label}") as begin:
            served = serve(
                prepare(few),
                machine.lanes(who),
                self.layout.warm(who.label),
                facts={},
                temperature=self.plan.temperature,
                progress=_requests(begin(requests)),
            )
        return OutsideTime.of(served)

    @contextmanager
    def _drawn(self, machine: Machine) -> Iterator[Any]:
        """Gives a function that says what was drawn, and for how long lanes had no core, until it is asked."""
        waited_s = machine.waited_s()
        samplers = [PowerSampler(gpu).start() for gpu in machine.gpus()]

        def summary() -> Mapping[str, Any]:
            for sampler in samplers:
                sampler.stop()
            now_s = machine.waited_s()
            energy = [found for sampler in samplers if (found := sampler.summary()) is not None]
            return {
                "energy": energy or None,
                "waited_s": None if now_s is None or waited_s is None else now_s - waited_s,
            }

        try:
            yield summary
        finally:
            summary()

    def _report(self, everyone: Sequence[Contestant], setting: Setting, found: Calibrated) -> Study:
        folders = [self.layout.cell(who.label, rate) for who, rate in product(everyone, self.rates)]
        said = [read_facts(run).model_dump() for folder in folders for run in self.layout.real(folder)]
        # Of all runs together: they took turns, and a single run's probes scatter more than the device drifts.
        pace = Pace.read(one["pace"] for one in said if one["pace"] is not None)
        today = setting.today(pace)
        cells = self._cells(everyone, setting, today)
        self._warn_of_pace(today.pace)
        self._warn_of_others(cells)
        result = study(cells, teller=self.teller)
        write_report(result, self.layout.out, self._header(found, today if pace.probes else None), self.teller)
        return result

    def _cells(self, everyone: Sequence[Contestant], setting: Setting, today: Today) -> list[Cell]:
        named, cells = list(product(everyone, self.rates)), []
        with self.teller.stage("simulating the same") as begin:
            tell = begin(len(named))
            for done, (who, rate) in enumerate(named, 1):
                cells.append(self._cell(who, rate, setting, today))
                tell(done, who.label)
        return [cell for cell in cells if cell is not None]

    def _cell(self, who: Contestant, rate: float | None, setting: Setting, today: Today) -> Cell | None:
        """The real runs that are there, and the simulation of the same on host and device as they were."""
        folder = self.layout.cell(who.label, rate)
        runs = self.layout.real(folder)
        if not runs:
            return None
        host = OutsideTime.median([read_facts(run).model_dump()["host_s"] for run in runs])
        prepared = prepare(setting.config(who, rate, host, today))
        result = prepared.run()
        config = prepared.config
        metrics = summarise(result, config.slo.value(), config.gpus, config.window.value())
        write_run(folder / SIMULATED, config, result, metrics, force=True)
        return Cell(
            policy=who.label,
            rate=_mean_rate(self.trace) if rate is None else rate,
            real=tuple(map(_side, runs)),
            simulated=load_side(folder / SIMULATED),
            outside_s=host.by_kind(),
        )

    def _warn_of_others(self, cells: Sequence[Cell]) -> None:
        for cell in cells:
            for side in cell.real:
                waited_s, run_s = side.facts.get("waited_s"), float(side.run.steps.end_s.max(initial=0.0))
                if waited_s is not None and waited_s > HELD_UP * run_s:
                    self.teller.note(
                        f"note: {cell.policy} at {cell.rate:g} req/s: threads had no core for {waited_s:.1f} s in a "
                        f"run of {run_s:.1f} s; serve again in another --out, with no other program running"
                    )

    def _warn_of_pace(self, pace: PaceSettings) -> None:
        for kind in KINDS:
            for sms, ratio in getattr(pace, kind):
                if not 1 / DRIFTED < ratio < DRIFTED:
                    self.teller.note(
                        f"note: layers that {kind} took {ratio:.2f} times as long on {sms} SMs as when they were "
                        f"profiled; measure again, in another --out, with no other program running"
                    )

    def _header(self, found: Calibrated, today: Today | None) -> Mapping[str, Any]:
        plan, model = self.plan, found.model
        return {
            "title": f"{plan.model} on {model.device.name}: simulated against measured",
            "plan": plan.model_dump(mode="json", exclude_none=True),
            "requests": len(self.trace),
            "pace": None if today is None else _by_sms(today.pace),
            "seconds to wake": None if today is None else today.wake_s,
            "device": model.device.name,
            "latency model": {**model.provenance, "file": str(found.path)},
            "model errors": list(model.holdout),
        }


def _side(run: Path) -> Side:
    with served_again(run):
        return load_side(run)


def _by_sms(pace: PaceSettings) -> Mapping[str, Any]:
    """Numbers that the report names."""
    products = {sms: dict(factors) for sms, factors in pace.products}
    return {**{kind: dict(getattr(pace, kind)) for kind in KINDS}, "products by rows": products, "losses": pace.losses}


def _pace(
    found: Calibrated, lanes: Lanes, who: Contestant, layers: int, host: OutsideTime, session: Session
) -> Pace | None:
    """How fast the idle lanes are now; None without a profile to compare with."""
    if found.profile is None:
        return None
    return paced(found.profile, lanes, who.lanes, layers, host.decode_s, session)


def _requests(tell: Told) -> Callable[[int, float], None]:
    return lambda done, now_s: tell(done, f"requests, {now_s:.0f} s")


def _trace(plan: Plan) -> Trace:
    trace = shrunk(open_trace(plan.trace, plan.seed, plan.requests), plan.shrink)
    if plan.rates:
        return trace
    if trace.arrival_s is None:
        raise ValueError(f"trace {plan.trace} has no arrival times; give --rate, such as --rate 2")
    return trace if plan.time_scale == 1 else rescaled(trace, _mean_rate(trace) / plan.time_scale)


def _mean_rate(trace: Trace) -> float:
    assert trace.arrival_s is not None
    span_s = float(trace.arrival_s[-1] - trace.arrival_s[0])
    return (len(trace) - 1) / span_s if span_s else 1.0
