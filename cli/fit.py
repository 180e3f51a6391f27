"""``bulletsim fit``: a latency model of a device from its profile, with the errors that hold-out finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from profiler.devicecalibration import Composition, DeviceCalibration
    from profiler.profile import Profile

PROFILES = "Profiles of one device: NAME.parquet, NAME.json, or NAME."
POINTS = "Fitted parameters only; by default measured points are kept and given back exactly."
HOST_PASS = "Seconds the host adds to a pass (default: as measured, else 0.00025)."
HOST_LAUNCH = "Seconds the host adds to a launch (default: as measured, else 0.00005)."
QUICK = "Errors of one split only, and no error by samples."
INFO = "Show this latency model, and fit nothing."

SHORT = {"calibrated roofline": "calibrated", "random forest": "forest", "log interpolation": "interpolation"}
"""Names of the estimators above columns."""

LEGEND = """errors: median/90th percentile of |predicted / measured - 1| in percent, over
rows not fitted to; spread: median scatter of repeated measurements, percent;
wide: products with n and k of 1024 or more"""


def fit(
    profiles: Annotated[list[Path] | None, typer.Argument(help=PROFILES)] = None,
    out: Annotated[Path | None, typer.Option(help="The latency model to write, a .json.")] = None,
    no_points: Annotated[bool, typer.Option("--no-points", help=POINTS)] = False,
    quick: Annotated[bool, typer.Option("--quick", help=QUICK)] = False,
    host_pass: Annotated[float | None, typer.Option(help=HOST_PASS)] = None,
    host_launch: Annotated[float | None, typer.Option(help=HOST_LAUNCH)] = None,
    info: Annotated[Path | None, typer.Option(help=INFO)] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing latency model.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")] = False,
) -> None:
    """Fit a latency model to a profile and state its errors, or show one."""
    from cli.output import note, print_json
    from profiler.devicecalibration import load_calibration

    if info is not None:
        if profiles or out is not None:
            raise ValueError("--info shows a latency model and fits none; leave profiles and --out out")
        model, path = load_calibration(info), info
    else:
        for name, value in (("--host-pass", host_pass), ("--host-launch", host_launch)):
            if value is not None and not 0 <= value < 60:
                raise ValueError(f"{name} is {value}; give seconds, 0 or more, such as 0.0003")
        profile, path = _read(profiles or [], out, force)
        model = _with_host(_fitted(profile, not no_points, quick, quiet or json), host_pass, host_launch)
        model.save(path)
    if json:
        print_json({"path": str(path), **summary(model)})
        return
    print(described(model))
    if info is None and not quiet:
        note(f"latency model written to {path}")


def _read(paths: Sequence[Path], out: Path | None, force: bool) -> tuple[Profile, Path]:
    """The profiles as one, and where the model goes; ValueError where writing it would lose something."""
    from cli.writable import check_writable
    from profiler.profile import load_profile, merged

    if not paths:
        raise ValueError("no profile is named; give one or several, or --info MODEL.json to show a latency model")
    if out is None:
        raise ValueError("--out is missing; give the name of the latency model to write, such as out/model.json")
    if not out.name or out.name == "..":
        raise ValueError(f"--out is {str(out)!r}, which names no file; give a name such as out/model.json")
    if out.suffix != ".json":
        raise ValueError(f"--out is {out}; a latency model is a .json, such as {out.with_suffix('.json')}")
    if out.is_dir():
        raise ValueError(f"{out}: a folder; choose another name")
    stems = [path.with_suffix("") if path.suffix in (".parquet", ".json") else path for path in paths]
    for place, stem in enumerate(stems):
        if stem.resolve() == out.with_suffix("").resolve():
            raise ValueError(f"--out is {out}, which belongs to the profile {paths[place]}; choose another name")
        if stem.resolve() in [other.resolve() for other in stems[:place]]:
            raise ValueError(f"{paths[place]} is named twice; name each profile once")
    if out.exists() and not force:
        raise ValueError(f"{out}: exists already; choose another name, or replace it with --force")
    check_writable(out)
    return merged([load_profile(path) for path in paths]), out


def _fitted(profile: Profile, keep_points: bool, quick: bool, quiet: bool) -> DeviceCalibration:
    """The model with its errors; tells how far it is."""
    from cli.output import progress
    from profiler.holdout import fit_with_errors, fitting_steps

    steps = fitting_steps(profile, quick=quick)
    with progress("fitting", steps, quiet=quiet) as tell:
        return fit_with_errors(profile, keep_points=keep_points, quick=quick, progress=tell)


def _with_host(model: DeviceCalibration, pass_s: float | None, launch_s: float | None) -> DeviceCalibration:
    """The model with the host times that were given."""
    from dataclasses import replace

    given = {"pass_s": pass_s, "launch_s": launch_s}
    stated = {name: value for name, value in given.items() if value is not None}
    return replace(model, host=replace(model.host, **stated, origin="stated")) if stated else model


def summary(model: DeviceCalibration) -> dict[str, Any]:
    """What is known of a model, its parameters left out."""
    document = model.document()
    ops = {
        op: {
            "rows": found.rows,
            "floor_s": found.floor_s,
            "share_sms": list(found.share_sms),
            "points": None if found.points is None else len(found.points.shapes),
            "ranges": {name: list(ends) for name, ends in found.ranges.items()},
        }
        for op, found in model.ops.items()
    }
    kept = ("provenance", "bandwidth", "contention", "host", "composition", "unmeasured", "holdout", "learning_curve")
    return {"device": model.device.name, "ops": ops, **{name: document[name] for name in kept}}


def described(model: DeviceCalibration) -> str:
    """Where a model comes from, what it rests on and how far it is off; at most 80 columns."""
    parts = [_origin(model), _ops(model), _assumed(model)]
    parts += _errors(model.holdout, "split", "held out") or ["errors: not stated, or too few rows to hold any out"]
    parts += _errors(model.learning_curve, "fitted", "samples")
    if model.holdout:
        parts.append(LEGEND)
    return "\n\n".join(parts)


def _origin(model: DeviceCalibration) -> str:
    from textwrap import fill

    known = model.provenance
    rows = known.get("rows")
    lines = [f"{model.device.name}, {model.device.sms} SMs: {rows:,} rows, {known.get('source')}" if rows else ""]
    lines += [f"{name}: {known[name]}" for name in ("origin", "date", "model") if known.get(name)]
    lines.append(f"rows' SHA-256: {known.get('rows_sha256', 'not stated')}")
    lines.append("made with: " + ", ".join(f"{name} {text}" for name, text in known.get("versions", {}).items()))
    return "\n".join(fill(line, 80, subsequent_indent="  ", break_long_words=False) for line in lines if line)


def _ops(model: DeviceCalibration) -> str:
    from cli.output import number, table

    rows = [
        [
            op,
            f"{found.rows:,}",
            ", ".join(map(str, found.share_sms)) if len(found.share_sms) < 6 else f"{len(found.share_sms)} shares",
            number(found.floor_s, 1e6),
            "-" if found.points is None else f"{len(found.points.shapes):,}",
        ]
        for op, found in model.ops.items()
    ]
    return table(["measured", "rows", "SMs", "floor (us)", "points kept"], rows)


def _assumed(model: DeviceCalibration) -> str:
    parts = {
        "bandwidth by SMs": (model.bandwidth.origin, f"N_d {model.bandwidth.knee_sms:.3g}"),
        "contention": (model.contention.origin, f"decode up to {model.contention.decode:.0%}"),
        "host": (
            model.host.origin,
            f"{model.host.pass_s * 1e6:.0f} us a pass, {model.host.launch_s * 1e6:.0f} a launch",
        ),
        "layers over kernels": (
            model.composition.origin,
            _composed(model.composition),
        ),
    }
    if model.mixed is not None:
        ratios = sorted(model.mixed.ratios)
        middle = ratios[len(ratios) // 2]
        parts["mixed attention over its parts"] = (
            "measured",
            f"{ratios[0]:.2g} to {ratios[-1]:.2g}, median {middle:.2g}",
        )
    return "\n".join(f"{name}: {origin}, {value}" for name, (origin, value) in parts.items())


def _composed(found: Composition) -> str:
    """Factors on the largest share, what a layer takes besides, and the range of factors on products."""
    seconds, prefill, decode = ((curve[-1][1] if curve else None) for curve in found.costs)
    factors = f"prefill {prefill or 1:.3g}, decode {decode or 1:.3g}"
    factors += f", {seconds * 1e6:.0f} us a layer" if seconds else ""
    products = [factor for _, of_rows in found.products.by_sms for _, factor in of_rows]
    return factors + (f", products {min(products):.2g} to {max(products):.2g}" if products else "")


def _errors(rows: Sequence[Mapping[str, Any]], by: str, heading: str) -> list[str]:
    """One table an op: a line a split, or a number of samples, the estimators side by side."""
    from cli.output import number, table

    tables = []
    for op in dict.fromkeys(row["op"] for row in rows):
        mine = [row for row in rows if row["op"] == op]
        names = list(dict.fromkeys(row["estimator"] for row in mine))
        repeated = any(row["spread"] is not None for row in mine)
        lines = []
        for label in dict.fromkeys((row[by], row["subset"]) for row in mine):
            found = {row["estimator"]: row for row in mine if (row[by], row["subset"]) == label}
            one = next(iter(found.values()))
            what = f"{label[0]:,}" if isinstance(label[0], int) else str(label[0])
            what += "" if label[1] == "all" else ", wide"
            cells = [_shown(found[name]) if name in found else "-" for name in names]
            lines.append([what, f"{one['rows']:,}", *cells, *([number(one["spread"], 100, 2)] if repeated else [])])
        head = [f"{op}: {heading}", "rows", *(SHORT.get(name, name) for name in names), *(["spread"] * repeated)]
        tables.append(table(head, lines))
    return tables


def _shown(row: Mapping[str, Any]) -> str:
    return "/".join("> 999" if row[name] > 9.99 else f"{100 * row[name]:.1f}" for name in ("median", "p90"))
