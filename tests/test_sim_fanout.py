"""Fan-out: to processes and to real schedulers with two workers each; whoever is killed, no result is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sim.config import PolicySettings, RunConfig
from sim.fanout import Fanout, fan_out
from sim.metrics import Metrics
from sim.results import load_results
from sim.simulate import measure_together
from sim.sweep import run_sweep
from sim.sweep_cells import Cell

ROOT = Path(__file__).resolve().parents[1]
NO_RAY = "Ray is not installed: 240 MB, and it starts for five seconds; pip install 'bulletsim[ray]' runs this"


def cells(count: int) -> list[Cell]:
    config = RunConfig(
        trace="workload:code",
        requests=5,
        rate=50.0,
        policy=PolicySettings(name="chunked"),
        model="tiny",
        device="A100-80G",
    )
    return [Cell(label="chunked", config=config.model_copy(update={"seed": seed})) for seed in range(count)]


class Logged:
    """Measures, after a line in a file for each cell begun; dies where ``dies`` says so, the first time only."""

    def __init__(self, log: Path, dies: int | None = None, pause_s: float = 0.0) -> None:
        self.log, self.dies, self.pause_s = log, dies, pause_s

    def __call__(self, configs: Sequence[RunConfig]) -> list[Metrics]:
        seeds = self.log.read_text().split() if self.log.exists() else []
        seed = configs[0].seed
        with self.log.open("a") as file:
            file.write(f"{seed}\n")
        time.sleep(self.pause_s)
        if seed == self.dies and str(seed) not in seeds:
            os.kill(os.getpid(), signal.SIGKILL)
        return measure_together(configs)

    def begun(self) -> list[int]:
        return sorted(int(seed) for seed in self.log.read_text().split())


def sweep(tmp_path: Path, run: Logged, fanout: Fanout, count: int = 8) -> list[int]:
    """The seeds of the cells that a sweep finished."""
    done = run_sweep(cells(count), tmp_path / "out", run=run, fanout=fanout)
    assert done.failures == []
    return [row["seed"] for row in load_results(tmp_path / "out")]


def double_or_die(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


def test_a_task_that_kills_its_process_is_found_and_the_others_go_on() -> None:
    found = dict(fan_out(double_or_die, range(2, 6), Fanout(jobs=2)))
    assert found == {0: 4, 1: None, 2: 8, 3: 10}


def test_a_worker_killed_in_a_sweep_loses_nothing(tmp_path: Path) -> None:
    run = Logged(tmp_path / "log", dies=3)
    assert sweep(tmp_path, run, Fanout(jobs=2)) == list(range(8))
    again = {seed for seed in run.begun() if run.begun().count(seed) > 1}
    assert 3 in again
    assert len(again) <= 2  # what the two workers had in hand


@pytest.fixture
def dask() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed; pip install 'bulletsim[dask]'")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1", worker_dashboard_address=None
    ) as cluster:
        yield cluster


@pytest.mark.filterwarnings("ignore")  # of Dask, about its own sockets as it ends
def test_a_dask_cluster_whose_worker_is_killed_loses_nothing(dask: Any, tmp_path: Path) -> None:
    run = Logged(tmp_path / "log", dies=3)
    assert sweep(tmp_path, run, Fanout(backend="dask", address=dask.scheduler_address)) == list(range(8))
    assert run.begun().count(3) > 1
    assert sweep(tmp_path, run, Fanout(backend="dask", address=dask.scheduler_address), count=9) == list(range(9))
    assert run.begun().count(0) == 1


def test_a_scheduler_that_is_not_there_is_one_line() -> None:
    pytest.importorskip("distributed", reason="Dask is not installed; pip install 'bulletsim[dask]'")
    with pytest.raises(ValueError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1") as caught:
        list(fan_out(double_or_die, range(2), Fanout(backend="dask", address="tcp://127.0.0.1:1", patience_s=0.5)))
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore")  # of Ray, about its own sockets as it ends
def test_a_ray_cluster_whose_worker_is_killed_loses_nothing(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason=NO_RAY)
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}}
    )
    try:
        run = Logged(tmp_path / "log", dies=3)
        assert sweep(tmp_path, run, Fanout(backend="ray")) == list(range(8))
        assert run.begun().count(3) > 1
    finally:
        ray.shutdown()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"backend": "dask"}, "needs the address of a scheduler"),
        ({"address": "tcp://127.0.0.1:1"}, "is for the backends dask and ray"),
    ],
)
def test_options_that_do_not_go_together(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fanout(**given)


KILLED = """
from pathlib import Path
import sys
from sim.fanout import Fanout
from sim.sweep import run_sweep
from tests.test_sim_fanout import Logged, cells
folder = Path(sys.argv[1])
run_sweep(cells(12), folder / "out", run=Logged(folder / "log", pause_s=0.02), fanout=Fanout(jobs=int(sys.argv[2])))
"""


@pytest.mark.parametrize(("jobs", "kills"), [(1, (1, 7)), (2, (5,))])
def test_killed_at_any_moment_no_finished_cell_is_lost_or_run_twice(
    jobs: int, kills: tuple[int, ...], tmp_path: Path
) -> None:
    """Killed outright when so many cells are finished, then left to finish."""
    for finished in (*kills, 12):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), str(jobs)], cwd=ROOT)
        before: set[str] = set()
        while process.poll() is None and len(before) < finished:
            time.sleep(0.005)
            before = {path.stem for path in (tmp_path / "out" / "cells").glob("[!.]*.json")}
        if finished < 12:
            process.send_signal(signal.SIGKILL)
        process.wait()
        after = {path.stem for path in (tmp_path / "out" / "cells").glob("[!.]*.json")}
        assert before <= after
    assert process.returncode == 0
    assert [row["seed"] for row in load_results(tmp_path / "out")] == list(range(12))
    begun = Logged(tmp_path / "log").begun()
    assert set(begun) == set(range(12))
    # Only what was in hand when a kill came is begun anew: a cell a process and kill.
    assert len(begun) - 12 <= len(kills) * jobs
    assert [path for path in (tmp_path / "out").rglob("*") if "partial" in path.name and path.suffix == ".json"] == []
