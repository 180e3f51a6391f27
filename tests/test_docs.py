"""README.md and docs/: commands run and print what stands there, links lead somewhere, reference tables are whole.

What a fenced block is, by the words after its fence:

    bash            run, in order, in one copy of the repository for each document; a command that fails fails the test
    bash no-run     shown only: it needs a network, a GPU, minutes, or files that the repository does not hold
    python          run there by this interpreter
    python a.py     written there as a.py (any language and name), for the blocks that follow
    text            with nothing but a blank line after a block that is run: what it prints; a line of three dots stands
                    for lines left out

Others are shown only. ``python -m tests.test_docs docs/commands.md`` runs a document's blocks and writes what they
print into it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
import typer

from cli.main import app
from cli.plot import Kind as Plot
from policies import POLICIES, ROUTERS, SLO, load
from real.plan import Plan
from sim.config import PolicySettings, RunConfig, read_json
from sim.metrics import summarise
from sim.report.sources import Kind as Page
from sim.results import load_results
from sim.rundir import write_run
from sim.simulate import measure_together, prepare
from sim.sweep import run_sweep
from sim.sweep_cells import cells
from sim.sweep_spec import SweepSpec
from tests.test_real_validation import real_runs, whole
from tests.toys import serve
from tests.warm import warm_commands

__all__ = ["whole"]

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "notebooks" / "README.md", *(ROOT / "docs").glob("*.md")])
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "out", "dist", "*.egg-info")
SETS_UP = {"make", "pip", "git", "uv", "curl", "wget"}
"""Commands that change an environment or need a network; a block with one of them is `bash no-run`."""
LONGEST_S = 120
LEFT_OUT = "..."
OUTPUT_FOLLOWS = "```\n\n```text\n"
REFRESH = "python -m tests.test_docs"

PICTURE = re.compile(r"!\[[^]]+\]\(([^)]+\.png)\)")
PLOTS = [kind for kind in Plot if kind is not Plot.trace]
"""Those that are pictures."""

FENCED = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
ROW = re.compile(r"^\| (`[^|]+`) \|(.*)\|$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")


class Block(NamedTuple):
    """A fenced block: its words, its text, and where the text lies in the document."""

    words: tuple[str, ...]
    body: str
    start: int
    end: int

    @property
    def command(self) -> list[str] | None:
        """The process that runs it, None for one that is shown only."""
        if self.words == ("bash",):
            return ["bash", "-euo", "pipefail", "-c", self.body]
        return [sys.executable, "-c", self.body] if self.words == ("python",) else None

    @property
    def file(self) -> str | None:
        """The file it is written to."""
        return self.words[1] if len(self.words) == 2 and self.words[1] != "no-run" else None


def blocks(text: str) -> list[Block]:
    return [Block(tuple(m["info"].split()), m["body"], m.start("body"), m.end("body")) for m in FENCED.finditer(text)]


def prose(text: str) -> str:
    return FENCED.sub("", text)


def section(path: str, heading: str) -> str:
    """What stands under a heading, up to the next one of its level or above."""
    text = prose((ROOT / path).read_text(encoding="utf-8"))
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert found, f"{path} has no heading {heading!r}"
    rest = text[found.end() :]
    following = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: following.start()] if following else rest


def rows(path: str, heading: str) -> dict[str, list[str]]:
    """Each name in the first column of the tables under a heading, and the other cells of its row."""
    return {
        name: [cell.strip() for cell in row[2].split(" | ")]
        for row in ROW.finditer(section(path, heading))
        for name in CODE.findall(row[1])
    }


def output(block: Block, directory: Path, commands: Path, where: str) -> str:
    """What a block prints on stdout, without trailing blanks; the test fails where the block does."""
    command = block.command
    assert command is not None
    setting_up = SETS_UP & set(re.findall(r"^\s*(\w+)", block.body, re.MULTILINE)) if command[0] == "bash" else set()
    assert not setting_up, f"{where} calls {', '.join(setting_up)}; mark the block `bash no-run`"
    environment = os.environ | {
        "PATH": os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "COLUMNS": "80",
        "XDG_CACHE_HOME": str(directory / ".cache"),
    }
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=LONGEST_S
    )
    assert done.returncode == 0, f"{where}: exit status {done.returncode}\n{block.body}\n{done.stderr}"
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def cut_like(printed: str, shown: str) -> str:
    """``printed`` with as many lines left out as ``shown`` leaves out of its own, at the same place."""
    lines, kept = printed.splitlines(keepends=True), shown.splitlines()
    if LEFT_OUT not in kept:
        return printed
    before = kept.index(LEFT_OUT)
    after = len(kept) - before - 1
    return "".join([*lines[:before], f"{LEFT_OUT}\n", *lines[len(lines) - after :]])


def replay(document: Path, directory: Path, commands: Path) -> Iterator[tuple[str, Block, str]]:
    """Runs a document's blocks; (place, output block, what it should be) for each output shown.

    ``commands``: a directory whose ``bulletsim`` they call.
    """
    text = document.read_text(encoding="utf-8")
    printed, printed_at = "", None
    for block in blocks(text):
        line = text[: block.start].count("\n")
        where = f"{document.name}, line {line}"
        if block.command:
            printed, printed_at = output(block, directory, commands, where), block.end
        elif block.file:
            (directory / block.file).write_text(block.body, encoding="utf-8")
        elif block.words == ("text",) and printed_at and text[printed_at : block.start] == OUTPUT_FOLLOWS:
            yield where, block, cut_like(printed, block.body)


def copy_of_the_repository(parent: Path) -> Path:
    """What blocks run in: they may write where they like."""
    return Path(shutil.copytree(ROOT, parent / "repository", ignore=NOT_COPIED))


@pytest.fixture(scope="session")
def warm() -> Iterator[Path]:
    with warm_commands() as folder:
        yield folder


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_run_and_print_what_stands_there(document: Path, warm: Path, tmp_path: Path) -> None:
    for where, block, expected in replay(document, copy_of_the_repository(tmp_path), warm):
        assert block.body == expected, f"{where}: not what is printed; {REFRESH} {document.relative_to(ROOT)} mends it"


@pytest.mark.parametrize("arguments", ["devices", "simulate --trace nowhere.csv --policy chunked"])
def test_a_warm_command_answers_as_one_from_nothing(warm: Path, tmp_path: Path, arguments: str) -> None:
    def answer(folder: Path) -> tuple[int, str, str]:
        done = subprocess.run([folder / "bulletsim", *arguments.split()], cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    assert answer(warm) == answer(Path(sys.executable).parent)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    text = prose(document.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), f"{document.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", prose(path.read_text(encoding="utf-8")), re.MULTILINE)
            assert anchor in map(slug, headings), f"{document.name} links to {target}"


@pytest.mark.parametrize("name", [*PLOTS, *(f"report-{kind}" for kind in Page)])
def test_every_kind_of_figure_and_of_page_has_its_picture(name: str) -> None:
    shown = [target for document in DOCUMENTS for target in PICTURE.findall(document.read_text(encoding="utf-8"))]
    assert any(target.endswith(f"figures/{name}.png") for target in shown)


def test_pictures_are_small_and_shown() -> None:
    shown = {target.rpartition("figures/")[2] for one in DOCUMENTS for target in PICTURE.findall(one.read_text())}
    for picture in (ROOT / "docs" / "figures").rglob("*.png"):
        assert picture.stat().st_size < 150_000, picture
        assert picture.relative_to(ROOT / "docs" / "figures").as_posix() in shown


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_policy_that_docs_write_serves_every_request(tmp_path: Path) -> None:
    text = (ROOT / "docs/policies.md").read_text(encoding="utf-8")
    (block,) = [block for block in blocks(text) if block.file and block.words[0] == "python"]
    (name,) = re.findall(r"^class (\w+):", block.body, re.MULTILINE)
    file = tmp_path / str(block.file)
    file.write_text(block.body, encoding="utf-8")
    policy = load(f"{file}:{name}")
    traffic = [(0.05 * i, 1 + 37 * i % 60, 1 + 13 * i % 30) for i in range(40)]
    for instances, kv_blocks in ((1, 1000), (2, 1000), (1, 8)):
        result = serve(policy, traffic, instances=instances, blocks=kv_blocks, slo=SLO(ttft_s=1.0, tpot_s=0.2))
        assert result.records.generated_tokens.tolist() == [output_tokens for *_, output_tokens in traffic]
    assert result.records.preemptions.sum() > 0


@pytest.mark.parametrize("name", POLICIES)
def test_every_setting_of_a_policy_is_described(name: str) -> None:
    def shown(field: dataclasses.Field[Any]) -> str:
        if field.default_factory is not dataclasses.MISSING:
            return next(router for router, cls in ROUTERS.items() if cls is field.default_factory)
        return json.dumps(field.default)

    settings = {field.name: f"`{shown(field)}`" for field in dataclasses.fields(POLICIES[name]) if field.init}
    described = {setting: cells[0] for setting, cells in rows("docs/policies.md", name).items()}
    assert described == settings


def commands() -> dict[str, Any]:
    """Every command by its full name, groups spelled out."""

    def within(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        if not hasattr(command, "commands"):
            yield name, command
        for part, inner in getattr(command, "commands", {}).items():
            yield from within(f"{name} {part}", inner)

    return dict(within("bulletsim", typer.main.get_command(app())))


@pytest.mark.parametrize("name", commands())
def test_every_option_of_a_command_is_described(name: str) -> None:
    def default(parameter: Any) -> str:
        if parameter.required:
            return "required"
        given = None if isinstance(parameter.default, bool) else parameter.default
        return "" if given is None else f"`{given}`"

    options = {
        max(parameter.opts, key=len): [default(parameter), parameter.help]
        for parameter in commands()[name].params
        if parameter.name != "help"
    }
    described = {first.split()[0]: cells for first, cells in rows("docs/commands.md", name).items()}
    assert described == options


def test_no_command_is_described_that_is_not_there() -> None:
    text = prose((ROOT / "docs/commands.md").read_text(encoding="utf-8"))
    assert set(re.findall(r"^#+ (bulletsim .*)$", text, re.MULTILINE)) == set(commands())


CONFIG = RunConfig(
    trace="workload:sharegpt",
    rate=8.0,
    requests=5,
    policy=PolicySettings(name="chunked"),
    model="tiny",
    device="A100-80G",
)


def leaves(document: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of what a JSON document holds."""
    if not isinstance(document, dict) or not document:
        yield prefix
        return
    for name, value in document.items():
        yield from leaves(value, f"{prefix}.{name}" if prefix else name)


