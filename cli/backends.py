"""The options that say where many runs go: local processes, or a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli import completion

if TYPE_CHECKING:
    from sim.fanout import Fanout

BACKEND = "Where runs go: local, dask or ray (a cluster that is there)."

Jobs = Annotated[int | None, typer.Option(min=1, help="Processes (default: one a core).")]
BackendOption = Annotated[str, typer.Option(help=BACKEND, autocompletion=completion.backends)]
Address = Annotated[str | None, typer.Option(help="Of the Dask scheduler, or of the Ray head.")]


def fanout(backend: str, jobs: int | None, address: str | None) -> Fanout:
    """Where these options send runs. Raises ValueError where they do not go together."""
    import os

    from sim.fanout import Fanout

    if backend not in completion.backends():
        raise ValueError(f"--backend is {backend!r}; known: {', '.join(completion.backends())}")
    if backend != "local" and jobs is not None:
        raise ValueError(f"--jobs is for local processes; a {backend} cluster has as many as it has")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Fanout(backend=backend, jobs=jobs or cores, address=address)  # type: ignore[arg-type]
