"""``bulletsim policies``: what can be given to --policy, and the settings of each."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def policies(
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """List the policies and their settings."""
    from json import dumps
    from textwrap import fill as wrapped

    from cli.output import print_json
    from policies import POLICIES

    listed = [_entry(name, cls) for name, cls in POLICIES.items()]
    if json:
        print_json({"policies": listed})
        return
    for entry in listed:
        print(wrapped(f"{entry['name']}: {entry['about']}"))
        for setting, default in entry["settings"].items():
            print(f"    --set {setting}={default if isinstance(default, str) else dumps(default)}")


def _entry(name: str, cls: type[Any]) -> dict[str, Any]:
    import dataclasses
    import inspect

    about = inspect.getdoc(inspect.getmodule(cls)) or ""
    return {
        "name": name,
        "about": about.partition("\n")[0],
        "settings": {part.name: _default(part) for part in dataclasses.fields(cls) if part.init},
    }


def _default(field: Any) -> Any:
    """A setting's default as --set takes it: a router is its name."""
    import dataclasses

    from policies import ROUTERS

    if field.default_factory is dataclasses.MISSING:
        return field.default
    names = [name for name, router in ROUTERS.items() if router is field.default_factory]
    return names[0] if names else field.default_factory()
