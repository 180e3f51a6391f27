"""From a name and settings, as a command or a file gives them, to a policy."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from policies.api import Policy
from policies.routing import ROUTERS

CLASSES = {
    "chunked": ("policies.chunked", "ChunkedPrefill"),
    "bullet": ("policies.bullet", "Bullet"),
    "bullet-eager": ("policies.bullet_eager", "BulletEager"),
    "disaggregation": ("policies.disaggregation", "Disaggregation"),
    "static-split": ("policies.static_split", "StaticSplit"),
    "prefill-first": ("policies.prefill_first", "PrefillFirst"),
    "vllm-chunked": ("policies.vllm_chunked", "VllmChunked"),
    "sglang-chunked": ("policies.sglang_chunked", "SglangChunked"),
    "nanoflow": ("policies.nanoflow", "NanoFlow"),
    "pod": ("policies.pod", "Pod"),
    "uncapped-streams": ("policies.uncapped_streams", "UncappedStreams"),
    "semi-pd": ("policies.semi_pd", "SemiPD"),
    "nexus": ("policies.nexus", "Nexus"),
    "duetserve": ("policies.duetserve", "DuetServe"),
    "muxwise": ("policies.muxwise", "MuxWise"),
    "oracle": ("policies.oracle", "Oracle"),
}
"""Module and class by name."""


class _Known(Mapping[str, type[Any]]):
    """The classes by name, each imported when it is asked for: a run has one policy."""

    def __getitem__(self, name: str) -> type[Any]:
        module, cls = CLASSES[name]
        found: type[Any] = getattr(importlib.import_module(module), cls)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(CLASSES)

    def __len__(self) -> int:
        return len(CLASSES)


POLICIES: Mapping[str, type[Any]] = _Known()

CONTRACT = ("name", "needs_truth", "fewest_instances", "router", "roles", "lanes", "decide")
"""What :class:`policies.api.Policy` asks for."""


def load(name: str, settings: Mapping[str, object] | None = None) -> Policy:
    """The policy of this name, or ``path.py:Class`` of a user's own, with these settings.

    A ``router`` setting is one of the names in :data:`policies.routing.ROUTERS`. Raises ValueError for an unknown
    name or setting and for a value that the policy refuses, naming what is known.
    """
    cls = _from_file(name) if ".py:" in name else POLICIES.get(name)
    if cls is None:
        raise ValueError(f"unknown policy {name!r}; known: {', '.join(POLICIES)}, or path.py:Class for your own")
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    values: dict[str, object] = {}
    for key, value in (settings or {}).items():
        if key not in fields:
            raise ValueError(f"policy {name} has no setting {key!r}; known: {', '.join(fields)}")
        values[key] = _router(value) if key == "router" else _checked(name, fields[key], value)
    try:
        policy = cast(Policy, cls(**values))
        fewest: object = policy.fewest_instances
    except ValueError:
        raise
    except (Exception, SystemExit) as error:
        raise ValueError(f"policy {name} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(fewest, int) or fewest < 1:
        raise ValueError(f"policy {name}: fewest_instances is {fewest!r}; it must be a whole number, 1 or more")
    return policy


def _router(value: object) -> object:
    router = ROUTERS.get(value) if isinstance(value, str) else None
    if router is None:
        raise ValueError(f"unknown router {value!r}; known: {', '.join(ROUTERS)}")
    return router()


def _checked(policy: str, field: dataclasses.Field[Any], value: object) -> object:
    """``value`` if it is of the field's kind; a whole number passes for a float, and None for an optional one.

    A field's type is its text where the policy's file postpones annotations, else the type itself.
    """
    kinds: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
    takes = getattr(field.type, "__name__", str(field.type))
    names = [part.strip() for part in takes.split("|")]
    known = [kind for part in names for kind in kinds.get(part, ())]
    fits = isinstance(value, tuple(known)) and (not isinstance(value, bool) or bool in known)
    if known and not fits and not (value is None and "None" in names):
        raise ValueError(f"policy {policy}: setting {field.name} is {value!r}; it takes {takes}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"policy {policy}: setting {field.name} is {value}; give a finite number")
    return value


def _from_file(spec: str) -> type[Any]:
    path_text, _, class_name = spec.rpartition(":")
    path = Path(path_text)
    if not path.is_file():
        raise ValueError(f"policy file {path_text} does not exist; give path.py:Class")
    module_name = f"bulletsim_policy_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(module_name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    # Dataclasses look their module up by name while they are being made.
    sys.modules[module_name] = module
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"policy file {path_text} cannot be loaded: {type(error).__name__}: {error}") from error
    cls = getattr(module, class_name, None)
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
        raise ValueError(f"policy file {path_text} has no dataclass {class_name!r} with a method decide(view)")
    fields = {field.name for field in dataclasses.fields(cls)}
    missing = [name for name in CONTRACT if not hasattr(cls, name) and name not in fields]
    if missing:
        raise ValueError(f"policy file {path_text}: {class_name} lacks {', '.join(missing)}; see policies.api.Policy")
    return cls
