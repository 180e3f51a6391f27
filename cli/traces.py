"""``bulletsim traces``: what traces there are, bringing them here, looking at them, converting them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import completion

if TYPE_CHECKING:
    from traces import Trace
    from traces.statistics import Arrivals, Statistics

app = typer.Typer(help="List, fetch, examine and convert request traces.", no_args_is_help=True)

SOURCE = "A file or folder, workload:NAME, or a fetched name."
PUBLIC = "A public trace of `bulletsim traces list`."
Source = Annotated[str, typer.Argument(help=SOURCE, autocompletion=completion.traces)]
FormatName = Annotated[str | None, typer.Option("--format", help="The format, instead of detecting it.")]
ArrivalForm = Annotated[str | None, typer.Option(help="New arrivals, such as poisson:4 or spread; see docs/traces.md.")]
Seed = Annotated[int, typer.Option(help="For everything drawn at random.")]
Limit = Annotated[int | None, typer.Option(help="Requests kept, or drawn from a workload (1,000).")]
Slice = Annotated[str | None, typer.Option(help="START:END in seconds; either may be left out.")]
Shrink = Annotated[int | None, typer.Option(help="Divide prompts and answers by this whole number, rounding up.")]
Scale = Annotated[float | None, typer.Option(help="A factor on the rates of a ServeGen folder.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@app.command("list")
def list_(json: Json = False) -> None:
    """List the built-in workloads, the public traces and the formats."""
    from cli.output import print_json, table
    from traces import CATALOGUE, FORMATS, workloads
    from traces.catalogue import fetched

    if json:
        print_json(_listing())
        return
    print("Built in (lengths; give them arrivals):\n")
    built_in = [(f"workload:{w.name}", w.about, f"{w.source_rows:,}") for w in workloads().values()]
    print(_indented(table(("name", "fitted to", "requests"), built_in, 2)))
    print("\nPublic, by bulletsim traces fetch NAME (*: here already, ?: no known checksum):\n")
    rows = [
        (
            f"{'*' if fetched(entry.name) else ' '}{'?' if entry.sha256 is None else ' '} {entry.name}",
            entry.about,
            _megabytes(entry.size_bytes),
        )
        for entry in CATALOGUE.values()
    ]
    print(table(("   name", "what", "MB"), rows, 2))
    print("\nFormats, detected from content:\n")
    print(_indented(table(("name", "what"), [(name, form.about) for name, form in FORMATS.items()], 2)))


def _listing() -> dict[str, Any]:
    from traces import CATALOGUE, FORMATS, workloads
    from traces.catalogue import fetched

    public = [
        {
            "name": entry.name,
            "about": entry.about,
            "licence": entry.licence,
            "size_bytes": entry.size_bytes,
            "sha256": entry.sha256,
            "url": entry.url,
            "fetched": fetched(entry.name) is not None,
        }
        for entry in CATALOGUE.values()
    ]
    built_in = [
        {"name": w.name, "about": w.about, "source": w.source, "source_rows": w.source_rows}
        for w in workloads().values()
    ]
    return {"workloads": built_in, "public": public, "formats": {name: form.about for name, form in FORMATS.items()}}


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help=PUBLIC, autocompletion=completion.public_traces)],
    to: Annotated[Path | None, typer.Option(help="The folder to put it in, instead of the cache.")] = None,
    mirror: Annotated[str | None, typer.Option(help="A folder's URL that has the file.")] = None,
    json: Json = False,
) -> None:
    """Fetch a public trace, checked, into the cache."""
    from cli.output import note, print_json, progress, shares
    from cli.writable import check_writable
    from traces import fetch as bring
    from traces.catalogue import known
    from traces.hashing import sha256

    entry = known(name)
    if to is not None:
        check_writable(to / entry.file)
    total = None if entry.size_bytes is None else -(-entry.size_bytes // 1_000_000)
    with progress(f"fetching {name}", total, quiet=json) as tell:
        path = bring(name, to, mirror, progress=lambda done: tell(done // 1_000_000, "MB"))
    with shares(f"checking {entry.file}", quiet=json) as tell_share:
        digest = sha256(path, tell_share)
    if entry.sha256 is None:
        note(f"no checksum of {entry.file} is known: nothing vouches for what came (SHA-256 {digest})")
    if json:
        print_json({"name": name, "path": str(path), "sha256": digest, "checked": entry.sha256 is not None})
    else:
        print(path)


@app.command()
def info(
    source: Source,
    format: FormatName = None,
    arrivals: ArrivalForm = None,
    seed: Seed = 0,
    limit: Limit = None,
    slice: Slice = None,
    scale: Scale = None,
    shrink: Shrink = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw it: a .png, .svg or .pdf.")] = None,
    json: Json = False,
) -> None:
    """Show a trace: rate, burstiness, silences, lengths, origin."""
    from cli.output import note, print_json, progress
    from traces import summarise
    from traces.picture import draw

    trace = _opened(source, format, arrivals, seed, limit, slice, scale, shrink, quiet=json)
    with progress("summarising", 1 if picture is None else 2, quiet=json) as tell:
        statistics = summarise(trace)
        if picture is not None:
            tell(1, "drawing")
            draw(trace, picture)
    if picture is not None:
        note(f"drawn: {picture}")
    if json:
        print_json({"name": trace.name, **statistics.as_dict(), "provenance": _provenance(trace)})
    else:
        _print_info(trace, statistics)


@app.command()
def convert(
    source: Source,
    target: Annotated[Path, typer.Argument(help="The file to write, .csv or .parquet.")],
    format: FormatName = None,
    arrivals: ArrivalForm = None,
    seed: Seed = 0,
    limit: Limit = None,
    slice: Slice = None,
    scale: Scale = None,
    shrink: Shrink = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    json: Json = False,
) -> None:
    """Write a trace in our own form, cut and given new arrivals.

    Applied in this order: --slice, --limit, --shrink, --arrivals.
    """
    from cli.output import print_json, shares
    from traces import save

    _check_target(source, target, force)
    trace = _opened(source, format, arrivals, seed, limit, slice, scale, shrink, quiet=json)
    with shares(f"writing {target.name}", quiet=json) as tell:
        save(trace, target, progress=tell)
    if json:
        print_json({"path": str(target), "requests": len(trace), "provenance": _provenance(trace)})
    else:
        print(f"{target}: {len(trace):,} requests")
        _print_provenance(trace)


def _check_target(source: str, target: Path, force: bool) -> None:
    """ValueError where ``target`` cannot be written, or a file would be lost by it, before anything is read."""
    from cli.writable import check_writable
    from traces.opening import WORKLOAD, path_of

    if not target.exists():
        check_writable(target)
        return
    if target.is_dir():
        raise ValueError(f"{target}: a folder; give the name of a file, .csv or .parquet")
    if not source.startswith(WORKLOAD):
        read = path_of(source)
        # A ServeGen folder is read file by file.
        inputs = [read] if read.is_file() else list(read.iterdir())
        if any(file.exists() and target.samefile(file) for file in inputs):
            raise ValueError(f"{target}: the trace that is read, which is never replaced; choose another name")
    if not force:
        raise ValueError(f"{target}: exists already; choose another name, or replace it with --force")


def _opened(
    source: str,
    format: str | None,
    arrivals: str | None,
    seed: int,
    limit: int | None,
    slice: str | None,
    scale: float | None,
    shrink: int | None,
    *,
    quiet: bool,
) -> Trace:
    """The trace asked for: cut, limited, shrunk, with its arrivals. A ServeGen folder is cut before it is generated."""
    from traces import ReadOptions, first, open_trace, parse_arrivals, shrunk

    spec = None if arrivals is None else parse_arrivals(arrivals)
    generated = Path(source).is_dir()
    if scale is not None and not generated:
        raise ValueError("--scale is for ServeGen folders; use --arrivals rescale:RATE for other traces")
    drawn = limit if source.startswith("workload:") else None
    with reading(source, quiet=quiet) as tell:
        options = ReadOptions(seed=seed, scale=1.0 if scale is None else scale, progress=tell)
        trace = open_trace(source, seed, drawn, format=format, options=options, slice=slice)
    if limit is not None:
        trace = first(trace, limit)
    if shrink is not None:
        trace = shrunk(trace, shrink)
    return trace if spec is None else spec.apply(trace, seed)


def reading(source: str, *, quiet: bool) -> AbstractContextManager[Callable[[float], None]]:
    """Gives what is to be told the share of a trace that is read; a workload is there at once, and nothing is shown."""
    from cli.output import shares
    from traces.opening import WORKLOAD

    return shares(f"reading {Path(source).name}", quiet=quiet or source.startswith(WORKLOAD))


def _print_info(trace: Trace, statistics: Statistics) -> None:
    from cli.output import number, table
    from traces.picture import text_rows

    print(f"{trace.name}: {statistics.requests:,} requests\n")
    columns = ("mean", "p50", "p90", "p99", "max", "total")
    rows = [
        (label, *(f"{getattr(lengths, column):,.0f}" for column in columns))
        for label, lengths in (("prompt", statistics.prompt_tokens), ("output", statistics.output_tokens))
    ]
    print(table(("tokens", *columns), rows))
    print(f"\nrank correlation of prompt and output: {number(statistics.rank_correlation)}")
    if statistics.arrivals is None:
        print("no arrival times: a trace of lengths")
    else:
        print("\n" + table(("arrivals", ""), _arrival_rows(statistics.arrivals)))
    print()
    for what, bars, extent in text_rows(trace, 40, sys.stdout.encoding or "ascii"):
        print(f"{what:9}|{bars}| {extent}")
    _print_provenance(trace)


def _arrival_rows(arrivals: Arrivals) -> list[tuple[str, str]]:
    from cli.output import number

    window = f"in windows of {number(arrivals.window_s)} s"
    return [
        ("span (s)", f"{arrivals.span_s:,.1f}"),
        ("mean rate (requests/s)", number(arrivals.rate)),
        ("CV of gaps (1: Poisson)", number(arrivals.gap_cv)),
        (f"peak to mean {window}", number(arrivals.peak_to_mean)),
        (f"index of dispersion {window}", number(arrivals.dispersion)),
        ("silences over 10 s", f"{arrivals.silences:,}"),
        ("silent in all (s)", f"{arrivals.silent_s:,.0f}"),
    ]


def _print_provenance(trace: Trace) -> None:
    from textwrap import fill

    origin = trace.provenance
    print(f"\nfrom {origin.source}, format {origin.format}")
    for step in origin.notes:
        print(fill(step, width=80, initial_indent="- ", subsequent_indent="  "))


def _provenance(trace: Trace) -> dict[str, Any]:
    origin = trace.provenance
    return {
        "source": origin.source,
        "format": origin.format,
        "sha256": origin.sha256,
        "notes": list(origin.notes),
    }


def _megabytes(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 1e6:,.1f}"


def _indented(text: str) -> str:
    return "\n".join(f"   {line}" for line in text.splitlines())
