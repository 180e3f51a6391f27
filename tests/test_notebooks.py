"""Notebooks: committed without outputs, without logic of their own, and with links that lead somewhere.

``pytest --nbmake``, which is what ``make test`` runs, executes them.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import LINK, ROOT, prose, slug

FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LOGIC = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.For,
    ast.While,
    ast.If,
    ast.Try,
    ast.Match,
)
MOST_CELLS, MOST_LINES = 12, 24
"""Of code, and of a cell of it."""


def cells(notebook: Path, kind: str) -> list[dict[str, Any]]:
    found = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell | {"source": "".join(cell["source"])} for cell in found if cell["cell_type"] == kind]


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def test_it_is_committed_without_outputs(notebook: Path) -> None:
    for cell in cells(notebook, "code"):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        assert cell["metadata"] == {}
    assert set(json.loads(notebook.read_text(encoding="utf-8"))["metadata"]) == {"kernelspec", "language_info"}


def test_it_only_calls_what_there_is(notebook: Path) -> None:
    """But for files that it writes, which are what it is about."""
    code = [cell["source"] for cell in cells(notebook, "code") if not cell["source"].startswith("%%writefile ")]
    assert len(code) <= MOST_CELLS
    for source in code:
        assert source.count("\n") < MOST_LINES
        assert [type(node).__name__ for node in ast.walk(ast.parse(source)) if isinstance(node, LOGIC)] == []


def test_every_cell_of_code_is_introduced(notebook: Path) -> None:
    document = json.loads(notebook.read_text(encoding="utf-8"))
    kinds = [cell["cell_type"] for cell in document["cells"]]
    assert kinds[0] == "markdown"
    assert "code code code" not in " ".join(kinds)
    assert document["metadata"]["kernelspec"]["name"] == "python3"


def test_its_links_lead_somewhere(notebook: Path) -> None:
    for target in LINK.findall("\n".join(cell["source"] for cell in cells(notebook, "markdown"))):
        name, _, anchor = target.partition("#")
        path = FOLDER / name
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", prose(path.read_text(encoding="utf-8")), re.MULTILINE)
            assert anchor in map(slug, headings), target


def test_the_index_names_every_notebook() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in LINK.findall(index) if name.endswith(".ipynb")] == [path.name for path in NOTEBOOKS]
