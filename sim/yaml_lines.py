"""YAML with the line of everything in it, so that a complaint about a value can say where it stands."""

from __future__ import annotations

import re
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

    def read(self, node: yaml.Node, place: Place = (), begun: dict[int, bool] | None = None) -> None:
        """Takes in what stands under ``node``; what an alias repeats counts where it is first written.

        begun: nodes met so far, and whether they are still being read. Raises yaml.MarkedYAMLError for a part that
        an alias puts into itself.
        """
        begun = {} if begun is None else begun
        if id(node) in begun:
            if begun[id(node)]:
                raise yaml.MarkedYAMLError(problem="an alias puts this into itself", problem_mark=node.start_mark)
            return
        begun[id(node)] = True
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                self._at[(*place, str(key.value))] = key.start_mark.line + 1
                self.read(value, (*place, str(key.value)), begun)
        elif isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                self._at[(*place, number)] = item.start_mark.line + 1
                self.read(item, (*place, number), begun)
        begun[id(node)] = False


class _Loader(yaml.SafeLoader):
    """YAML in which a key given twice is an error, and 1e-3 a number as YAML 1.2 has it.

    YAML itself keeps the last of two and says nothing, and YAML 1.1 takes numbers without a point for text.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a list or group names nothing", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


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
        loader = _Loader(text)
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