def test_every_column_and_key_of_a_run_is_described(tmp_path: Path) -> None:
    ready = prepare(CONFIG)
    result = ready.run(keep_token_times=True)
    write_run(tmp_path / "run", ready.config, result, summarise(result, SLO(), 1))
    for name in ("requests.parquet", "steps.parquet", "token_times.parquet"):
        assert list(rows("docs/files.md", name)) == pq.read_schema(tmp_path / "run" / name).names
    assert list(rows("docs/files.md", "summary.json")) == list(read_json(tmp_path / "run" / "summary.json"))
    assert list(rows("docs/files.md", "config.json")) == list(leaves(read_json(tmp_path / "run" / "config.json")))


def test_every_key_and_column_of_a_sweep_is_described(tmp_path: Path) -> None:
    assert list(rows("docs/files.md", "Sweep specification")) == list(SweepSpec.model_fields)
    base = CONFIG.model_dump(exclude={"policy"}, exclude_none=True)
    spec = SweepSpec.model_validate({"base": base, "policies": ["chunked"]})
    run_sweep(cells(spec, "test"), tmp_path, run=measure_together)
    (row,) = load_results(tmp_path)
    described = {name: re.sub(r"[A-Z]+", r"\\w+", name) for name in rows("docs/files.md", "results.parquet")}
    columns = {name: [column for column in row if re.fullmatch(form, column)] for name, form in described.items()}
    assert [name for name, found in columns.items() if not found] == ["rejected_REASON"]
    assert set(row) == {column for found in columns.values() for column in found}


