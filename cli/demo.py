"""``bulletsim demo``: three ways to serve on two GPUs, two workloads, and which holds its SLO furthest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.backends import Jobs


def demo(
    out: Annotated[Path, typer.Option(help="Directory of results and pictures.")] = Path("out/demo"),
    jobs: Jobs = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few rates and requests: a smoke test, no result.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")] = False,
) -> None:
    """Compare chunked prefill, Bullet and disaggregation on two A100s."""
    from cli.backends import fanout
    from cli.knees import knee_tables
    from cli.output import kept, note, print_json
    from cli.sweep import note_failures, run_cells
    from sim.plots.knees import verdict
    from sim.plots.series import panels
    from sim.scenarios import FULL, QUICK, demo_cells

    done = run_cells(demo_cells(QUICK if quick else FULL), out, fanout=fanout("local", jobs, None), quiet=quiet or json)
    if not done.rows:
        note_failures(done)
        raise typer.Exit(1)
    found = panels(done.rows)
    with kept(out, quiet=quiet or json):
        files = _write(out, quiet=quiet or json)
    sentences = [verdict(panel) for panel in found]
    if json:
        print_json({"verdicts": sentences, "files": [str(path) for path in files], "rows": list(done.rows)})
    else:
        print(knee_tables(found))
        print()
        print("\n".join(sentences))
        if not quiet:
            note(f"\npictures and tables in {out}: {', '.join(path.name for path in files)}")
    if done.failures:
        note_failures(done)
        raise typer.Exit(1)


def _write(out: Path, *, quiet: bool) -> list[Path]:
    from cli.knees import knee_csv, knee_markdown
    from cli.output import progress
    from sim.plots.frontier import frontier
    from sim.plots.latency import latency
    from sim.plots.series import panels
    from sim.plots.style import save
    from sim.results import load_results
    from sim.rundir import replacing

    rows = load_results(out)
    files: list[Path] = []
    figures = {"frontier": frontier, "latency": latency}
    with progress("drawing", len(figures), quiet=quiet) as tell:
        for done, (name, draw) in enumerate(figures.items()):
            tell(done, name)
            files += save(draw(rows), out / f"{name}.pdf")
    for name, text in (("knees.csv", knee_csv(panels(rows))), ("knees.md", knee_markdown(panels(rows)))):
        with replacing(out / name) as partial:
            partial.write_text(text, encoding="utf-8")
        files.append(out / name)
    return files
