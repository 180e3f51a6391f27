"""``bulletsim profiles``: other people's kernel tables as profiles, and what a profile holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from profiler.profile import Profile

app = typer.Typer(help="Import and examine profiles: kernel times of a device.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Text = str | None

READ = 0.5
"""Share of an import that is done when its tables are read; they are sorted and written after that."""

BAD = "Leave out and count rows that cannot be, instead of refusing them."


@app.command("import")
def import_(
    format: Annotated[str, typer.Argument(help="aiconfigurator, vllm-tables or vidur.")],
    device: Annotated[str, typer.Option(help="A name from bulletsim devices: where it was measured.")],
    out: Annotated[Path, typer.Option(help="The profile to write: NAME.parquet and NAME.json.")],
    paths: Annotated[list[Path] | None, typer.Argument(help="Files or folders of the format.")] = None,
    backend: Annotated[Text, typer.Option(help="Framework, of the installed package (default vllm).")] = None,
    version: Annotated[Text, typer.Option(help="Version of that framework (default: newest).")] = None,
    all_reduce: Annotated[Text, typer.Option(help="Of the installed package: custom (default) or nccl.")] = None,
    fp8: Annotated[Text, typer.Option(help="Scales of fp8 products: tensor (default) or block.")] = None,
    model: Annotated[Text, typer.Option(help="The model, where vllm-tables name none.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help=BAD)] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing profile.")] = False,
    json: Json = False,
) -> None:
    """Read kernel tables that others measured into a profile."""
    from cli.output import print_json, shares

    target = _target(out, force)
    given = {"backend": backend, "version": version, "all_reduce": all_reduce, "fp8": fp8, "model": model}
    named = {name: text for name, text in given.items() if text}
    with shares("importing", quiet=json) as tell:
        profile = _read(format, paths or [], device, skip_bad, named, lambda share: tell(READ * share))
        profile.save(target)
    if json:
        print_json({"path": str(target), **_document(profile)})
    else:
        print(f"wrote {target}\n")
        _print(profile)


@app.command()
def info(
    profile: Annotated[Path, typer.Argument(help="NAME.parquet, NAME.json, or NAME.")],
    json: Json = False,
) -> None:
    """Show a profile: kernels, shapes, times, spread, device, origin."""
    from cli.output import print_json
    from profiler.profile import load_profile

    loaded = load_profile(profile)
    if json:
        print_json({"path": str(profile), **_document(loaded)})
    else:
        _print(loaded)


def _target(out: Path, force: bool) -> Path:
    """Where the rows go; ValueError where they could not be written, or a profile would be lost by it."""
    from cli.writable import check_writable

    if not out.name or out.name == "..":
        raise ValueError(f"--out is {str(out)!r}, which names no file; give a name such as out/profile")
    name = out.with_suffix("") if out.suffix in (".parquet", ".json") else out
    target = Path(f"{name}.parquet")
    for path in (target, target.with_suffix(".json")):
        if path.is_dir():
            raise ValueError(f"{path}: a folder; choose another name")
        if path.exists() and not force:
            raise ValueError(f"{path}: exists already; choose another name, or replace it with --force")
    check_writable(out, target, target.with_suffix(".json"))
    return target


def _read(
    format: str, paths: list[Path], device: str, skip_bad: bool, given: dict[str, Any], tell: Callable[[float], None]
) -> Profile:
    """The profile of what is named; ValueError for a format that is not known and options that are not its own."""
    from profiler.importers import FORMATS, aiconfigurator, vidur, vllm_tables

    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
    packaged = format == "aiconfigurator" and not paths
    own = {
        "aiconfigurator": ("backend", "version", "all_reduce", "fp8") if packaged else ("fp8",),
        "vllm-tables": ("model",),
    }.get(format, ())
    for name in given:
        if name not in own:
            what = "files" if paths else "the installed package"
            raise ValueError(f"--{name.replace('_', '-')} has no meaning for {format} from {what}; leave it out")
    for name, known in (("fp8", aiconfigurator.FP8), ("all_reduce", aiconfigurator.ALL_REDUCES)):
        if name in given and given[name] not in known:
            raise ValueError(f"--{name.replace('_', '-')} is {given[name]!r}; known: {', '.join(known)}")
    if packaged:
        return aiconfigurator.read_package(device, skip_bad=skip_bad, progress=tell, **given)
    if not paths:
        raise ValueError(f"{format} is read from files; name them, or a folder with them")
    if format == "aiconfigurator":
        return aiconfigurator.read_tables(paths, device, skip_bad=skip_bad, progress=tell, **given)
    if format == "vidur":
        return vidur.read_tables(paths, device, skip_bad=skip_bad, progress=tell)
    if len(paths) > 1:
        raise ValueError(f"vllm-tables are read a folder at a time; {len(paths)} were named")
    return vllm_tables.read_tables(paths[0], device, skip_bad=skip_bad, progress=tell, **given)


def _document(profile: Profile) -> dict[str, Any]:
    from profiler.profile import rows_digest
    from profiler.summary import summarise

    document = profile.provenance.model_dump(mode="json")
    document |= {"rows": len(profile.rows), "rows_sha256": rows_digest(profile.rows)}
    return {**document, "kernels": [summary.as_dict() for summary in summarise(profile)]}


def _print(profile: Profile) -> None:
    from cli.output import number, table
    from profiler.profile import rows_digest
    from profiler.summary import summarise

    origin, summaries = profile.provenance, summarise(profile)
    print(f"{origin.device}, {origin.sms} SMs: {len(profile.rows):,} rows, {origin.source}\n")
    head = ("kernel", "dtype", "rows", "SMs", "co-run", "least (us)", "most (us)", "spread (%)")
    rows = [
        (
            found.kernel,
            found.dtype,
            f"{found.rows:,}",
            _extent(found.sms),
            f"{found.beside:,}",
            number(found.latency_s[0], 1e6),
            number(found.latency_s[1], 1e6),
            number(found.spread, 100),
        )
        for found in summaries
    ]
    print(table(head, rows, 2) + "\n")
    shapes = {found.kernel: found.shapes for found in summaries}
    for kernel in shapes:
        both = [found.shapes for found in summaries if found.kernel == kernel]
        extents = {name: (min(s[name][0] for s in both), max(s[name][1] for s in both)) for name in shapes[kernel]}
        _wrap(f"{kernel}: " + ", ".join(f"{name} {_extent(extent)}" for name, extent in extents.items()))
    print()
    if origin.model:
        _wrap(f"model: {origin.model}, tensor parallel {origin.tensor_parallel}")
    _wrap(f"origin: {origin.origin}")
    _wrap(f"date: {origin.date or 'not stated'}")
    _print_parts("kernels", "{} was: {}", origin.settings)
    _print_parts("left_out", "left out: {}: {}", origin.settings)
    _wrap(f"rows' SHA-256: {rows_digest(profile.rows)}")


def _print_parts(name: str, line: str, settings: dict[str, Any]) -> None:
    """A setting's parts, a line each. Settings are free: a profile from elsewhere may hold anything under a name."""
    found = settings.get(name)
    if isinstance(found, dict):
        for part, value in found.items():
            _wrap(line.format(part, _said(value)))
    elif found not in (None, [], ""):
        _wrap(f"{name.replace('_', ' ')}: {_said(found)}")


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_said, value))
    return f"{value:,}" if type(value) in (int, float) else str(value)


def _extent(extent: tuple[int, int]) -> str:
    return f"{extent[0]:,}" if extent[0] == extent[1] else f"{extent[0]:,}-{extent[1]:,}"


def _wrap(text: str) -> None:
    from textwrap import fill

    print(fill(text, width=80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))
