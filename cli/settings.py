"""Settings typed on a command line: options that map to a run's settings, and key=value pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def pairs(option: str, given: Sequence[str]) -> dict[str, Any]:
    """``key=value`` texts as settings; a value is a number, true, false or null where it reads as one, else text.

    Raises ValueError naming the option and the text that has no ``=``, or a key given twice.
    """
    found: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"{option} {text!r} is no key=value pair, such as {option} name=3")
        if key in found:
            raise ValueError(f"{option} gives {key} twice")
        found[key] = _value(value)
    return found


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text
    return value if isinstance(value, int | float | bool) or value is None else text


def overlaid(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` laid on top, groups of settings merged."""
    result = dict(base)
    for name, value in over.items():
        known = result.get(name)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        result[name] = overlaid(known, value) if both else value  # type: ignore[arg-type]
    return result