def test_every_key_and_column_of_a_validation_is_described(whole: Path) -> None:
    plan, report = (read_json(whole / "out" / name) for name in ("plan.json", "report.json"))
    assert list(rows("docs/files.md", "plan.json")) == list(plan) == list(Plan.model_fields)
    assert list(rows("docs/files.md", "report.json")) == [*report, *report["cells"][0]]
    for run in real_runs(whole / "out"):
        assert list(rows("docs/files.md", "real.json")) == list(read_json(run / "real.json"))
        for name in ("launches.parquet", "tokens.parquet"):
            assert list(rows("docs/files.md", name)) == pq.read_schema(run / name).names


def test_every_line_of_a_recording_is_described(whole: Path) -> None:
    described = {kind: len(CODE.findall(cells[0])) for kind, cells in rows("docs/files.md", "answers.jsonl").items()}
    for run in real_runs(whole / "out"):
        lines = [json.loads(line) for line in (run / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
        assert {kind: len(others) for kind, *others in lines} == described


def rewrite(document: Path) -> None:
    """Brings the outputs shown in a document up to date."""
    with tempfile.TemporaryDirectory() as folder, warm_commands() as commands:
        outputs = list(replay(document, copy_of_the_repository(Path(folder)), commands))
    text = document.read_text(encoding="utf-8")
    for _, block, expected in reversed(outputs):
        text = text[: block.start] + expected + text[block.end :]
    document.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite(Path(name))
