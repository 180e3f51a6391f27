"""What pyproject.toml gives to mypyc, read from the source: nothing is compiled here."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
HOOK = WHEEL["hooks"]["mypyc"]


def test_only_who_asks_compiles() -> None:
    assert HOOK["enable-by-default"] is False


def test_no_compiled_module_hides_a_source() -> None:
    # Python prefers it to the .py beside it: edits would go unheard. Builds belong elsewhere, as `make fast` does it.
    assert [str(path) for room in WHEEL["packages"] for path in (ROOT / room).rglob("*.so")] == []


@pytest.mark.parametrize("pattern", HOOK["include"])
def test_a_compiled_module_can_be(pattern: str) -> None:
    """One file, from the root; mypyc takes the fields out of a dataclass with slots."""
    path = ROOT / pattern.removeprefix("/")
    assert pattern.startswith("/")
    assert path.is_file()
    slotted = [
        node.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
        for keyword in decorator.keywords
        if keyword.arg == "slots"
    ]
    assert slotted == []
