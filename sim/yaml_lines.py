"""YAML with the line of everything in it, so that a complaint about a value can say where it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Place = tuple[str | int, ...]
"""Keys and positions that lead to a value, from the document down."""


class Lines:
    """The line of each key and item of a document, counted from 1."""

    def __init__(self) -> None:
        self._at: dict[Place, int] = {}

    def find(self, *place: str | int) -> int | None:
        """The line of ``place``, or of the nearest thing around it; None where nothing is known."""
        for end in range(len(place), 0, -1):
            if place[:end] in self._at:
                return self._at[place[:end]]
        return None

    def read(self, node: yaml.Node, place: Place = (), seen: set[int] | None = None) -> None:
        """Takes in what stands under ``node``; what an alias repeats counts where it is first written."""
        seen = set() if seen is None else seen
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                self._at[(*place, str(key.value))] = key.start_mark.line + 1
                self.read(value, (*place, str(key.value)), seen)
        elif isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                self._at[(*place, number)] = item.start_mark.line + 1
                self.read(item, (*place, number), seen)


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a key given twice is an error; YAML itself keeps the last and says nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key.value, str):
                raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
            seen.add(key.value if isinstance(key.value, str) else id(key))
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, what: str) -> tuple[Any, Lines]:
    """The document in a file, and its lines. Raises ValueError naming the file, the line and the fault.

    ``what`` is what the file should have been, in the message for one that is nested beyond all measure.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except (IsADirectoryError, UnicodeDecodeError):
        raise ValueError(f"{path} is not a text file") from None
    lines = Lines()
    try:
        loader = _UniqueKeys(text)
        node = loader.get_single_node()
        document = None if node is None else loader.construct_document(node)
        if node is not None:
            lines.read(node)
    except RecursionError:
        raise ValueError(f"{path} is no {what}: it is nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise ValueError(f"{where}: not YAML: {getattr(error, 'problem', None) or error}") from None
    return document, lines
