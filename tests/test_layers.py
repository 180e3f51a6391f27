"""The arrows between rooms, read from the source: who may import whom, and what stays out of where."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

MAY_IMPORT: dict[str, set[str]] = {
    "traces": set(),
    "profiler": set(),
    "policies": {"traces", "profiler"},
    "sim": {"traces", "profiler", "policies"},
    "real": {"traces", "profiler", "policies", "sim"},
    "cli": {"traces", "profiler", "policies", "sim", "real"},
}
ROOMS = tuple(MAY_IMPORT)


def sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import in a file, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.relative_to(ROOT)}:{node.lineno}: relative import"
            assert node.module is not None
            yield node.lineno, node.module


def importers(module: str) -> set[str]:
    """Files of the rooms that import ``module`` or a part of it."""
    return {
        path.relative_to(ROOT).as_posix()
        for room in ROOMS
        for path in sources(room)
        for _, name in imported(path)
        if name.split(".")[0] == module
    }


def modules() -> list[str]:
    """Every module that must import without torch."""
    names = []
    for room in ROOMS:
        for path in sources(room):
            relative = path.relative_to(ROOT).as_posix()
            if not relative.startswith(("real/", "profiler/measure/")):
                names.append(relative.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    return names


@pytest.mark.parametrize("room", ROOMS)
def test_arrows(room: str) -> None:
    allowed = MAY_IMPORT[room] | {room}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(room)
        for line, name in imported(path)
        if name.split(".")[0] in {*ROOMS, "tests", "notebooks"} - allowed
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_that_is_imported_is_ours(room: str) -> None:
    """Another package called traces or profiler, installed beside us, would otherwise be a bad hour."""
    paths = {str(path) for path in importlib.import_module(room).__path__}
    assert all(Path(path).is_relative_to(ROOT) for path in paths), paths


def test_simpy_is_the_simulated_executors_alone() -> None:
    assert importers("simpy") == {"sim/executor.py"}


def test_torch_is_where_devices_are() -> None:
    wrong = {name for name in importers("torch") if not name.startswith(("real/", "profiler/measure/"))}
    assert wrong == set()


def test_everything_else_imports_without_torch() -> None:
    # Not sys.modules['torch'] = None, which scipy takes for a torch that is loaded.
    program = (
        "import importlib, sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
    )
    command = [sys.executable, "-W", "error", "-c", program, *modules()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def loaded_by(*arguments: str) -> set[str]:
    """Top-level modules that a command has loaded when it ends."""
    program = (
        "import sys\n"
        "from cli.main import run\n"
        "status = run(sys.argv[1:])\n"
        "print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)\n"
        "sys.exit(status)\n"
    )
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_help_loads_nothing_heavy() -> None:
    heavy = {"numpy", "pandas", "pydantic", "pyarrow", "rich", "matplotlib", "simpy", "sim", "profiler"}
    assert loaded_by("--help") & heavy == set()


def test_simulate_loads_what_it_needs(tmp_path: Path) -> None:
    options = "--trace workload:sharegpt --rate 4 --requests 5 --policy bullet --model tiny --device A100-80G"
    loaded = loaded_by("simulate", *options.split(), "--out", str(tmp_path / "run"))
    assert (tmp_path / "run" / "requests.parquet").is_file()
    assert loaded & {"pandas", "scipy", "sklearn", "matplotlib", "torch", "joblib", "rich"} == set()
