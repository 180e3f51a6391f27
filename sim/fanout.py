"""One function over many tasks: here, in local processes, or on a Dask or Ray cluster that is already there.

Results come as they finish, in any order. A process that dies costs no result that has come: what is left runs again,
and once processes have died several times the tasks run one at a time, so that the one to blame is known and the
others go on. Clusters start lost tasks again by themselves.
"""

from __future__ import annotations

import importlib
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any, Literal, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

Backend = Literal["local", "dask", "ray"]
DEATHS_TOGETHER = 1
"""How often processes may die before tasks run one at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fanout:
    """Where tasks run.

    jobs: local processes; 1 runs everything in this one. A cluster has as many as it has.
    address: of a Dask scheduler (tcp://host:8786) or a Ray head (host:6379); for Ray None is the cluster around.
    patience_s: how long to wait for a Dask scheduler to answer.
    """

    backend: Backend = "local"
    jobs: int = 1
    address: str | None = None
    patience_s: float = 10.0

    def __post_init__(self) -> None:
        if self.backend == "dask" and self.address is None:
            raise ValueError("backend dask needs the address of a scheduler, such as --address tcp://host:8786")
        if self.backend == "local" and self.address is not None:
            raise ValueError(f"address {self.address} is for the backends dask and ray; add --backend dask")


HERE = Fanout()


def fan_out(
    work: Callable[[Task], Result], tasks: Sequence[Task], fanout: Fanout
) -> Iterator[tuple[int, Result | None]]:
    """(number of the task, its result) as they finish; None for a task whose process died with it.

    ``work`` must be importable where the tasks run, unless that is here, and raise nothing. Raises ValueError where
    there is no such cluster.
    """
    if fanout.backend == "ray":
        yield from _ray(work, tasks, fanout.address)
    elif fanout.backend == "dask":
        with _dask_client(str(fanout.address), fanout.patience_s) as client:
            killed = client.killed
            yield from _until_done(work, tasks, lambda some: _parallel(some, backend="dask", client=client.it), killed)
    elif fanout.jobs == 1 or len(tasks) < 2:
        yield from ((number, work(task)) for number, task in enumerate(tasks))
    else:
        yield from _local(work, tasks, fanout.jobs)


def _until_done(
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    pool: Callable[[Sequence[Any]], Iterator[Any]],
    death: type[BaseException],
) -> Iterator[tuple[int, Result | None]]:
    from joblib import delayed

    left, deaths = dict(enumerate(tasks)), 0
    while left:
        batch = list(left) if deaths <= DEATHS_TOGETHER else list(left)[:1]
        try:
            for number, result in pool([delayed(_numbered)(number, work, left[number]) for number in batch]):
                del left[number]
                yield number, result
        except death:
            deaths += 1
            if len(batch) == 1:
                del left[batch[0]]
                yield batch[0], None


def _numbered(number: int, work: Callable[[Task], Result], task: Task) -> tuple[int, Result]:
    return number, work(task)


def _parallel(calls: Sequence[Any], *, jobs: int = -1, **backend: Any) -> Iterator[Any]:
    from joblib import Parallel, parallel_config

    with parallel_config(**backend):
        pool = Parallel(n_jobs=jobs, batch_size=1, return_as="generator_unordered")
        with _interrupts_held():
            results = pool(calls)
        yield from results


def _local(work: Callable[[Task], Result], tasks: Sequence[Task], jobs: int) -> Iterator[tuple[int, Result | None]]:
    from joblib.externals.loky import get_reusable_executor  # type: ignore[import-untyped]
    from joblib.externals.loky.process_executor import TerminatedWorkerError  # type: ignore[import-untyped]

    # loky renews a worker that has grown by 300 MB, between two tasks, and warns of it in words about leaks.
    warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given to the executor")

    def end_workers() -> None:
        get_reusable_executor(reuse=True, kill_workers=True).shutdown(kill_workers=True)

    def pool(calls: Sequence[Any]) -> Iterator[Any]:
        try:
            # One BLAS thread a process: as many as there are cores in each would fight for them.
            yield from _parallel(calls, jobs=jobs, backend="loky", inner_max_num_threads=1)
        except BaseException:
            # Ctrl-C and SIGTERM end here; workers hear neither, and would go on until they idle.
            end_workers()
            raise

    yield from _until_done(_WhileParentLives(work, os.getpid()), tasks, pool, TerminatedWorkerError)


class _WhileParentLives:
    """``work``, in a process that begins nothing more once the one that started it has been killed."""

    def __init__(self, work: Callable[[Task], Result], parent: int) -> None:
        self._work, self._parent = work, parent

    def __call__(self, task: Any) -> Any:
        if os.getppid() != self._parent:
            os._exit(1)
        return self._work(task)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started within never hear SIGINT, from their first instruction on; this one hears it afterwards.

    Ctrl-C reaches a whole group of processes. A worker that hears it while it imports prints a traceback; ending
    workers is the parent's part. The signal mask, unlike a handler, is kept through fork and exec.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # This helper process would be started within, and starting it lifts the mask.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True, slots=True)
class _DaskClient:
    it: Any
    killed: type[BaseException]


@contextmanager
def _dask_client(address: str, patience_s: float) -> Iterator[_DaskClient]:
    distributed = _extra("distributed", "dask")
    try:
        client = distributed.Client(address, timeout=patience_s, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"no Dask scheduler answers at {address}: {' '.join(str(error).split())}") from None
    with client:
        if not client.ncores():
            raise ValueError(f"the Dask scheduler at {address} has no workers; start some with dask worker {address}")
        yield _DaskClient(client, distributed.scheduler.KilledWorker)


def _ray(
    work: Callable[[Task], Result], tasks: Sequence[Task], address: str | None
) -> Iterator[tuple[int, Result | None]]:
    # Ray's own backend for joblib hands results over all together at the end, so its tasks are used as they are.
    ray = _extra("ray", "ray")
    if not ray.is_initialized():
        try:
            ray.init(address=address or "auto", log_to_driver=False)
        except (ConnectionError, ValueError) as error:
            raise ValueError(f"no Ray cluster at {address or 'auto'}: {' '.join(str(error).split())}") from None
    remote = ray.remote(num_cpus=1, max_retries=3)(_numbered)
    shared = ray.put(work)
    left = {remote.remote(number, shared, task): number for number, task in enumerate(tasks)}
    while left:
        (done,), _ = ray.wait(list(left), num_returns=1)
        number = left.pop(done)
        try:
            yield number, ray.get(done)[1]
        except ray.exceptions.WorkerCrashedError:
            yield number, None


def _extra(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise ValueError(f"backend {extra} needs the extra {extra!r}: pip install 'bulletsim[{extra}]'") from None
