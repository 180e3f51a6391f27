"""``help()`` reads well: public modules, classes and functions say what they are, and rooms list what they offer."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("traces", "profiler", "policies", "sim", "real", "cli")
LISTED = ("traces", "profiler", "policies", "sim")
NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def undocumented(path: Path) -> list[str]:
    """Public names of a module without a docstring, with their lines."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in module.body if isinstance(node, NAMED) and not node.name.startswith("_")]
    where = path.relative_to(ROOT)
    found = [] if ast.get_docstring(module) else [f"{where}"]
    return found + [f"{where}:{node.lineno} {node.name}" for node in nodes if not ast.get_docstring(node)]


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_has_a_docstring(room: str) -> None:
    assert [line for path in sorted((ROOT / room).rglob("*.py")) for line in undocumented(path)] == []


@pytest.mark.parametrize("room", LISTED)
def test_what_a_room_lists_is_there_and_documented(room: str) -> None:
    module = importlib.import_module(room)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name
