"""What pyproject.toml gives to mypyc, read from the source: nothing is compiled here."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
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


def decorated(module: ast.Module) -> Iterator[tuple[ast.ClassDef, str, dict[str, object]]]:
    """Classes with each decorator's name and what it is told."""
    for node in ast.walk(module):
        for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else ():
            told = decorator.keywords if isinstance(decorator, ast.Call) else []
            name = decorator.func if isinstance(decorator, ast.Call) else decorator
            yield node, ast.unparse(name), {keyword.arg: keyword.value for keyword in told}


@pytest.mark.parametrize("pattern", HOOK["include"])
def test_a_compiled_module_can_be(pattern: str) -> None:
    """One file, from the root, in a form that means the same to mypyc.

    It takes the fields out of a dataclass with slots, makes fields of a dataclass's class variables, and protocols into
    classes that isinstance does not see through.
    """
    path = ROOT / pattern.removeprefix("/")
    assert pattern.startswith("/")
    assert path.is_file()
    for node, decorator, told in decorated(ast.parse(path.read_text(encoding="utf-8"))):
        assert decorator != "runtime_checkable", node.name
        if decorator == "dataclass":
            assert "slots" not in told, node.name
            assert "ClassVar" not in ast.unparse(node), node.name
